"""Sharding: what stage 1 cannot divide is refused before anything is divided, and what stages 2 and 3 ask of Paddle."""

from types import SimpleNamespace

import pytest

from oneloop import TrainingArguments
from oneloop.backends.loading import load
from oneloop.distributed.collectives import ProcessGroup
from oneloop.distributed.mesh import build
from oneloop.errors import UnsupportedError
from tests.backends.kits.paddle_kit import Kit
from tests.backends.support import names

if "paddle" not in names():
    pytest.skip("Paddle is not installed", allow_module_level=True)


@pytest.fixture
def stage1(tmp_path):
    processes = ProcessGroup()
    processes.size = 2
    args = TrainingArguments(str(tmp_path), device="cpu", sharding="stage1", weight_decay=0.1, optim="sgd")
    return load("paddle").parallel.strategy(args, processes, build(args, processes.rank, processes.size))


def test_an_optimizer_that_is_built_already_is_refused(stage1):
    with pytest.raises(UnsupportedError, match="but got an existing SGD. Pass its class and options"):
        stage1.prepare_optimizer(Kit().sgd(Kit().classifier()))


def test_float16_is_refused_where_paddle_shards_by_itself(monkeypatch, tmp_path):
    """On an accelerator. Stage 2 is oneloop's own."""
    from oneloop.backends.paddle import unsupported

    monkeypatch.setattr(unsupported, "world", lambda: SimpleNamespace(size=2))

    def reasons(sharding):
        args = TrainingArguments(str(tmp_path), device="cpu", sharding=sharding, fp16=True, save_strategy="no")
        return [each.why for each in unsupported.UNSUPPORTED if not each.devices and each.when(args)]

    assert reasons("stage1") == reasons("stage2") == []
    for sharding in ("stage3", "stage2 offload"):
        assert reasons(sharding) == ["its loss scale is not supported"]


def test_every_group_of_gloo_has_its_own_store(monkeypatch):
    """Paddle stores the addresses of members by their ranks alone, so in one store groups would overwrite each other's.
    A group of one member needs none."""
    from paddle import distributed as dist
    from paddle.distributed import collective

    from oneloop.backends.paddle import fleet_groups

    processes, stores, barriers = ProcessGroup(), [], []
    monkeypatch.setattr(dist, "get_backend", lambda: "GLOO")
    monkeypatch.setattr(dist, "new_group", lambda ranks: stores.append(collective._default_store) or ranks)
    monkeypatch.setattr(collective, "_default_store", "the launcher's")
    monkeypatch.setattr(fleet_groups, "rendezvous", lambda: ("127.0.0.1", 1))
    monkeypatch.setattr(processes, "barrier", lambda: barriers.append(len(stores)))
    before = dist.new_group
    with fleet_groups.stores_of_groups(processes):
        assert [dist.new_group(ranks) for ranks in ([0, 1], [2, 3], [1])] == [[0, 1], [2, 3], [1]]
        for store, word in zip(stores, ("first", "second")):
            store.set("0", word)
        assert [store.get("0").decode() for store in stores[:2]] == ["first", "second"]
        assert stores[2] == "the launcher's"
    assert barriers == [1, 2] and collective._default_store == "the launcher's" and dist.new_group is before


def test_groups_are_made_once_and_of_as_many_processes(monkeypatch):
    """Four processes of which two share a copy of the state: two copies. Fleet makes no other groups later."""
    from paddle.distributed import fleet

    from oneloop.backends.paddle import fleet_groups

    made, plans = SimpleNamespace(get_sharding_parallel_world_size=lambda: 2), []
    processes = ProcessGroup()
    processes.size = 4
    monkeypatch.setattr(fleet_groups.dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(fleet, "init", lambda is_collective, strategy: plans.append(strategy.hybrid_configs))
    monkeypatch.setattr(fleet, "get_hybrid_communicate_group", lambda: made)
    monkeypatch.setattr(fleet.fleet, "_hcg", None, raising=False)
    assert fleet_groups.groups_of(processes, 2) is made
    (plan,) = plans
    assert (plan["dp_degree"], plan["sharding_degree"]) == (2, 2)
    monkeypatch.setattr(fleet.fleet, "_hcg", made)
    assert fleet_groups.groups_of(processes, 2) is made and len(plans) == 1
    with pytest.raises(UnsupportedError, match="sharding_degree=4.*already.*groups of 2"):
        fleet_groups.groups_of(processes, 4)


def test_the_store_of_the_launcher_is_in_the_main_process(monkeypatch):
    from oneloop.backends.paddle.parallel import rendezvous

    for name in ("MASTER_ADDR", "MASTER_PORT", "PADDLE_MASTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PADDLE_TRAINER_ENDPOINTS", "10.0.0.1:6170,10.0.0.2:6171")
    assert rendezvous() == ("10.0.0.1", 6170)
    monkeypatch.setenv("PADDLE_MASTER", "10.0.0.3:80")
    assert rendezvous() == ("10.0.0.3", 80)
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.4")
    monkeypatch.setenv("MASTER_PORT", "81")
    assert rendezvous() == ("10.0.0.4", 81)


# -- stages 2 and 3, which Paddle runs on accelerators alone: what it is asked, with a stand-in for its answer


@pytest.fixture
def asked(monkeypatch):
    """How group_sharded_parallel was called. The stand-in divides nothing."""
    import paddle.distributed.sharding

    calls = []

    def stand_in(model, optimizer, level, **options):
        calls.append({"level": level, "clip": optimizer._grad_clip, **options})
        return model, optimizer, None

    monkeypatch.setattr(paddle.distributed.sharding, "group_sharded_parallel", stand_in)
    return calls


def divided(folder, **given):
    processes = ProcessGroup()
    processes.size = 2
    args = TrainingArguments(str(folder), device="cpu", max_grad_norm=0.5, **given)
    return load("paddle").parallel.strategy(args, processes, build(args, processes.rank, processes.size))


@pytest.mark.parametrize(("stage", "level"), [("stage2 offload", "os_g"), ("stage3", "p_g_os")])
def test_the_model_and_its_optimizer_are_given_to_paddle(stage, level, asked, tmp_path):
    strategy, model = divided(tmp_path, sharding=stage, ddp_broadcast_buffers=False), Kit().classifier()
    strategy.model = model
    optimizer = strategy.prepare_optimizer(Kit().sgd(model))
    (call,) = asked
    assert (call["level"], call["sync_buffers"], call["group"]) == (level, False, None)
    assert call["offload"] == ("offload" in stage)
    assert call["clip"].clip_norm == 0.5
    assert strategy.forward_module(None) is model
    with pytest.raises(UnsupportedError, match="save_only_model=True"):
        strategy.optimizer_state(optimizer, model)
    with pytest.raises(UnsupportedError, match="a run cannot resume from one"):
        strategy.load_optimizer(optimizer, model, {}, {}, "")


def test_an_update_of_a_divided_model(asked, tmp_path):
    """Paddle clips and steps; a batch that is computed for the others' sake leaves nothing."""
    import paddle

    strategy, model = divided(tmp_path, sharding="stage3"), Kit().classifier()
    strategy.model = model
    optimizer = strategy.prepare_optimizer(Kit().sgd(model))
    engine = strategy.engine_class(None)(model, "cpu")
    engine.strategy = strategy
    weight = next(iter(model.parameters()))

    def step(loss):
        engine.backward(loss)
        gradient = float(weight.grad.abs().sum())
        engine.prepare_update(optimizer, loss)
        found = engine.apply_update(optimizer, 7)
        engine.clear()
        return gradient, found

    before = weight.numpy().copy()
    with strategy.discard_gradients(model):
        assert step((weight * weight).sum()) == (0.0, None)
    assert (weight.numpy() == before).all()
    gradient, found = step((weight * weight).sum())
    assert gradient > 0 and found is None and not (weight.numpy() == before).all()
    changed = weight.numpy().copy()
    assert step((weight * float("nan")).sum())[1] == 7
    assert (weight.numpy() == changed).all()
    assert weight.grad is None or not paddle.any(weight.grad)
