"""Which layers a plan of tensor parallelism divides, and what it cannot divide."""

import math
import re
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard  # noqa: E402

from oneloop.backends.torch import tensor_division  # noqa: E402
from oneloop.errors import ArgumentError, ModelError, UnsupportedError  # noqa: E402
from oneloop.trainer import setup  # noqa: E402

styles_of = tensor_division.styles_of


class Attention(nn.Module):
    def __init__(self, heads=4):
        super().__init__()
        self.head_dim = 4
        self.q, self.o = nn.Linear(16, heads * 4), nn.Linear(heads * 4, 16)
        self.norm = nn.LayerNorm(4)


class Model(nn.Module):
    def __init__(self, tied=False, heads=4):
        super().__init__()
        self.embed = nn.Embedding(10, 16)
        self.layers = nn.ModuleList(Attention(heads) for _ in range(2))
        self.extra = nn.Sequential(nn.Linear(16, 9), nn.Conv1d(4, 4, 1))
        self.head = nn.Linear(16, 10, bias=False)
        if tied:
            self.head.weight = self.embed.weight


PLAN = {"layers.*.q": "colwise", "layers.*.o": "rowwise"}


def test_a_star_is_one_part_of_a_name():
    wanted = {"layers.0.q": "colwise", "layers.1.q": "colwise", "layers.0.o": "rowwise", "layers.1.o": "rowwise"}
    assert styles_of(Model(), PLAN, 2) == wanted
    assert styles_of(Model(), {"layers.1.q": "colwise"}, 2) == {"layers.1.q": "colwise"}
    with pytest.raises(ArgumentError, match=r"tensor_parallel_plan\['\*.q'\] is the name of no layer of Model"):
        styles_of(Model(), {"*.q": "colwise"}, 2)


def test_the_plan_of_a_model_may_name_layers_that_it_is_without():
    model = Model()
    model.tp_plan = PLAN | {"vision.*.q": "colwise"}
    assert list(styles_of(model, None, 2)) == ["layers.0.q", "layers.1.q", "layers.0.o", "layers.1.o"]
    assert styles_of(model, {"head": "colwise_gather_output"}, 2) == {"head": "colwise_gather_output"}


def test_the_plan_of_a_model_may_name_a_parameter_only_to_keep_it_whole():
    model = Model()
    model.tp_plan = PLAN | {"layers.*.q.weight": "packed_colwise"}
    with pytest.raises(UnsupportedError, match=r"has 'packed_colwise' for layers.*weight, which is not supported"):
        styles_of(model, None, 2)
    model.tp_plan = PLAN | {"layers.*.q.weight": "replicate"}
    assert set(styles_of(model, None, 2).values()) == {"colwise", "rowwise"}
    assert styles_of(model, PLAN, 2)  # the plan of the model is not asked


@pytest.mark.parametrize(
    ("given", "size", "error", "words"),
    [
        (None, 2, ArgumentError, r"Model has no plan .* tensor_parallel_plan.*layers\.\*\.q, layers\.\*\.o"),
        ({"layers.*.norm": "replicate"}, 2, ArgumentError, "divides no layer of Model"),
        (PLAN, 3, ArgumentError, r"layers.0.q has out_features=16, which tensor_parallel_size=3 does not divide"),
        (PLAN, 8, ArgumentError, r"layers.0.q has 4 heads, which tensor_parallel_size=8 does not divide.*divisor of 4"),
        ({"layers.*.o": "rowwise"}, 3, ArgumentError, "layers.0.o has in_features=16"),
        ({"extra.0": "colwise"}, 2, ArgumentError, "extra.0 has out_features=9"),
        ({"extra.1": "colwise"}, 2, UnsupportedError, "extra.1 cannot be divided .*it is a Conv1d"),
        ({"embed": "colwise"}, 2, UnsupportedError, "embed cannot be divided .*it is an Embedding; .* a Linear"),
        ({"embed": "embedding_colwise"}, 3, ArgumentError, "embed has embedding_dim=16"),
        ({"layers.*.q": "moe_tp_experts"}, 2, UnsupportedError, "'moe_tp_experts' for layers.0.q.*not supported"),
    ],
)
def test_what_cannot_be_divided_is_named(given, size, error, words):
    with pytest.raises(error, match=words):
        styles_of(Model(), given, size)


def test_words_of_the_vocabulary_need_not_be_a_multiple():
    plan = {"embed": "embedding_rowwise", "head": "colwise_gather_output"}
    assert styles_of(Model(), plan, 4) == plan


def test_tied_weights_stay_together():
    whole = {"embed": "embedding_rowwise", "head": "colwise_gather_output"}
    assert styles_of(Model(tied=True), whole, 2) == whole
    assert styles_of(Model(tied=True), PLAN, 2)
    with pytest.raises(ModelError, match=r"embed.weight \(whole\), head.weight \(colwise_gather_output\)"):
        styles_of(Model(tied=True), {"head": "colwise_gather_output"}, 2)
    with pytest.raises(ModelError, match=r"tied weights would be separated"):
        styles_of(Model(tied=True), whole | {"embed": "embedding_colwise"}, 2)


def test_layers_that_are_more_than_one_weight_are_refused():
    model = Model()
    nn.utils.parametrizations.weight_norm(model.head)
    with pytest.raises(UnsupportedError, match="head has further layers or parametrizations"):
        styles_of(model, {"head": "colwise"}, 2)
    sparse = nn.ModuleDict({"embed": nn.Embedding(10, 4, sparse=True)})
    with pytest.raises(UnsupportedError, match="embed: sparse gradients"):
        styles_of(sparse, {"embed": "embedding_rowwise"}, 2)


def test_layers_of_adapters_are_divided_with_theirs():
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["q", "o"], r=2)
    model = peft.get_peft_model(Model(), config)
    found = styles_of(model, PLAN, 2)
    assert {name: word for name, word in found.items() if ".0." in name} == {
        "layers.0.q.base_layer": "colwise",
        "layers.0.q.lora_B.default": "colwise",
        "layers.0.o.base_layer": "rowwise",
        "layers.0.o.lora_A.default": "rowwise",
    }
    with pytest.raises(ArgumentError, match="layers.0.q.base_layer has 3 heads"):
        styles_of(peft.get_peft_model(Model(heads=3), config), {"layers.*.q": "colwise"}, 2)
    on_head = peft.get_peft_model(Model(), peft.LoraConfig(target_modules=["head"], r=2))
    with pytest.raises(UnsupportedError, match="head is divided .* and has an adapter"):
        styles_of(on_head, {"head": "colwise_gather_output"}, 2)


# -- models that arrive divided


@pytest.fixture
def on_mesh(monkeypatch):
    """A layer whose weight is on a mesh of these sizes, in the first of as many processes, none of which is there."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch replaces it
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)

    def made(sizes, names):
        mesh = DeviceMesh("cpu", torch.arange(math.prod(sizes)).view(sizes), mesh_dim_names=names)
        layer = nn.Linear(4, 4, bias=False)
        placements = [Replicate()] * (len(sizes) - 1) + [Shard(0)]
        part = torch.zeros(4 // sizes[-1], 4)
        layer.weight = nn.Parameter(DTensor.from_local(part, mesh, placements, run_check=False))
        return layer

    yield made
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("sizes", "names", "size"),
    [
        ((4,), None, 4),
        ((2,), ("tp",), 2),
        ((2, 2), ("data", "tensor"), 2),
        ((2, 2), ("data", "shard"), 1),
        ((4,), ("shard",), 1),
        ((4,), ("expert",), 1),
    ],
)
def test_over_how_many_processes_layers_are_divided(on_mesh, sizes, names, size):
    assert tensor_division.size_of(nn.Sequential(nn.Linear(2, 2), on_mesh(sizes, names))) == size


def test_parameters_that_a_loader_has_sharded_are_refused(on_mesh):
    layer = on_mesh((2,), ("fsdp",))
    with pytest.raises(UnsupportedError, match=r"fsdp_size of its DistributedConfig.*sharding='stage3'"):
        tensor_division.size_of(layer)
    layer._is_expert_parallel = True  # the error about experts comes later
    assert tensor_division.size_of(layer) == 1


def test_layers_on_other_processes_than_those_of_the_axis_are_refused(on_mesh):
    axis = DeviceMesh("cpu", [0, 1], mesh_dim_names=("tensor",))
    for sizes, names, ranks in (((4,), ("tp",), "[0, 1, 2, 3]"), ((1, 2), ("dp", "tp"), "[[0, 1]]")):
        with pytest.raises(
            ModelError, match=re.escape(f"weight is divided over the ranks {ranks}, but the tensor axis")
        ):
            tensor_division.take_over(on_mesh(sizes, names), axis)
    assert not tensor_division.take_over(on_mesh((2,), ("tp",)), axis), "whoever has divided it has its own hooks"


def test_a_divided_model_sets_the_argument():
    backend = SimpleNamespace(models=SimpleNamespace(tensor_parallel_size=lambda model: 2))
    for given in (1, 2):
        args = SimpleNamespace(tensor_parallel_size=given)
        setup.adopt_layout(args, None, backend)
        assert args.tensor_parallel_size == 2
    with pytest.raises(
        ArgumentError, match="tensor_parallel_size=4, but the layers of the model are already divided over 2"
    ):
        setup.adopt_layout(SimpleNamespace(tensor_parallel_size=4), None, backend)
