"""Averages of losses and figures of speed, and what they do in odd cases."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from oneloop.backends import loading
from oneloop.trainer import meter as meters
from oneloop.trainer.losses import LossCurve, LossMeter
from oneloop.trainer.meter import speed_metrics
from oneloop.trainer.part import Parts


@pytest.fixture
def meter(backend):
    return lambda skip=False: losses_of(loading.load(backend.name), skip)


def losses_of(backend, skip):
    args = SimpleNamespace(logging_nan_inf_filter=skip, nonfinite="stop")
    context = SimpleNamespace(args=args, backend=backend, parts=Parts())
    context.parts.add(LossCurve(context))
    return LossMeter(context)


def add(meter, backend, *losses):
    for loss in losses:
        meter.end_update(1, backend.tensor(np.float32(loss)))


def test_the_average_since_the_last_log_and_over_the_run(meter, backend):
    losses = meter()
    assert losses.pop_average() is None and losses.average() == 0.0
    add(losses, backend, 1.0, 2.0, 6.0)
    assert losses.pop_average() == 3.0
    assert losses.pop_average() is None, "there was no step since"
    add(losses, backend, 5.0)
    assert losses.average() == 3.5
    assert losses.pop_average() == 5.0 and losses.average() == 3.5


def test_losses_are_read_before_there_are_too_many(meter, backend):
    losses = meter()
    add(losses, backend, *[0.5] * 511)
    assert losses.steps == 0, "they lie on the device until somebody asks, or until there are 512"
    add(losses, backend, 0.5)
    assert (losses.steps, losses.total) == (512, 256.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_losses_that_are_not_finite(meter, backend, bad):
    """Left out, they count as the mean of the others; else they show."""
    skipping, plain = meter(True), meter()
    for losses in (skipping, plain):
        add(losses, backend, 2.0, bad, 4.0)
    assert skipping.pop_average() == 3.0 and skipping.average() == 3.0
    assert not math.isfinite(plain.pop_average())


def test_nothing_but_losses_that_are_not_finite(meter, backend):
    losses = meter(True)
    add(losses, backend, math.nan)
    assert math.isnan(losses.pop_average()) and math.isnan(losses.average()) and losses.pop_average() is None
    add(losses, backend, 2.0)
    assert losses.pop_average() == 2.0 and losses.average() == 2.0


def test_a_resumed_meter_knows_of_losses_that_are_not_finite(meter, backend):
    stopped, resumed = meter(True), meter(True)
    add(stopped, backend, math.nan)
    resumed.load(stopped.state(), None)
    assert math.isnan(resumed.pop_average()) and math.isnan(resumed.average())


def test_a_resumed_meter_goes_on_with_the_same_bits(meter, backend):
    straight, stopped, resumed = meter(), meter(), meter()
    for losses in (straight, stopped):
        add(losses, backend, 0.1, 1 / 3)
        losses.read()  # as a save does
    resumed.load(stopped.state(), None)
    for losses in (straight, resumed):
        add(losses, backend, 1e-9, 7.7)
    assert resumed.average().hex() == straight.average().hex() and resumed.steps == straight.steps == 4
    assert resumed.pop_average().hex() == straight.pop_average().hex()


@pytest.mark.parametrize("value", [math.inf, -0.0, 0.1, 5e-324])
def test_the_state_of_a_meter_is_exact(value):
    first = losses_of(None, False)
    first.total = first.since_log = value
    second = losses_of(None, False)
    second.load(first.state(), None)
    assert (second.total.hex(), second.since_log.hex()) == (value.hex(), value.hex())


# -- speed


@pytest.fixture
def now(monkeypatch):
    """It is 1000 seconds after the beginning of time."""
    monkeypatch.setattr(meters.time, "time", lambda: 1000.0)


def test_speed(now):
    assert speed_metrics("train", 992.0, 100, 20, 3) == {
        "train_runtime": 8.0,
        "train_samples_per_second": 12.5,
        "train_steps_per_second": 2.5,
        "train_tokens_per_second": 0.375,
    }


def test_speed_of_what_is_known(now):
    assert speed_metrics("eval", 998.0) == {"eval_runtime": 2.0}
    assert speed_metrics("eval_dev", 997.0, num_steps=1) == {
        "eval_dev_runtime": 3.0,
        "eval_dev_steps_per_second": 0.333,
    }
    assert speed_metrics("test", 990.0, 0) == {"test_runtime": 10.0, "test_samples_per_second": 0.0}


@pytest.mark.parametrize("start", [1000.0, 1003.0], ids=["no time", "the clock was set back"])
def test_no_speed_without_time(now, start):
    assert speed_metrics("train", start, 100, 20) == {"train_runtime": 1000.0 - start}


def test_memory_in_use():
    assert meters.resident_bytes() > 1 << 20 and meters.peak_resident_bytes() > 1 << 20


class Memory:
    """An accelerator that has so much allocated, or none."""

    def __init__(self, *allocated):
        self.left, self.resets = list(allocated), 0

    @property
    def memory(self):
        return self

    def reset_peak(self, device):
        self.resets += 1

    def allocated(self, device):
        return self.left.pop(0)

    def peak(self, device):
        return 900


def test_memory_of_a_stage(monkeypatch):
    held = iter([1000, 1600])
    monkeypatch.setattr(meters, "resident_bytes", lambda: next(held))
    monkeypatch.setattr(meters, "peak_resident_bytes", lambda: 2100)
    tracker, device, metrics = meters.MemoryTracker(True), Memory(100, 700), {"loss": 1.0}
    tracker.start("train", device, None)
    tracker.stop("train", device, None, metrics)
    tracker.stop("train", device, None, metrics)  # it is over already
    assert metrics == {
        "loss": 1.0,
        "train_mem_cpu_alloc_delta": 600,
        "train_mem_cpu_peaked_delta": 500,
        "train_mem_gpu_alloc_delta": 600,
        "train_mem_gpu_peaked_delta": 200,
    }
    assert device.resets == 1


def test_memory_that_nobody_asked_for():
    tracker, metrics = meters.MemoryTracker(False), {}
    tracker.start("train", None, None)
    tracker.stop("train", None, None, metrics)
    assert metrics == {}
