"""save_interval_minutes: the time since the last save counts, whatever that one was asked for by."""

from types import SimpleNamespace

import pytest

from oneloop import TrainerControl, TrainerState
from oneloop.callbacks import flow

ARGS = {"logging_first_step": False, "logging_strategy": "no", "eval_strategy": "no", "eval_delay": 0}


@pytest.fixture
def run(monkeypatch):
    """run(args, seconds of each step): the steps after which a checkpoint is asked for."""

    def steps(moments, **given):
        args, state = (
            SimpleNamespace(**ARGS | {"save_strategy": "no", "save_interval_minutes": 1.0} | given),
            TrainerState(),
        )
        state.save_steps = given.get("save_steps", 0)
        clock = [1000.0]
        monkeypatch.setattr(flow.time, "monotonic", lambda: clock[0])
        callback, control, saved = flow.DefaultFlowCallback(), TrainerControl(), []
        clock[0] += 500.0  # building the Trainer and its data took its time
        begin = clock[0]
        callback.on_train_begin(args, state, control)
        for step, moment in enumerate(moments, 1):
            clock[0], state.global_step, control.should_save = begin + moment, step, given.get("asked") == step
            callback.on_step_end(args, state, control)
            saved += [step] * control.should_save
        return saved

    return steps


def test_a_save_a_minute_from_the_first_step_on(run):
    assert run([59, 60, 61, 119, 120, 181]) == [2, 5, 6]


def test_a_save_by_steps_puts_the_next_one_off(run):
    assert run([50, 100, 111, 160, 169, 170], save_strategy="steps", save_steps=2) == [2, 4, 6]
    assert run([50, 61, 100, 120, 121], save_strategy="steps", save_steps=3) == [2, 3]
    assert run([50, 61, 100, 120, 160], save_strategy="steps", save_steps=3) == [2, 3, 5]


def test_a_save_that_a_callback_asked_for_does_too(run):
    assert run([30, 61, 89, 90], asked=1) == [1, 4]


def test_without_an_interval_the_clock_does_not_count(run):
    assert run([100, 200, 300], save_interval_minutes=None) == []
