"""What a criterion says of itself: ignore_index, class weights and reduction decide how its micro-batches add up."""

from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from oneloop import Trainer  # noqa: E402
from tests.backends_support import largest_difference, rows, tagged  # noqa: E402
from tests.torch_models import Classifier, Tagger  # noqa: E402

LENGTHS = [7, 1, 5, 2, 1, 1, 6, 3, 2, 7, 4, 1, 1, 5, 3, 2]
WEIGHT = torch.tensor([0.1, 1.0, 4.0])
SGD = {"optim": "sgd", "max_steps": 4, "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "logging_steps": 1}


class Tokens(torch.nn.CrossEntropyLoss):
    """Over the last axis of the logits."""

    def forward(self, logits, labels):
        return super().forward(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


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


def run(trained, model, data, micro, accumulation, rate=0.5, **given):
    torch.manual_seed(0)
    fresh = model()
    before = {name: value.numpy().copy() for name, value in fresh.state_dict().items()}
    options = SGD | {"per_device_train_batch_size": micro, "gradient_accumulation_steps": accumulation}
    trainer = trained(fresh, data, learning_rate=rate, **options, **given)
    after = {name: value.numpy().copy() for name, value in fresh.state_dict().items()}
    assert largest_difference(before, after) > 0.01, "nothing was trained"
    return after, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def compare(trained, *given, **more):
    weights, losses = run(trained, *given, 8, 1, **more)
    for micro, accumulation in ((1, 8), (2, 4)):
        split, split_losses = run(trained, *given, micro, accumulation, **more)
        assert largest_difference(weights, split) < 5e-6, (micro, accumulation)
        np.testing.assert_allclose(split_losses, losses, rtol=1e-5)


def keyed(**given):
    def loss(logits, labels, **options):
        return torch.nn.functional.cross_entropy(logits.reshape(-1, 3), labels.reshape(-1), **options)

    return partial(loss, **given)


@pytest.mark.parametrize("trainer_class", [Trainer, HandsOn, Version4])
@pytest.mark.parametrize(
    "criterion, rate",
    [
        (Tokens(ignore_index=0), 0.5),
        (Tokens(ignore_index=0, reduction="sum"), 0.02),
        (Tokens(ignore_index=0, weight=WEIGHT), 0.5),
        (keyed(ignore_index=0), 0.5),
        (keyed(ignore_index=0, reduction="sum"), 0.02),
    ],
    ids=["ignore_index", "sum", "weight", "partial", "partial sum"],
)
def test_a_split_batch_is_the_whole_batch(trained, trainer_class, criterion, rate):
    compare(trained, Tagger, padded_with_zero(), criterion=criterion, rate=rate, trainer_class=trainer_class)


def test_class_weights_of_samples(trained):
    compare(trained, Classifier, rows(24), criterion=torch.nn.CrossEntropyLoss(weight=WEIGHT))


def test_weights_that_leave_the_mean_plain(trained):
    data = [row | {"labels": np.eye(3, dtype=np.float32)[row["labels"]]} for row in rows(24)]
    model = partial(Classifier, "logits")
    compare(trained, model, data, criterion=torch.nn.BCEWithLogitsLoss(weight=WEIGHT), rate=2.0)


def test_a_summing_compute_loss_func(trained):
    loss = torch.nn.CrossEntropyLoss(reduction="sum")
    compare(trained, partial(Classifier, "logits"), rows(24), compute_loss_func=loss, rate=0.02)


def test_a_layer_as_compute_loss_func_that_divides(trained):
    class Divides(torch.nn.CrossEntropyLoss):
        def forward(self, logits, labels, num_items_in_batch=None):
            return super().forward(logits, labels) / num_items_in_batch

    model = partial(Classifier, "logits")
    compare(trained, model, rows(24), compute_loss_func=Divides(reduction="sum"))
