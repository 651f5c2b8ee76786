"""What a criterion says of itself: ignore_index, class weights and reduction decide how its micro-batches add up."""

from functools import partial

import numpy as np
import pytest

from oneloop import Trainer
from tests.backends.support import largest_difference, rows, tagged

LENGTHS = [7, 1, 5, 2, 1, 1, 6, 3, 2, 7, 4, 1, 1, 5, 3, 2]
WEIGHT = [0.1, 1.0, 4.0]
SGD = {"optim": "sgd", "max_steps": 4, "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "logging_steps": 1}


class HandsOn(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


class Version4(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        return super().compute_loss(model, inputs, return_outputs)


def padded_with_zero():
    """Class 0 takes no part: most micro-batches of one sample have few labels, and some none."""
    samples = tagged(LENGTHS)
    return [sample | {"labels": np.where(sample["labels"] < 0, 0, sample["labels"])} for sample in samples]


@pytest.fixture
def compare(backend, trained):
    """compare(make, data, ...): micro-batches of one and of two give what the undivided batch gives."""

    def run(make, data, micro, accumulation, rate=0.5, **given):
        fresh = make()
        before = backend.weights(fresh)
        options = SGD | {"per_device_train_batch_size": micro, "gradient_accumulation_steps": accumulation}
        trainer = trained(fresh, data, learning_rate=rate, **options, **given)
        after = backend.weights(fresh)
        assert largest_difference(before, after) > 0.01, "nothing was trained"
        return after, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    def check(make, data, **more):
        weights, losses = run(make, data, 8, 1, **more)
        for micro, accumulation in ((1, 8), (2, 4)):
            split, split_losses = run(make, data, micro, accumulation, **more)
            assert largest_difference(weights, split) < 5e-6, (micro, accumulation)
            np.testing.assert_allclose(split_losses, losses, rtol=1e-5)

    return check


@pytest.mark.parametrize(
    "trainer_class", [Trainer, HandsOn, pytest.param(Version4, marks=pytest.mark.rare_on("mindspore"))]
)
@pytest.mark.parametrize(
    "kind, options, rate",
    [
        ("layer", {}, 0.5),
        pytest.param("layer", {"reduction": "sum"}, 0.02, marks=pytest.mark.rare_on("mindspore")),
        ("layer", {"weight": WEIGHT}, 0.5),
        pytest.param("partial", {}, 0.5, marks=pytest.mark.rare_on("mindspore")),
        ("partial", {"reduction": "sum"}, 0.02),
    ],
    ids=["ignore_index", "sum", "weight", "partial", "partial sum"],
)
def test_a_split_batch_is_the_whole_batch(backend, compare, trainer_class, kind, options, rate):
    options = {"ignore_index": 0, **options}
    criterion = backend.criterion(**options) if kind == "layer" else partial(backend.cross_entropy, **options)
    compare(backend.tagger, padded_with_zero(), criterion=criterion, rate=rate, trainer_class=trainer_class)


def test_the_frameworks_own_mean_over_padded_labels(backend, compare):
    """With ignore_index=-100 Paddle's mean is over all labels, torch's over those that count."""
    compare(backend.tagger, tagged(LENGTHS), criterion=backend.criterion())


def test_class_weights_of_samples(backend, compare):
    compare(backend.classifier, rows(24), criterion=backend.criterion(weight=WEIGHT))


def test_weights_that_leave_the_mean_plain(backend, compare):
    data = [row | {"labels": np.eye(3, dtype=np.float32)[row["labels"]]} for row in rows(24)]
    make = partial(backend.classifier, "logits")
    compare(make, data, criterion=backend.binary_criterion(WEIGHT), rate=2.0)


def test_a_summing_compute_loss_func(backend, compare):
    loss = backend.criterion(reduction="sum")
    compare(partial(backend.classifier, "logits"), rows(24), compute_loss_func=loss, rate=0.02)


def test_a_layer_as_compute_loss_func_that_divides(backend, compare):
    layer = type(backend.criterion())
    method = "construct" if hasattr(layer, "construct") else "forward"

    def divided(self, logits, labels, num_items_in_batch=None):
        return getattr(layer, method)(self, logits, labels) / num_items_in_batch

    Divides = type("Divides", (layer,), {method: divided})
    make = partial(backend.classifier, "logits")
    compare(make, rows(24), compute_loss_func=Divides(reduction="sum"))
