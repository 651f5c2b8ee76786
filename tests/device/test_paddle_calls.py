"""What the Trainer tells Paddle about a GPU, and when it reads from it: Python cannot define a device for Paddle."""

import pytest

from oneloop import TrainerCallback
from tests.backends.support import DEVICE, kit_module, names, rows
from tests.device.recording import Calls

if "paddle" not in names() or DEVICE != "cpu":
    pytest.skip("Paddle is not installed", allow_module_level=True)

KIT = kit_module("paddle").Kit()
RUN = {"per_device_train_batch_size": 4, "max_steps": 4, "logging_steps": 4, "device": "gpu"}
READS = ("item", "numpy", "tolist")


@pytest.fixture
def calls(monkeypatch):
    """A GPU that Paddle seems to have. Its tensors are those of the CPU."""
    import paddle

    from oneloop.backends.paddle import devices

    calls = Calls()
    monkeypatch.setattr(devices, "available", lambda kind: int(kind in ("cpu", "gpu")))
    monkeypatch.setattr(paddle.device.cuda, "get_device_name", lambda device=None: "recorded GPU")
    calls.stand_in(monkeypatch, paddle, "set_device", None)
    calls.stand_in(monkeypatch, paddle.nn.Layer, "to", lambda layer, **given: layer)
    calls.stand_in(monkeypatch, paddle.Tensor, "to", lambda tensor, device, blocking=None: tensor)
    calls.stand_in(monkeypatch, paddle.Tensor, "pin_memory", lambda tensor: tensor)
    for name, answer in (
        ("memory_allocated", 1000),
        ("max_memory_allocated", 3000),
        ("reset_max_memory_allocated", None),
        ("empty_cache", None),
    ):
        calls.stand_in(monkeypatch, paddle.device.cuda, name, answer)
    for name in READS:
        calls.listen(monkeypatch, paddle.Tensor, name)
    return calls


class Steps(TrainerCallback):
    """Reads of each step."""

    def __init__(self, calls):
        self.calls = calls
        self.reads = []

    def on_step_begin(self, args, state, control, **kwargs):
        self._before = self.calls.count(*READS)

    def on_step_end(self, args, state, control, **kwargs):
        self.reads.append(self.calls.count(*READS) - self._before)


def test_the_model_is_placed_first_and_batches_are_moved_without_waiting(calls, trained):
    trained(KIT.classifier(), rows(16), **RUN)
    moves = [(args[1:], kwargs) for name, args, kwargs in calls.of("to")]
    assert calls.of("set_device", "to")[0] == ("set_device", ("gpu:0",), {})
    assert moves[0] == ((), {"device": "gpu:0"}), "the model"
    moved = [move for move in moves if "blocking" in move[1]]
    assert moved == [(("gpu:0",), {"blocking": False})] * 8, "inputs and labels of four batches"


@pytest.mark.parametrize("optim", ["adamw_torch", "sgd"])
@pytest.mark.parametrize("nonfinite, reads", [("stop", 2), ("ignore", 0)])
def test_what_a_step_reads(calls, trained, optim, nonfinite, reads):
    """The norm and the loss, at once, unless nobody asks whether they are finite: Paddle's optimizers have no mask."""
    steps = Steps(calls)
    trained(KIT.classifier(), rows(16), callbacks=[steps], optim=optim, nonfinite=nonfinite, **RUN)
    assert steps.reads == [reads] * 4


def test_memory_figures_are_asked_of_the_device(calls, trained):
    trainer = trained(KIT.classifier(), rows(16), skip_memory_metrics=False, **RUN)
    assert trainer.result.metrics["train_mem_gpu_peaked_delta"] == 2000
    assert ("max_memory_allocated", ("gpu:0",), {}) in calls.made


def test_memory_is_freed_after_an_error_about_it(calls, trained):
    model = KIT.classifier()
    forward, failed = model.forward, []

    def fails_once(x, labels=None):
        if not failed:
            failed.append(len(x))
            raise RuntimeError("ResourceExhaustedError: Out of memory error on GPU 0.")
        return forward(x, labels)

    model.forward = fails_once
    trainer = trained(model, rows(16), auto_find_batch_size=True, **RUN)
    assert failed == [4] and calls.count("empty_cache") >= 1 and trainer.state.global_step == 4
