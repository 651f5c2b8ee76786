"""Which callbacks may ask the Trainer for something, as several processes have to know."""

import functools

import pytest

from oneloop.callbacks import (
    EVENTS,
    CallbackHandler,
    DefaultFlowCallback,
    EarlyStoppingCallback,
    PrinterCallback,
    TrainerCallback,
)
from oneloop.introspect import may_change_control


class Quiet(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        self.last = state.global_step
        return control

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs = [dict(logs), args.output_dir]


class Silent(TrainerCallback):
    pass


class Stops(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3:
            control.should_training_stop = True


class OtherName(TrainerCallback):
    def on_step_end(self, arguments, run, flags, **kwargs):
        flags.should_save = True


class HandsOn(TrainerCallback):
    def on_log(self, args, state, control, **kwargs):
        self.decide(state, control)

    def decide(self, state, flags):
        flags.should_save = True


class Collects(TrainerCallback):
    def on_step_end(self, *given, **kwargs):
        given[2].should_save = True


class ByTheTrainer(TrainerCallback):
    def on_step_end(self, args, state, _, **kwargs):
        self.look()

    def look(self):
        self.trainer.control.should_save = True


class Inner(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        def later():
            control.should_save = True

        later()


class Inherits(Stops):
    pass


class Wrapped(TrainerCallback):
    on_step_end = functools.partial(print)


class New(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        return state.another_control


@pytest.mark.parametrize("cls", [Quiet, Silent, DefaultFlowCallback, EarlyStoppingCallback, PrinterCallback])
def test_those_that_only_look_on(cls):
    assert not may_change_control(cls(), EVENTS)


@pytest.mark.parametrize("cls", [Stops, OtherName, HandsOn, Collects, ByTheTrainer, Inner, Inherits, Wrapped, New])
def test_those_that_may_change_control(cls):
    assert may_change_control(cls(), EVENTS)


def test_one_that_holds_a_trainer():
    callback = Quiet()
    callback.owner = type("Owner", (), {"callback_handler": None})()
    assert may_change_control(callback, EVENTS)


def test_one_whose_event_is_set_on_the_instance():
    callback = Silent()
    callback.on_step_end = lambda args, state, control, **kwargs: None
    assert may_change_control(callback, EVENTS)


def test_the_handler_looks_again_when_callbacks_change():
    handler = CallbackHandler([Quiet()], None, None, None, None)
    assert not handler.may_change_control
    handler.add_callback(Stops)
    assert handler.may_change_control
    handler.remove_callback(Stops)
    assert not handler.may_change_control
