"""The optimizer's state is copied while the next gradients are computed, and the files never show it."""

import logging
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from oneloop import TrainerCallback
from oneloop.checkpoint import copies
from oneloop.checkpoint.copies import LateCopies
from oneloop.errors import StateChangedError
from tests.checkpoint.job import contents as contents_of

KEEP_ALL = ("--set", "save_total_limit=null")


@pytest.fixture
def slow_copies(monkeypatch):
    """Every copy is late, and takes so long that training would overtake it; the threads that copied."""
    threads, run = [], LateCopies._run

    def slowly(late):
        threads.append(threading.current_thread())
        time.sleep(0.05)
        run(late)

    monkeypatch.setattr(copies.Buffers, "WORTH_A_THREAD", 0)
    monkeypatch.setattr(LateCopies, "_run", slowly)
    return threads


def same(tmp_path, *steps):
    for step in steps:
        ours, calm = (contents_of(tmp_path / run / f"checkpoint-{step}") for run in ("run", "calm"))
        assert ours == calm, step


def test_the_optimizer_step_waits(trainer, tmp_path, slow_copies):
    trainer(*KEEP_ALL, "--set", "save_async=false", output=tmp_path / "calm").train()
    assert slow_copies == [], "a save that nobody goes on during copies at once"
    trainer(*KEEP_ALL).train()
    assert len(slow_copies) >= 7
    same(tmp_path, 3, 9, 22)


def test_a_step_of_the_users_waits_too(trainer, tmp_path, slow_copies, monkeypatch):
    """training_step may step the optimizer by itself, as adversarial training does."""

    def train(output):
        made = trainer(*KEEP_ALL, output=output)
        original = made.training_step

        def stepping(*given, **kwargs):
            loss = original(*given, **kwargs)
            if made.state.global_step == 3:
                made.optimizer.step()
            return loss

        made.training_step = stepping
        made.train()

    train(tmp_path / "run")
    monkeypatch.setattr(copies.Buffers, "WORTH_A_THREAD", 1 << 60)
    train(tmp_path / "calm")
    assert slow_copies
    same(tmp_path, 3, 6, 22)


class Reset(TrainerCallback):
    """Zeroes the moments at the beginning of the step after a save, as ReLoRA does."""

    def on_step_begin(self, args, state, control, optimizer=None, **kwargs):
        if state.global_step == 3:
            for values in optimizer.state.values():
                values["exp_avg"].zero_()


def test_callbacks_wait_as_well(trainer, tmp_path, slow_copies):
    trainer(*KEEP_ALL, "--set", "save_async=false", callbacks=[Reset()], output=tmp_path / "calm").train()
    trainer(*KEEP_ALL, callbacks=[Reset()]).train()
    assert slow_copies
    same(tmp_path, 3, 6, 22)


def test_a_disturbed_copy_is_not_saved(trainer, tmp_path, slow_copies, caplog):
    """Code that nothing waits for changes a moment: that checkpoint is left out, and later saves copy at once."""
    made = trainer(*KEEP_ALL)
    original = made.compute_loss

    def disturbing(*given, **kwargs):
        if made.state.global_step == 3:
            next(iter(made.optimizer.state.values()))["exp_avg"].add_(1)
        return original(*given, **kwargs)

    made.compute_loss = disturbing
    with caplog.at_level(logging.ERROR, "oneloop"):
        made.train()
    assert not (tmp_path / "run" / "checkpoint-3").exists()
    assert (tmp_path / "run" / "checkpoint-6" / "manifest.json").exists()
    assert "checkpoint-3 was NOT saved: the optimizer's state was changed while it was being copied" in caplog.text
    assert len(slow_copies) == 1


def test_a_change_during_the_copy_is_an_error():
    class Counted:
        version = 0

    first, second = Counted(), Counted()
    copied = []

    def copy_to(tensor, buffer):
        second.version += tensor is first
        copied.append(buffer)

    late = LateCopies([(first, "a"), (second, "b")], copy_to, lambda tensor: tensor.version)
    with pytest.raises(StateChangedError):
        late.check()
    assert copied == ["a", "b"]


def test_an_error_of_the_copy_reaches_the_writer():
    def copy_to(tensor, buffer):
        raise MemoryError("no room")

    late = LateCopies([(np.zeros(1), None)], copy_to, lambda tensor: 0)
    late.wait()
    with pytest.raises(MemoryError, match="no room"):
        late.check()


def copied(tensor, buffer):
    buffer = np.empty_like(tensor) if buffer is None else buffer
    np.copyto(buffer, tensor)
    return buffer


def test_buffers_of_another_shape_or_type_are_replaced():
    """A callback may add parameters, or thaw some."""
    weights, buffers = SimpleNamespace(room=np.empty_like, copy_to=copied), copies.Buffers()
    for tensor in (np.ones((2, 3), np.float32), np.ones((3, 2), np.float32), np.ones((3, 2), np.float64)):
        before = buffers.copy_late({"moment": tensor}, weights, lambda tensor: 0)["moment"]
        buffers.late.check()
        assert (before.shape, before.dtype) == (tensor.shape, tensor.dtype) and (before == 1).all()
        assert buffers.copy_late({"moment": tensor}, weights, lambda tensor: 0)["moment"] is before


def test_the_next_save_waits_for_a_late_copy():
    goes_on, buffers = threading.Event(), copies.Buffers()

    def slowly(tensor, buffer):
        assert goes_on.wait(60)
        return copied(tensor, buffer)

    weights = SimpleNamespace(room=np.empty_like, copy_to=slowly)
    buffers.copy_late({"moment": np.zeros(2)}, weights, lambda tensor: 0)
    threading.Timer(0.05, goes_on.set).start()
    buffers.copy({"moment": np.ones(2)}, copied)
    assert goes_on.is_set() and buffers._kept["moment"].tolist() == [1.0, 1.0]


def test_wrappers_of_optimizers_are_not_trusted():
    torch = pytest.importorskip("torch")
    from oneloop.backends.torch.optimizers import before_next_step

    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter])

    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner):
            self.inner = inner

        def step(self, closure=None):
            return self.inner.step(closure)

    called = []
    assert before_next_step(optimizer, lambda: called.append(1))
    assert not before_next_step(Wrapper(optimizer), lambda: called.append(2))
    optimizer.step()
    optimizer.step()
    assert called == [1]
