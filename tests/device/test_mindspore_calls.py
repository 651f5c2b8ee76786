"""What the Trainer tells MindSpore about an Ascend device: Python cannot define a device for MindSpore."""

import pytest

from oneloop import Trainer
from tests.backends.support import DEVICE, kit_module, names, rows
from tests.device.recording import Calls

if "mindspore" not in names() or DEVICE != "cpu":
    pytest.skip("MindSpore is not installed", allow_module_level=True)

KIT = kit_module("mindspore").Kit()
RUN = {"per_device_train_batch_size": 4, "max_steps": 2, "logging_steps": 2, "device": "npu"}


@pytest.fixture
def calls(monkeypatch):
    """An Ascend device that MindSpore seems to have. The CPU computes."""
    import mindspore as ms

    from oneloop.backends.mindspore import bootstrap, devices

    calls = Calls()
    devices.available.cache_clear()
    monkeypatch.setattr(ms.hal, "is_available", lambda target: target == "Ascend")
    monkeypatch.setattr(ms.hal, "device_count", lambda target: 2)
    calls.stand_in(monkeypatch, ms, "set_device", None)
    calls.stand_in(monkeypatch, bootstrap, "configure_execution", None)
    for name, answer in (
        ("memory_allocated", 1000),
        ("max_memory_allocated", 3000),
        ("reset_peak_memory_stats", None),
        ("empty_cache", None),
    ):
        calls.stand_in(monkeypatch, ms.runtime, name, answer)
    yield calls
    devices.available.cache_clear()


def test_the_device_of_the_process_is_set_and_its_memory_is_measured(calls, trained):
    trainer = trained(KIT.classifier(), rows(8), skip_memory_metrics=False, **RUN)
    assert str(trainer.args.device) == "npu:0"
    first, second = calls.of("set_device", "configure_execution")[:2]
    assert first == ("set_device", ("Ascend", 0), {}) and second == ("configure_execution", ("Ascend",), {})
    assert trainer.result.metrics["train_mem_gpu_peaked_delta"] == 2000
    assert calls.count("reset_peak_memory_stats") >= 1


def test_the_number_of_a_device_and_one_that_is_not_there(calls, arguments):
    from oneloop.errors import ArgumentError

    assert str(Trainer(KIT.classifier(), arguments(device="npu:1")).args.device) == "npu:1"
    with pytest.raises(ArgumentError, match=r"MindSpore \S+ finds 2 Ascend"):
        Trainer(KIT.classifier(), arguments(device="npu:2"))


def test_memory_is_freed_after_an_error_about_it(calls, trained):
    class Fails(type(KIT.classifier())):
        left = 1

        def construct(self, x, labels=None):
            if Fails.left:
                Fails.left -= 1
                raise RuntimeError("Alloc memory failed")
            return super().construct(x, labels)

    trainer = trained(Fails(), rows(8), auto_find_batch_size=True, **RUN)
    assert calls.count("empty_cache") >= 1 and trainer.state.global_step == 2
