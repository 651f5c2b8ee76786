"""Whether a loss compares position i with label i + 1 is computed where the model does not declare it, and its name
does not matter: a batch in parts is the whole batch."""

import logging
import random

import numpy as np
import pytest

from oneloop import Trainer
from tests.backends.support import largest_difference, tagged

LENGTHS = [7, 1, 5, 2, 1, 1, 6, 3, 2, 7, 4, 1, 1, 5, 3, 2]  # a row of one label has none that a shifted loss reads
SGD = {
    "optim": "sgd", "learning_rate": 0.5, "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "max_steps": 3,
    "logging_steps": 1,
}  # fmt: skip


def named(model, name, **attributes):
    """The model with a class of another name."""
    model.__class__ = type(name, (type(model),), attributes)
    return model


def shifting(backend, name="Plain"):
    """A language model that does not say so; the labels are tokens."""
    return named(backend.language_model(masked=False), name, shifts_labels=None)


def aligned(backend, name="Plain"):
    return named(backend.tagger(), name)


def samples(is_shifting):
    data = tagged(LENGTHS)
    if is_shifting:
        data = [row | {"labels": np.where(row["labels"] < 0, -100, row["input_ids"])} for row in data]
    return data


KINDS = {
    "shifting": (shifting, "Plain", True),
    "aligned": (aligned, "Plain", False),
    "aligned, named like a causal model": (aligned, "TinyForCausalLM", False),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_split_batch_is_the_whole_batch(backend, trained, kind):
    make, name, is_shifting = KINDS[kind]
    found = {}
    for micro, accumulation in ((8, 1), (1, 8)):
        model = make(backend, name)
        sizes = {"per_device_train_batch_size": micro, "gradient_accumulation_steps": accumulation}
        trainer = trained(model, samples(is_shifting), **SGD, **sizes)
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        found[micro] = backend.weights(model), losses
    assert trainer._loss_shifts_labels is is_shifting
    (whole, losses), (split, split_losses) = found[8], found[1]
    assert largest_difference(whole, split) < 5e-6
    np.testing.assert_allclose(split_losses, losses, rtol=1e-5)


def counted(backend, arguments, model, data, **given):
    """The items of a batch of all samples, and the Trainer."""
    trainer = Trainer(model, arguments(per_device_train_batch_size=len(data)), train_dataset=data, **given)
    return trainer.get_batch_samples(iter(trainer.get_train_dataloader()), 1, None)[1], trainer


ALL = sum(LENGTHS)
BUT_FIRST = sum(LENGTHS) - len(LENGTHS)


@pytest.mark.parametrize("kind", KINDS)
def test_items(backend, arguments, kind):
    make, name, is_shifting = KINDS[kind]
    items, _ = counted(backend, arguments, make(backend, name), samples(is_shifting))
    assert items == (BUT_FIRST if is_shifting else ALL)


def test_a_declaration_overrules_what_would_be_computed(backend, arguments):
    model = aligned(backend)
    model.shifts_labels = True
    assert counted(backend, arguments, model, samples(False))[0] == BUT_FIRST
    assert counted(backend, arguments, named(shifting(backend), "Said", shifts_labels=False), samples(True))[0] == ALL


def test_the_loss_of_a_criterion_decides(backend, arguments):
    layer = type(backend.criterion())
    method = "construct" if hasattr(layer, "construct") else "forward"

    def later(self, logits, labels):
        return getattr(layer, method)(self, logits[:, :-1], labels[:, 1:])

    criterion = backend.criterion()
    data = samples(False)
    everything = backend.name == "paddle" and len(data) * len(data[0]["labels"])  # its mean includes ignored labels
    assert counted(backend, arguments, aligned(backend), data, criterion=criterion)[0] == (everything or ALL)
    criterion.__class__ = type("Shifting", (layer,), {method: later})
    everything = backend.name == "paddle" and len(data) * (len(data[0]["labels"]) - 1)
    assert counted(backend, arguments, aligned(backend), data, criterion=criterion)[0] == (everything or BUT_FIRST)
    criterion = backend.criterion(ignore_index=0)  # which then means no label
    criterion.__class__ = type("Shifting", (layer,), {method: later})
    data = [row | {"labels": np.maximum(row["labels"], 0)} for row in data]
    expected = sum((row["labels"][1:] != 0).sum() for row in data)
    assert counted(backend, arguments, aligned(backend), data, criterion=criterion)[0] == expected


def test_a_head_of_zeros_and_labels_that_are_all_the_same(backend, arguments):
    """A new head may give every class the same loss, so that no label changes it."""
    for make, is_shifting in ((shifting, True), (aligned, False)):
        model = make(backend)
        backend.set_to_zero(model.head)
        data = [row | {"labels": np.where(row["labels"] < 0, -100, 0)} for row in samples(is_shifting)]
        assert counted(backend, arguments, model, data)[0] == (BUT_FIRST if is_shifting else ALL)


def with_method(backend, function):
    """A tagger whose forward is function(forward of before, self, input_ids, labels)."""
    layer = type(backend.tagger())
    method = "construct" if hasattr(layer, "construct") else "forward"
    before = getattr(layer, method)

    def replaced(self, input_ids, labels=None):
        return function(before, self, input_ids, labels)

    return named(backend.tagger(), "TinyForCausalLM", **{method: replaced})


def test_a_batch_without_labels_does_not_decide(backend, trained):
    """Nor is anything taken for a label in it: here 0 is none."""
    data, given = tagged([4] * 8, unlabelled=range(4)), []
    data = [row | {"labels": np.where(row["labels"] == 0, 1, row["labels"])} for row in data]

    def without_zeros(before, self, input_ids, labels):
        ignored = backend.tensor(np.where(backend.numpy(labels) == 0, -100, backend.numpy(labels)))
        return before(self, input_ids, ignored)

    class Noting(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            given.append(num_items_in_batch)
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    sizes = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 2, "nonfinite": "skip"}
    options = {"train_sampling_strategy": "sequential", **SGD, **sizes}
    trained(with_method(backend, without_zeros), data, Noting, **options)
    assert given[-1] == 16


def test_a_batch_that_does_not_fit_into_memory_is_halved(backend, arguments):
    rows = []

    def needs_memory(before, self, input_ids, labels):
        rows.append(len(input_ids))
        if len(input_ids) > 4:
            raise RuntimeError("out of memory")
        return before(self, input_ids, labels)

    assert counted(backend, arguments, with_method(backend, needs_memory), samples(False))[0] == ALL
    assert rows[:3] == [16, 8, 4]


def test_a_label_that_costs_nothing(backend, arguments):
    """The loss of one label is that of none: the other one tells."""

    def of_twos(before, self, input_ids, labels):
        outputs = before(self, input_ids, labels)
        twos = backend.tensor(np.float32((backend.numpy(labels) == 2).mean()))
        return {"loss": outputs["logits"].mean() * 0 + twos, "logits": outputs["logits"]}

    assert counted(backend, arguments, with_method(backend, of_twos), samples(False))[0] == ALL


def test_a_loss_function_that_divides_by_the_items(backend, arguments):
    def divided(outputs, labels, num_items_in_batch=None):
        logits = outputs["logits"]
        return backend.cross_entropy(logits, labels, reduction="sum") / num_items_in_batch

    def no_loss(before, self, input_ids, labels):
        return before(self, input_ids)

    model = with_method(backend, no_loss)
    assert counted(backend, arguments, model, samples(False), compute_loss_func=divided)[0] == ALL


# -- what the computing leaves behind


def drawing(backend, declared, modes):
    """A model that draws random numbers in every mode, and notes the mode."""
    layer = type(backend.tagger())
    method = "construct" if hasattr(layer, "construct") else "forward"

    def noisy(self, input_ids, labels=None):
        modes.append(self.training)
        outputs = getattr(layer, method)(self, input_ids, labels)
        return outputs | {"loss": outputs["loss"] * (1 + random.random() + float(np.random.rand()))}

    return named(backend.tagger(), "Own", **{method: noisy, "shifts_labels": declared})


def test_nothing_of_the_run_is_changed(backend, trained):
    """Random numbers, modes and weights are those of a model that declares it."""
    found, modes = [], {None: [], False: []}
    for declared, noted in modes.items():
        model = drawing(backend, declared, noted)
        trainer = trained(model, samples(False), gradient_accumulation_steps=2, **SGD)
        found.append((backend.weights(model), [entry.get("loss") for entry in trainer.state.log_history]))
    assert found[0][1] == found[1][1] and largest_difference(found[0][0], found[1][0]) == 0
    extra = len(modes[None]) - len(modes[False])
    assert 2 <= extra <= 5 and modes[None] == [False] * extra + modes[False] and all(modes[False])


@pytest.mark.parametrize("given", [{"per_device_train_batch_size": 4}, {"gradient_accumulation_steps": 2}])
def test_it_is_computed_only_where_it_matters(backend, trained, given):
    """Not without accumulation, nor for labels of one class per sample, nor again in a second train()."""
    modes = []
    model = drawing(backend, None, modes)
    trainer = trained(model, samples(False), **SGD, **given)
    computed = modes.count(False)
    assert (computed > 0) == ("gradient_accumulation_steps" in given)
    trainer.train()
    assert modes.count(False) == computed


def test_a_loss_that_cannot_be_computed_beforehand(backend, trained, caplog):
    """What the model is taken to do is said once, with what to declare."""
    layer = type(backend.tagger())
    method = "construct" if hasattr(layer, "construct") else "forward"

    def fails(self, input_ids, labels=None):
        if not self.training:
            raise RuntimeError("not in evaluation mode")
        return getattr(layer, method)(self, input_ids, labels)

    model = named(backend.tagger(), "Own", **{method: fails})
    with caplog.at_level(logging.WARNING):
        trainer = trained(model, samples(False), gradient_accumulation_steps=2, **SGD)
    said = [record.getMessage() for record in caplog.records if "shifts_labels" in record.getMessage()]
    assert len(said) == 1 and "Own" in said[0] and "its own label" in said[0]
    assert trainer._loss_shifts_labels is False and len(trainer.state.log_history) > 3


def test_watching_for_values_that_are_not_finite(backend, arguments, trained):
    """debug="underflow_overflow" raises on the mean over no labels, which is 0/0."""
    for make, is_shifting in ((shifting, True), (aligned, False)):
        given = {"gradient_accumulation_steps": 2, "debug": "underflow_overflow"}
        trainer = trained(make(backend, "TinyForCausalLM"), samples(is_shifting), **SGD, **given)
        assert trainer._loss_shifts_labels is is_shifting


def test_smoothed_labels_are_compared_as_the_model_does(backend, trained):
    losses = {}
    for name, declared in (("computed", None), ("declared", True)):
        model = named(backend.language_model(masked=False), "Plain", shifts_labels=declared)
        trainer = trained(model, samples(True), label_smoothing_factor=0.1, **SGD)
        losses[name] = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses["computed"] == losses["declared"]


def test_an_override_that_takes_the_batches(backend, trained):
    class Taking(Trainer):
        def get_batch_samples(self, epoch_iterator, num_batches, device=None):
            return [next(epoch_iterator)], None

    losses = []
    for declared in (None, True):
        model = named(backend.language_model(masked=False), "Plain", shifts_labels=declared)
        trainer = trained(model, samples(True), Taking, label_smoothing_factor=0.1, **SGD | {"max_steps": 1})
        losses.append(trainer.state.log_history[0]["loss"])
    assert losses[0] == losses[1]


def test_a_loss_of_an_override_is_not_warned_of(backend, trained, caplog):
    """The model alone has none."""

    class Own(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            logits = model(inputs["input_ids"])["logits"]
            return backend.cross_entropy(logits, inputs["labels"])

    def no_loss(before, self, input_ids, labels):
        assert labels is None
        return before(self, input_ids)

    with caplog.at_level(logging.WARNING):
        trained(with_method(backend, no_loss), samples(False), Own, gradient_accumulation_steps=2, **SGD)
    assert not [record for record in caplog.records if "shifts_labels" in record.getMessage()]


def test_smoothed_labels_in_an_evaluation_alone(backend, arguments):
    data, found = samples(True), []
    for declared in (None, True):
        model = named(backend.language_model(masked=False), "Plain", shifts_labels=declared)
        found.append(Trainer(model, arguments(label_smoothing_factor=0.1), eval_dataset=data).evaluate()["eval_loss"])
    assert found[0] == found[1]


def test_the_labels_that_a_collator_has_shifted_are_counted(backend, arguments):
    data = [row | {"shift_labels": np.where(np.arange(7) < 2, 1, -100)} for row in samples(True)]
    trainer = Trainer(backend.language_model(masked=False), arguments(remove_unused_columns=False))
    batch = {name: backend.tensor(np.stack([row[name] for row in data])) for name in data[0]}
    assert trainer._get_num_items_in_batch([batch], None) == 2 * len(data)
