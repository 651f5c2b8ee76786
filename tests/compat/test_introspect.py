"""Class attributes that overrule what oneloop reads off a user's code, and the log of the decision."""

import logging
import re
from types import SimpleNamespace

import numpy as np
import pytest

from oneloop import Trainer, TrainerCallback
from oneloop.callbacks import CallbackHandler
from oneloop.data.process_sharding import ProcessShard, shards_itself
from oneloop.distributed.mesh import Mesh
from oneloop.introspect import calls_collectives, class_overrides, show_guesses
from oneloop.trainer.core import core_of
from oneloop.trainer.loss import LossContract, items_for_step
from tests.backends.support import largest_difference, rows, same_bytes, tagged

LENGTHS = [5, 1, 3, 2, 4, 5, 1, 2]  # tokens with labels: micro-batches of unequal weight
RUN = {"optim": "sgd", "learning_rate": 0.5, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}


@pytest.fixture
def decisions(caplog):
    """The decisions about a question that have been logged. `shown`: as warnings, with what overrules them."""
    caplog.set_level(logging.DEBUG, logger="oneloop.introspect")

    def of(question, shown=False):
        records = [record for record in caplog.records if record.name == "oneloop.introspect"]
        assert {record.levelno for record in records} <= {logging.DEBUG, logging.WARNING}
        if shown:
            records = [record for record in records if record.levelno == logging.WARNING]
        texts = [record.getMessage() for record in records]
        return [
            text if shown else text.partition(":")[0] + ":" + re.split(r"[:)]", text.partition(":")[2])[0] + ")"
            for text in texts
            if text.startswith(f"{question} of ")
        ]

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
    two = SimpleNamespace(trainer=trainer, backend=core_of(trainer).backend, mesh=Mesh.of_batches(2))
    contract = LossContract.of(two)
    assert contract.step_divides is answer
    assert decisions("step_divides") == [f"step_divides of Steps: {answer} (by {reason})"]
    given = items_for_step(contract, 8, processes=2)
    assert given == (4 if answer else 8)


def test_one_process_asks_nothing_about_its_step(backend, arguments, decisions):
    told = steps(step_divides=True)(backend.tagger(), arguments(), train_dataset=tagged(LENGTHS))
    assert core_of(told).run.contract.step_divides is False
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
    core = core_of(trainer)
    asked = []
    monkeypatch.setattr(core.backend.loaders, "make_loader", lambda dataset, options: asked.append(dataset))
    monkeypatch.setattr(core, "mesh", Mesh.of_batches(2, 1))
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


# -- what is shown


def test_a_guess_about_the_loss_is_shown_once_with_what_overrules_it(backend, trained, decisions):
    looks = looks_at_items()
    for _ in range(2):
        trained(backend.tagger(), tagged(LENGTHS), looks, max_steps=1, **RUN)
    assert decisions("loss_is_divided", shown=True) == [
        "loss_is_divided of Looks: True (by its code: compute_loss reads num_items_in_batch). "
        "To overrule it, set a class attribute: loss_is_divided = False."
    ]
    trained(backend.tagger(), tagged(LENGTHS), looks_at_items(loss_is_divided=True), max_steps=1, **RUN)
    assert len(decisions("loss_is_divided", shown=True)) == 1 and len(decisions("loss_is_divided")) == 2


def test_a_guess_is_shown_only_if_something_depends_on_it(backend, trained, decisions):
    """One micro-batch is the whole update, whoever divides; then it has several."""
    looks = looks_at_items()
    trained(backend.tagger(), tagged(LENGTHS), looks, max_steps=1, **RUN | {"gradient_accumulation_steps": 1})
    assert decisions("loss_is_divided", shown=True) == [] != decisions("loss_is_divided")
    trained(backend.tagger(), tagged(LENGTHS), looks, max_steps=1, **RUN)
    assert len(decisions("loss_is_divided", shown=True)) == 1


def test_nothing_is_shown_where_nothing_is_guessed(backend, trained, caplog):
    """A Trainer that overrides nothing, and one that says in transformers' words who divides."""

    class Says(Trainer):
        loss_is_scaled_for_ga = True

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return super().compute_loss(model, inputs, return_outputs)

    for trainer_class in (Trainer, Says):
        trained(backend.tagger(), tagged(LENGTHS), trainer_class, max_steps=1, callbacks=[stops()], **RUN)
    assert [record for record in caplog.records if record.name == "oneloop.introspect"] == []


def test_other_processes_show_no_guess(decisions):
    show_guesses(False)
    try:
        assert shards_itself(type("Data", (Stream,), {})()) is False
    finally:
        show_guesses(True)
    assert decisions("shards_itself", shown=True) == [] != decisions("shards_itself")


def test_what_is_shown_about_data_and_callbacks(decisions):
    shards_itself(type("Data", (HalfStream,), {})())
    assert CallbackHandler([looks(), stops()], None, None, None, None).may_change_control
    assert decisions("shards_itself", shown=True) == [
        "shards_itself of Data: True (by its code: it asks for the rank of the process). "
        "To overrule it, set a class attribute: shards_itself = False."
    ]
    assert decisions("may_change_control", shown=True) == [
        "may_change_control of Looks: False (by its code: it uses neither control nor a Trainer). "
        "To overrule it, set a class attribute: may_change_control = True.",
        "may_change_control of Stops: True (by its code: it uses control or a Trainer). "
        "To overrule it, set a class attribute: may_change_control = False.",
    ]


def test_what_is_shown_about_collectives(decisions):
    def evaluates(self):
        return self.accelerator.gather(1)

    assert calls_collectives(type("Own", (), {"evaluates": evaluates})()) is True
    assert decisions("calls_collectives", shown=True) == [
        "calls_collectives of Own: True (by its code: evaluates may exchange values between processes). "
        "To overrule it, set a class attribute: calls_collectives = False."
    ]
    assert calls_collectives(type("Plain", (), {})()) is False
    assert len(decisions("calls_collectives", shown=True)) == 1
