"""Coordinates, groups and copies of meshes, as pure functions of sizes and ranks."""

import itertools
from types import SimpleNamespace

import pytest

from oneloop import Trainer, TrainingArguments
from oneloop.distributed import mesh as meshes
from oneloop.distributed.mesh import Axis, AxisKind, Mesh, Splits
from oneloop.errors import ArgumentError, DataError, UnsupportedError
from tests.backends.support import rows

B, W, S = Splits.BATCH, Splits.WEIGHTS, Splits.OPTIMIZER
SHAPES = [
    (("data", 1, B),),
    (("data", 4, B),),
    (("data", 2, B), ("shard", 3, B | S)),
    (("data", 2, B), ("tensor", 2, W | S)),
    (("data", 2, B), ("shard", 2, B | W | S), ("sequence", 3, Splits.NOTHING), ("tensor", 2, W | S)),
    (("stage", 2, W | S), ("data", 3, B)),
]


def all_of(shape):
    axes = tuple(Axis(*axis) for axis in shape)
    size = Mesh(axes).size
    return [Mesh(axes, rank) for rank in range(size)]


@pytest.fixture(params=SHAPES, ids=lambda shape: " x ".join(f"{size} {name}" for name, size, _ in shape))
def every(request):
    """The mesh as each process sees it."""
    return all_of(request.param)


def args(**given):
    return SimpleNamespace(
        **{"sharding": "", "sharding_degree": -1, "deepspeed": None, "world_invariant": False} | given
    )


def test_ranks_count_along_the_last_axis_first(every):
    axes = every[0].axes
    places = list(itertools.product(*(range(axis.size) for axis in axes)))
    assert [tuple(mesh.coordinate(axis.name) for axis in axes) for mesh in every] == places
    assert [mesh.is_main for mesh in every] == [True] + [False] * (len(every) - 1)
    assert all(mesh.is_single == (len(every) == 1) for mesh in every)


def test_groups_differ_along_their_axes_only(every):
    names = [axis.name for axis in every[0].axes]
    for count in range(len(names) + 1):
        for chosen in itertools.combinations(names, count):
            groups = every[0].groups_along(*chosen)
            assert sorted(itertools.chain(*groups)) == list(range(len(every)))
            assert [group[0] for group in groups] == sorted(group[0] for group in groups)
            for mesh in every:
                group = mesh.ranks_along(*chosen)
                assert group in groups and mesh.rank in group and list(group) == sorted(group)
                fixed = [name for name in names if name not in chosen]
                assert all(mesh.coordinate(name, other) == mesh.coordinate(name) for name in fixed for other in group)


@pytest.mark.parametrize("what", [B, W, S])
def test_the_first_copy_is_whole_and_has_each_part_once(every, what):
    split = every[0].axes_that_split(what)
    first = [mesh.rank for mesh in every if mesh.holds_first_copy(what)]
    assert tuple(first) == every[0].first_copy(what) and first[0] == 0
    parts = [tuple(mesh.coordinate(name) for name in split) for mesh in every]
    assert sorted({parts[rank] for rank in first}) == sorted(set(parts)) and len(first) == len(set(parts))


def test_each_batch_has_one_leader(every):
    count = every[0].num_batches
    assert sorted({mesh.batch_index for mesh in every}) == list(range(count))
    leaders = [mesh for mesh in every if mesh.is_batch_leader]
    assert [mesh.batch_index for mesh in leaders] == list(range(count))
    assert tuple(mesh.rank for mesh in leaders) == every[0].batch_leaders
    for mesh in every:
        assert [every[rank].batch_index for rank in mesh.same_batch] == [mesh.batch_index] * len(mesh.same_batch)
        assert len(mesh.same_batch) * count == len(every)
        rows = [f"batch {other.batch_index}" for other in every]
        assert list(mesh.per_batch(rows)) == [f"batch {number}" for number in range(count)]


def test_rows_of_leaders_are_taken(every):
    mesh = every[-1]
    assert list(mesh.per_batch(range(mesh.size))) == list(mesh.batch_leaders)


def test_what_two_by_two_processes_have_in_common():
    data_by_tensor = all_of((("data", 2, B), ("tensor", 2, W | S)))
    assert [mesh.same_batch for mesh in data_by_tensor] == [(0, 1), (0, 1), (2, 3), (2, 3)]
    assert [mesh.same_weights for mesh in data_by_tensor] == [(0, 2), (1, 3), (0, 2), (1, 3)]
    stage1 = all_of((("data", 2, B), ("shard", 2, B | S)))
    assert [mesh.same_batch for mesh in stage1] == [(0,), (1,), (2,), (3,)]
    assert [mesh.same_weights for mesh in stage1] == [(0, 1, 2, 3)] * 4
    assert [mesh.same_optimizer_state for mesh in stage1] == [(0, 2), (1, 3), (0, 2), (1, 3)]


def test_places_have_readable_names():
    mesh = Mesh((Axis("data", 2, B), Axis("shard"), Axis("tensor", 2, W)), 3)
    assert mesh.describe() == "rank 3 (data 1, tensor 1)" and mesh.describe(1) == "rank 1 (data 0, tensor 1)"
    assert mesh.place(2) == "data 1, tensor 0"
    of_batches = Mesh((Axis("data", 2, B), Axis("shard", 2, B)), 3)
    assert of_batches.describe() == "rank 3 (data 1, shard 1)" and of_batches.place(3) == ""
    assert Mesh((Axis("data", 4, B),), 3).describe() == "rank 3" and meshes.SINGLE.describe() == "rank 0"
    assert Mesh((Axis("tensor", 2, W),), 1).place(1) == "tensor 1"


def test_wrong_meshes_are_refused():
    with pytest.raises(ArgumentError, match="each axis once, but got data, data"):
        Mesh((Axis("data"), Axis("data")))
    with pytest.raises(ArgumentError, match="Invalid size 0 of the axis 'data'"):
        Mesh((Axis("data", 0),))
    with pytest.raises(ArgumentError, match="Invalid rank 2 for 2 processes"):
        Mesh((Axis("data", 2),), 2)
    with pytest.raises(KeyError, match="no axis 'tensor', but data"):
        Mesh((Axis("data", 2),)).ranks_along("tensor")


# -- from arguments


def sizes(mesh):
    return {axis.name: axis.size for axis in mesh.axes if axis.size > 1}


def test_data_takes_what_other_axes_leave():
    assert sizes(meshes.build(args(), 3, 4)) == {"data": 4}
    assert sizes(meshes.build(args(), 0, 1)) == {}
    assert sizes(meshes.build(args(sharding="stage2"), 3, 4)) == {"shard": 4}
    mesh = meshes.build(args(sharding="stage2", sharding_degree=2), 3, 4)
    assert sizes(mesh) == {"data": 2, "shard": 2} and (mesh.coordinate("data"), mesh.coordinate("shard")) == (1, 1)
    mesh = meshes.build(args(sharding="stage1", tensor_parallel_size=2, sharding_degree=2), 0, 8)
    assert sizes(mesh) == {"data": 2, "shard": 2, "tensor": 2} and mesh.num_batches == 4
    assert mesh.ranks_along("tensor") == (0, 1) and mesh.ranks_along("shard") == (0, 2)
    assert sizes(meshes.build(args(deepspeed="config.json"), 0, 2)) == {"shard": 2}


def test_stages_decide_what_the_shard_axis_splits():
    def splits(**given):
        return next(axis.splits for axis in meshes.build(args(**given), 0, 2).axes if axis.name == "shard")

    assert splits(sharding="stage1") == B | S
    assert splits(sharding="stage2") == splits(sharding="stage3 offload") == B | W | S


def test_sizes_that_do_not_divide_the_processes_are_refused():
    with pytest.raises(ArgumentError, match="tensor_parallel_size=3. has 3 processes, which do not divide the 4"):
        meshes.build(args(tensor_parallel_size=3), 0, 4)
    with pytest.raises(ArgumentError, match="'tensor' of the mesh .* has 2 processes, .* Start a multiple of 2"):
        meshes.build(args(tensor_parallel_size=2), 0, 1)
    with pytest.raises(ArgumentError, match="'shard' of the mesh has 4 processes.*Start a multiple of 8"):
        meshes.build(args(sharding="stage1", sharding_degree=4, tensor_parallel_size=2), 0, 4)


# -- an axis from outside


@pytest.fixture
def registered():
    names = []

    def register(kind, **given):
        meshes.register(kind, **given)
        names.append(kind.name)

    yield register
    for name in names:
        meshes.unregister(name)


def kind(name, splits=Splits.NOTHING, strategy=None):
    return AxisKind(name, lambda args: splits, meshes.from_argument(f"{name}_size"), strategy)


def test_registered_axes_are_innermost_or_outside_of_another(registered):
    registered(kind("inner"))
    registered(kind("outer"), before="data")
    mesh = meshes.build(args(inner_size=2, outer_size=2), 5, 12)
    assert sizes(mesh) == {"outer": 2, "data": 3, "inner": 2}
    assert [mesh.coordinate(name) for name in ("outer", "data", "inner")] == [0, 2, 1]
    assert mesh.num_batches == 3 and mesh.batch_leaders == (0, 2, 4) and mesh.same_batch == (4, 5, 10, 11)
    with pytest.raises(ArgumentError, match="'inner' is already registered"):
        meshes.register(kind("inner"))


def test_axes_in_use_derive_the_strategy_in_turn(registered):
    class Base:
        pass

    def deriving(name):
        return lambda strategy, framework: type(f"{name}{strategy.__name__}", (strategy,), {"on": framework})

    registered(kind("first", strategy=deriving("First")))
    registered(kind("second", strategy=deriving("Second")))
    both = meshes.build(args(first_size=2, second_size=2), 0, 4)
    made = meshes.derive_strategy(Base, both, "torch")
    assert made.__name__ == "SecondFirstBase" and made.on == "torch" and issubclass(made, Base)
    assert meshes.derive_strategy(Base, meshes.build(args(), 0, 4), "torch") is Base


def test_an_axis_without_a_strategy_is_refused(registered):
    for_torch = lambda strategy, framework: strategy if framework == "torch" else None  # noqa: E731
    registered(kind("toy", strategy=for_torch))
    mesh = meshes.build(args(toy_size=2), 0, 4)
    assert meshes.derive_strategy(object, mesh, "torch") is object
    with pytest.raises(UnsupportedError, match="axis 'toy' of the mesh is not supported on mindspore: .* 2 processes"):
        meshes.derive_strategy(object, mesh, "mindspore")
    mesh = meshes.build(args(tensor_parallel_size=4), 0, 4)
    with pytest.raises(UnsupportedError, match="tensor_parallel_size=4. is not supported on mindspore"):
        meshes.derive_strategy(object, mesh, "mindspore")
    assert meshes.derive_strategy(object, mesh, "torch", {"tensor": lambda strategy: (strategy, str)}) == (object, str)


# -- what does not go together


def test_engines_that_take_all_processes_are_refused_beside_such_an_axis(registered):
    from oneloop.distributed.collectives import ProcessGroup

    registered(kind("toy", strategy=lambda strategy, framework: strategy))
    torch = pytest.importorskip("oneloop.backends.torch.parallel")
    given = args(deepspeed="config.json", toy_size=2)
    with pytest.raises(UnsupportedError, match="deepspeed divides the batch over all processes"):
        torch.strategy(given, ProcessGroup(), meshes.build(given, 0, 4))
    paddle = pytest.importorskip("oneloop.backends.paddle.parallel")
    given = args(sharding="stage2", toy_size=2)
    with pytest.raises(UnsupportedError, match="sharding on Paddle divides the batch over all processes"):
        paddle.strategy(given, ProcessGroup(), meshes.build(given, 0, 4))


class Halved:
    """A stream that divides itself by rank."""

    def __iter__(self):
        import torch.distributed as dist

        return iter(rows(8)[dist.get_rank() :: dist.get_world_size()])


def sampled_by(replicas):
    """A sampler that knows of that many processes."""
    return type("Sampler", (), {"num_replicas": replicas, "__iter__": lambda self: iter(range(8)), "__len__": len})()


@pytest.fixture
def one_of_two_pairs(tmp_path):
    """A Trainer in the last of 2 x 2 processes, of which two have the same batch."""
    pytest.importorskip("torch")
    from tests.backends.kits.torch_kit import Kit

    def make(data, **methods):
        given = TrainingArguments(str(tmp_path), device="cpu", report_to="none", max_steps=1)
        trainer = type("Own", (Trainer,), methods)(Kit().classifier(), given, train_dataset=data)
        trainer._oneloop.mesh = Mesh((Axis("data", 2, B), Axis("toy", 2)), 3)
        return trainer

    return make


def test_data_that_divides_itself_by_rank_is_refused_where_processes_share_a_batch(one_of_two_pairs):
    said = r"divides its samples by rank, but of the 4 processes 2 each have to read the same ones \(rank 3 \(data 1"
    stream = type("Halved", (Halved, torch_stream()), {})()
    with pytest.raises(DataError, match=f"train_dataset: Halved {said}"):
        one_of_two_pairs(stream).get_train_dataloader()
    trainer = one_of_two_pairs(rows(8), _get_train_sampler=lambda self, dataset: sampled_by(4))
    with pytest.raises(DataError, match=f"train_dataset: Sampler {said}"):
        trainer.get_train_dataloader()
    one_of_two_pairs(rows(8), _get_train_sampler=lambda self, dataset: sampled_by(2)).get_train_dataloader()


def torch_stream():
    import torch

    return torch.utils.data.IterableDataset


def test_loaders_of_the_user_are_divided_by_batches(one_of_two_pairs):
    from torch.utils.data import DataLoader, DistributedSampler

    from oneloop.trainer import dataloaders

    core = one_of_two_pairs(rows(8))._oneloop
    assert not dataloaders.is_sharded(core, DataLoader(rows(8)))
    assert dataloaders.length_of(core, DataLoader(rows(8), batch_size=2)) == 2
    assert dataloaders.is_sharded(core, DataLoader(rows(8), sampler=DistributedSampler(rows(8), 2, 1)))
    with pytest.raises(DataError, match="the data loader: DistributedSampler divides its samples by rank"):
        dataloaders.is_sharded(core, DataLoader(rows(8), sampler=DistributedSampler(rows(8), 4, 3)))
    core.mesh = Mesh((Axis("data"), Axis("toy", 2)), 1)
    assert dataloaders.is_sharded(core, DataLoader(rows(8))), "there is one batch, and it is that of all"
    with pytest.raises(DataError, match="of the 2 processes 2 each have to read the same ones"):
        dataloaders.is_sharded(core, DataLoader(rows(8), sampler=DistributedSampler(rows(8), 2, 1)))


@pytest.mark.parametrize(("mesh", "carries"), [(Mesh.of_batches(4), True), (all_of(SHAPES[3])[0], False)])
def test_numbers_for_all_processes_do_not_travel_with_gradients_of_some(mesh, carries):
    """Those of a signal, or of a save that has ended, would not reach processes that have the same batch."""
    torch, ddp = pytest.importorskip("torch"), pytest.importorskip("oneloop.backends.torch.ddp")
    from oneloop.distributed.collectives import ProcessGroup

    class Four(ProcessGroup):
        size = 4

        def subgroup(self, groups):
            return Four()

    names = ("ddp_static_graph", "torch_compile", "fp16")
    strategy = ddp.DataParallelStrategy(
        SimpleNamespace(device=torch.device("cpu"), **dict.fromkeys(names)), Four(), mesh
    )
    strategy.engine_runs_backward = True
    assert strategy._can_piggyback() is carries
