"""The acceptance kit on the simulated accelerator: what it can measure, it measures."""

import gc

import pytest
import torch

from oneloop.accept import Failed
from oneloop.accept.checks import BY_NAME
from oneloop.accept.place import Place
from oneloop.backends.torch.engine import Engine
from tests.device.simulated import NAME


@pytest.fixture
def place(tmp_path):
    gc.collect()  # the kit has a process for each check: what another one has left on the device is not measured
    return Place(tmp_path, "torch", NAME)


def fails(place, name, words):
    with pytest.raises(Failed, match=words):
        BY_NAME[name].run(place)


@pytest.mark.parametrize("name", ["train", "accumulation", "bf16", "fp16", "save_stall", "plan"])
def test_checks_pass(place, name):
    assert BY_NAME[name].run(place)


def test_fp16_without_a_scale(place, monkeypatch):
    monkeypatch.setattr(Engine, "loss_scale", lambda self: None)
    fails(place, "fp16", "there is no loss scale")


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_plan_that_is_wrong(place, monkeypatch, factor):
    measure = torch.npu.max_memory_allocated
    monkeypatch.setattr(torch.npu, "max_memory_allocated", lambda *given: int(measure(*given) * factor))
    fails(place, "plan", "MB were planned and .* MB measured")


def test_a_run_on_the_wrong_device(place):
    with pytest.raises(Failed, match="the Trainer chose cpu, but this machine has npu"):
        place.trainer("x", use_cpu=True)
