"""Sharding: what stage 1 cannot divide is refused before anything is divided, and what stages 2 and 3 ask of Paddle."""

import pytest

from oneloop import TrainingArguments
from oneloop.backends import load
from oneloop.distributed.collectives import ProcessGroup
from oneloop.errors import RefusedError
from tests.backends.kits.paddle_kit import Kit
from tests.backends.support import names

if "paddle" not in names():
    pytest.skip("Paddle is not installed", allow_module_level=True)


@pytest.fixture
def stage1(tmp_path):
    processes = ProcessGroup()
    processes.size = 2
    args = TrainingArguments(str(tmp_path), device="cpu", sharding="stage1", weight_decay=0.1, optim="sgd")
    return load("paddle").parallel.strategy(args, processes)


def test_an_optimizer_that_is_built_already_is_refused(stage1):
    with pytest.raises(RefusedError, match="but got an existing SGD. Pass its class and options"):
        stage1.take_optimizer(Kit().sgd(Kit().classifier()))


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
    return load("paddle").parallel.strategy(args, processes)


@pytest.mark.parametrize(("stage", "level"), [("stage2 offload", "os_g"), ("stage3", "p_g_os")])
def test_the_model_and_its_optimizer_are_given_to_paddle(stage, level, asked, tmp_path):
    strategy, model = divided(tmp_path, sharding=stage, ddp_broadcast_buffers=False), Kit().classifier()
    strategy.model = model
    optimizer = strategy.take_optimizer(Kit().sgd(model))
    (call,) = asked
    assert (call["level"], call["sync_buffers"], call["group"]) == (level, False, None)
    assert call["offload"] == ("offload" in stage)
    assert call["clip"].clip_norm == 0.5
    assert strategy.called(None) is model
    with pytest.raises(RefusedError, match="save_only_model=True"):
        strategy.optimizer_state(optimizer, model)
    with pytest.raises(RefusedError, match="a run cannot resume from one"):
        strategy.load_optimizer(optimizer, model, {}, {}, "")


def test_an_update_of_a_divided_model(asked, tmp_path):
    """Paddle clips and steps; a batch that is computed for the others' sake leaves nothing."""
    import paddle

    strategy, model = divided(tmp_path, sharding="stage3"), Kit().classifier()
    strategy.model = model
    optimizer = strategy.take_optimizer(Kit().sgd(model))
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
    with strategy.muted(model):
        assert step((weight * weight).sum()) == (0.0, None)
    assert (weight.numpy() == before).all()
    gradient, found = step((weight * weight).sum())
    assert gradient > 0 and found is None and not (weight.numpy() == before).all()
    changed = weight.numpy().copy()
    assert step((weight * float("nan")).sum())[1] == 7
    assert (weight.numpy() == changed).all()
    assert weight.grad is None or not paddle.any(weight.grad)
