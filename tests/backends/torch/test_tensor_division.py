"""Which layers a plan of tensor parallelism divides, and what it cannot divide."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from oneloop.backends.torch import tensor_division  # noqa: E402
from oneloop.errors import ArgumentError, ModelError, UnsupportedError  # noqa: E402

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
        ({"embed": "colwise"}, 2, UnsupportedError, "embed cannot be divided .*it is a Embedding, .* a Linear"),
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
    with pytest.raises(ModelError, match=r"tied weights would part"):
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
