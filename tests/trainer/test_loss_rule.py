"""The rule for accumulation: the update is that of the undivided batch, whoever computes the loss."""

import numpy as np
import pytest

from oneloop import Trainer
from tests.backends.support import largest_difference, rows, tagged

ROUNDING = 2e-6
SGD = {"optim": "sgd", "learning_rate": 0.5, "max_steps": 4, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
SPLITS = [(4, 2), (2, 4), (1, 8)]  # micro-batch, accumulation
ONE_SPLIT = SPLITS[1:2]  # where the point is who computes the loss
LENGTHS = [7, 1, 5, 2, 1, 1, 6, 3, 2, 7, 4, 1, 1, 5, 3, 2]


def losses_of(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def compare(run, splits):
    """`run(micro, accumulation)` gives a Trainer that has trained; splits of a batch of 8 agree with the whole."""
    whole = run(8, 1)
    start = [entry["loss"] for entry in whole.state.log_history if "loss" in entry]
    for micro, accumulation in splits:
        split = run(micro, accumulation)
        assert largest_difference(whole.trained, split.trained) < ROUNDING, (micro, accumulation)
        np.testing.assert_allclose(losses_of(split), start, rtol=1e-5)


@pytest.fixture
def run(backend, trained):
    def make(model, data, splits=ONE_SPLIT, **given):
        def at(micro, accumulation):
            fresh = model()
            before = backend.weights(fresh)
            trainer = trained(
                fresh,
                data,
                per_device_train_batch_size=micro,
                gradient_accumulation_steps=accumulation,
                logging_steps=1,
                **(SGD | given),
            )
            trainer.trained = backend.weights(fresh)
            assert largest_difference(before, trainer.trained) > 0.01, "nothing was trained"
            return trainer

        compare(at, splits)

    return make


def test_a_split_batch_is_the_whole_batch(backend, run):
    run(backend.classifier, rows(24), SPLITS)


def test_with_an_incomplete_last_update(backend, run):
    run(backend.classifier, rows(21), SPLITS, max_steps=6)


@pytest.mark.once_on("mindspore")
@pytest.mark.parametrize("signature", ["plain", "kwargs"])
@pytest.mark.parametrize("unlabelled", [(), (0, 5, 9)], ids=["labelled", "some rows without a label"])
def test_tokens_weigh_equally_in_uneven_micro_batches(backend, run, signature, unlabelled):
    run(lambda: backend.tagger(signature), tagged(LENGTHS, unlabelled=unlabelled), SPLITS)


@pytest.mark.parametrize("reads_items", [True, False])
def test_compute_loss_func(backend, run, reads_items):
    def with_items(outputs, labels, num_items_in_batch=None):
        total = backend.cross_entropy(outputs["logits"], labels, "sum")
        return total / num_items_in_batch

    def without(outputs, labels):
        return backend.cross_entropy(outputs["logits"], labels)

    run(backend.tagger, tagged(LENGTHS), compute_loss_func=with_items if reads_items else without)


def test_a_compute_loss_func_that_takes_the_count_and_ignores_it(backend, run):
    def mean(outputs, labels, num_items_in_batch=None):
        return backend.cross_entropy(outputs["logits"], labels)

    run(backend.tagger, tagged(LENGTHS), compute_loss_func=mean)


def test_a_callable_object_as_compute_loss_func(backend, run):
    class Summed:
        def __call__(self, outputs, labels, num_items_in_batch=None):
            return backend.cross_entropy(outputs["logits"], labels, "sum") / num_items_in_batch

    run(backend.tagger, tagged(LENGTHS), compute_loss_func=Summed())


def test_criterion(backend, run):
    run(backend.tagger, tagged(LENGTHS), criterion=backend.cross_entropy)


def test_label_smoothing(backend, run):
    run(backend.tagger, tagged(LENGTHS), label_smoothing_factor=0.1)


def overrides(backend):
    class Version4(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False):
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            loss = backend.cross_entropy(outputs["logits"], labels)
            return (loss, outputs) if return_outputs else loss

    class Version5(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            if num_items_in_batch is None:
                loss = backend.cross_entropy(outputs["logits"], labels)
            else:
                loss = backend.cross_entropy(outputs["logits"], labels, "sum") / num_items_in_batch
            return (loss, outputs) if return_outputs else loss

    class Version5Ignores(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            outputs = model(**inputs)
            return (outputs["loss"], outputs) if return_outputs else outputs["loss"]

    class Version5Kwargs(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
            return super().compute_loss(model, inputs, return_outputs=return_outputs, **kwargs)

    class Version5PassesOn(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            result = super().compute_loss(model, inputs, True, num_items_in_batch=num_items_in_batch)
            return result if return_outputs else result[0]

    class SwallowsKwargs(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
            outputs = model(**inputs)
            return (outputs["loss"], outputs) if return_outputs else outputs["loss"]

    class CallsSuperWithout(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return super().compute_loss(model, inputs, return_outputs)

    every = Version4, Version5, Version5Ignores, Version5Kwargs, Version5PassesOn, SwallowsKwargs, CallsSuperWithout
    return {cls.__name__: cls for cls in every}


OVERRIDES = ["Version4", "Version5", "SwallowsKwargs"]
OVERRIDES += [
    pytest.param(name, marks=pytest.mark.rare_on("mindspore"))
    for name in ("Version5Ignores", "Version5Kwargs", "Version5PassesOn", "CallsSuperWithout")
]


@pytest.mark.parametrize("name", OVERRIDES)
def test_overridden_compute_loss(backend, run, trained, name):
    cls = overrides(backend)[name]
    run(backend.tagger, tagged(LENGTHS), trainer_class=cls)


@pytest.mark.parametrize("name", OVERRIDES)
def test_overridden_compute_loss_logs_and_evaluates_as_the_default_does(backend, trained, name):
    data = tagged(LENGTHS)
    options = SGD | {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "logging_steps": 1}
    default = trained(backend.tagger(), data, eval_dataset=data, **options)
    other = trained(backend.tagger(), data, overrides(backend)[name], eval_dataset=data, **options)
    np.testing.assert_allclose(losses_of(other), losses_of(default), rtol=1e-5)
    assert other.evaluate()["eval_loss"] == pytest.approx(default.evaluate()["eval_loss"], rel=1e-5)


def test_the_rule_is_not_that_of_the_mean_of_means(backend, trained):
    """Uneven micro-batches: the mean of their means is another number, which the test above could not tell if equal."""
    data = tagged([7, 1])
    model = backend.tagger()
    options = SGD | {"max_steps": 1, "logging_steps": 1}
    split = trained(model, data, per_device_train_batch_size=1, gradient_accumulation_steps=2, **options)
    parts = []
    for sample in data:
        one = trained(backend.tagger(), [sample], per_device_train_batch_size=1, **options)
        parts.append(losses_of(one)[0])
    assert losses_of(split)[0] == pytest.approx((7 * parts[0] + parts[1]) / 8, rel=1e-5)
    assert losses_of(split)[0] != pytest.approx(sum(parts) / 2, rel=1e-3)
