"""Class attributes that overrule what oneloop reads off a user's code, and the log of the decision."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest

from oneloop import Trainer, TrainerCallback
from oneloop.callbacks import CallbackHandler
from oneloop.data.process_sharding import ProcessShard, shards_itself
from oneloop.distributed.step_sync import SharedUpdate
from oneloop.introspect import class_overrides
from oneloop.trainer.internals import internals_of
from oneloop.trainer.loss import LossContract
from oneloop.trainer.update import Update
from tests.backends.support import largest_difference, rows, same_bytes, tagged

LENGTHS = [5, 1, 3, 2, 4, 5, 1, 2]  # tokens with labels: micro-batches of unequal weight
RUN = {"optim": "sgd", "learning_rate": 0.5, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}


@pytest.fixture
def decisions(caplog):
    """The decisions about a question that have been logged."""
    caplog.set_level(logging.DEBUG, logger="oneloop.introspect")

    def of(question):
        records = [record for record in caplog.records if record.name == "oneloop.introspect"]
        assert {record.levelno for record in records} <= {logging.DEBUG}
        return [text for text in (record.getMessage() for record in records) if text.startswith(f"{question} of ")]

    return of


# -- loss_is_divided


def looks_at_items(**attributes):
    """A Trainer whose compute_loss reads num_items_in_batch and returns a mean all the same."""

    class Looks(Trainer):
        seen = ()

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            self.seen = (*self.seen, num_items_in_batch)
            return super().compute_loss(model, inputs, return_outputs)

    for name, value in attributes.items():
        setattr(Looks, name, value)
    return Looks


def divides_by_attribute(**attributes):
    """A Trainer whose compute_loss divides by a number that it has from elsewhere."""

    class Divides(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False):
            loss = super().compute_loss(model, inputs)
            return loss * (int((np.asarray(inputs["labels"]) != -100).sum()) / sum(LENGTHS))

    for name, value in attributes.items():
        setattr(Divides, name, value)
    return Divides


@pytest.mark.parametrize(
    ("make", "attribute", "by_code"), [(looks_at_items, False, True), (divides_by_attribute, True, False)]
)
def test_loss_is_divided(backend, trained, decisions, make, attribute, by_code):
    """One update, in which code alone leads to the wrong decision and the attribute to the right one."""
    plain = backend.weights(trained(backend.tagger(), tagged(LENGTHS), max_steps=1, **RUN).model)
    misread = make()
    wrong = backend.weights(trained(backend.tagger(), tagged(LENGTHS), misread, max_steps=1, **RUN).model)
    assert decisions("loss_is_divided") == [f"loss_is_divided of {misread.__name__}: {by_code} (by its code)"]
    told = make(loss_is_divided=attribute)
    right = backend.weights(trained(backend.tagger(), tagged(LENGTHS), told, max_steps=1, **RUN).model)
    assert decisions("loss_is_divided")[1:] == [
        f"loss_is_divided of {told.__name__}: {attribute} (by its class attribute)"
    ]
    assert largest_difference(right, plain) < 1e-6 < 1e-3 < largest_difference(wrong, plain)


def test_loss_is_divided_says_nothing_of_the_loss_of_oneloop(backend, trained, decisions):
    class Says(Trainer):
        loss_is_divided = False

    plain = trained(backend.tagger(), tagged(LENGTHS), max_steps=1, **RUN)
    says = trained(backend.tagger(), tagged(LENGTHS), Says, max_steps=1, **RUN)
    assert same_bytes(backend.weights(plain.model), backend.weights(says.model))
    assert decisions("loss_is_divided") == []


def test_a_decision_is_logged_once_for_a_class(backend, trained, decisions):
    looks = looks_at_items()
    trainer = trained(backend.tagger(), tagged(LENGTHS), looks, max_steps=1, **RUN)
    trainer.train()
    trained(backend.tagger(), tagged(LENGTHS), looks, max_steps=1, **RUN)
    assert len(decisions("loss_is_divided")) == 1


# -- step_divides


def steps(**attributes):
    class Steps(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            loss = self.compute_loss(model, self._prepare_inputs(inputs)) / num_items_in_batch
            return loss.detach()

    for name, value in attributes.items():
        setattr(Steps, name, value)
    return Steps


@pytest.mark.parametrize(
    ("attributes", "answer", "reason"),
    [
        ({}, False, "its code"),  # it calls compute_loss, which weighs the loss itself
        ({"step_divides": True}, True, "its class attribute"),
        ({"step_divides": False}, False, "its class attribute"),
    ],
)
def test_step_divides(backend, arguments, decisions, attributes, answer, reason):
    """On two processes: is training_step given the items of both, or half, since gradients are averaged?"""
    trainer = steps(**attributes)(backend.tagger(), arguments(), train_dataset=tagged(LENGTHS))
    two = SimpleNamespace(
        trainer=trainer, backend=internals_of(trainer).backend, processes=SimpleNamespace(size=2, rank=0)
    )
    contract = LossContract.of(two)
    assert contract.step_divides is answer
    assert decisions("step_divides") == [f"step_divides of Steps: {answer} (by {reason})"]
    given = Update._items_for_step(SimpleNamespace(contract=contract), SharedUpdate(True, 8, sharing=2))
    assert given == (4 if answer else 8)


def test_one_process_asks_nothing_about_its_step(backend, arguments, decisions):
    told = steps(step_divides=True)(backend.tagger(), arguments(), train_dataset=tagged(LENGTHS))
    assert internals_of(told).run.update.contract.step_divides is False
    assert decisions("step_divides") == []


# -- shards_itself


class Stream:
    def __iter__(self):
        return iter(rows(8))


class HalfStream:
    process_index = 0

    def __iter__(self):
        return iter(rows(8)[self.process_index :: 2])


@pytest.mark.parametrize(
    ("base", "attributes", "answer", "reason"),
    [
        (Stream, {}, False, "its code"),
        (Stream, {"shards_itself": True}, True, "its class attribute"),
        (HalfStream, {}, True, "its code"),
        (HalfStream, {"shards_itself": False}, False, "its class attribute"),
    ],
)
def test_shards_itself(backend, arguments, decisions, monkeypatch, base, attributes, answer, reason):
    """On two processes: a data set that does not is wrapped, and gives each process its share."""
    data = type("Data", (base,), attributes)()
    assert shards_itself(data) is answer
    trainer = Trainer(backend.classifier(), arguments(max_steps=1), train_dataset=data)
    core = internals_of(trainer)
    asked = []
    monkeypatch.setattr(core.backend.loaders, "make_loader", lambda dataset, options: asked.append(dataset))
    monkeypatch.setattr(core, "processes", SimpleNamespace(size=2, rank=1))
    trainer.get_train_dataloader()
    assert [isinstance(dataset, ProcessShard) for dataset in asked] == [not answer]
    assert decisions("shards_itself") == [f"shards_itself of Data: {answer} (by {reason})"]


# -- may_change_control


def stops(**attributes):
    class Stops(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step >= 3

    for name, value in attributes.items():
        setattr(Stops, name, value)
    return Stops()


def looks(**attributes):
    class Looks(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            self.step = state.global_step

    for name, value in attributes.items():
        setattr(Looks, name, value)
    return Looks()


@pytest.mark.parametrize(
    ("make", "attributes", "answer", "reason"),
    [
        (stops, {}, True, "its code"),
        (stops, {"may_change_control": False}, False, "its class attribute"),
        (looks, {}, False, "its code"),
        (looks, {"may_change_control": True}, True, "its class attribute"),
    ],
)
def test_may_change_control(decisions, make, attributes, answer, reason):
    callback = make(**attributes)
    handler = CallbackHandler([callback], None, None, None, None)
    assert handler.may_change_control is answer
    handler.refresh()
    assert handler.may_change_control is answer
    name = type(callback).__name__
    assert decisions("may_change_control") == [f"may_change_control of {name}: {answer} (by {reason})"]


# -- what is no declaration


@pytest.mark.parametrize("value", [None, 1, "yes"])
def test_an_attribute_that_is_no_bool_overrules_nothing(decisions, value):
    assert CallbackHandler([stops(may_change_control=value)], None, None, None, None).may_change_control
    assert decisions("may_change_control") == ["may_change_control of Stops: True (by its code)"]


def test_a_property_that_is_assigned_to_the_class_is_an_override(monkeypatch):
    assert not class_overrides(Trainer, "_train_batch_size")
    monkeypatch.setattr(Trainer, "_train_batch_size", property(lambda self: 1))
    assert class_overrides(Trainer, "_train_batch_size")


def test_an_attribute_of_the_instance_overrules_nothing():
    callback = stops()
    callback.may_change_control = False
    assert CallbackHandler([callback], None, None, None, None).may_change_control
