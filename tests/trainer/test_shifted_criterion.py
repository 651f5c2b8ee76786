"""A criterion of a causal language model compares position i with label i+1: the first label of a row is no item.

Its class weights, if it has any, are those of the other labels. A batch in parts is the whole batch.
"""

import numpy as np
import pytest

from tests.backends.support import largest_difference, tagged

LENGTHS = [7, 1, 5, 2, 1, 1, 6, 3, 2, 7, 4, 1, 1, 5, 3, 2]  # a row of one label has none that counts
WEIGHT = [0.1, 1.0, 4.0]


def causal(backend):
    model = backend.tagger()
    model.shifts_labels = True
    return model


def shifting(backend, **options):
    """The framework's cross entropy, between each position and the label after it."""
    layer = type(backend.criterion())
    method = "construct" if hasattr(layer, "construct") else "forward"

    def shifted(self, logits, labels):
        return getattr(layer, method)(self, logits[:, :-1], labels[:, 1:])

    criterion = backend.criterion(**options)
    criterion.__class__ = type("Shifting", (layer,), {method: shifted})
    return criterion


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
@pytest.mark.parametrize("ignore_index", [-100, 0])
def test_a_split_batch_is_the_whole_batch(backend, trained, weight, ignore_index):
    data = tagged(LENGTHS)
    if ignore_index == 0:
        data = [sample | {"labels": np.where(sample["labels"] < 0, 0, sample["labels"])} for sample in data]
    options = {"ignore_index": ignore_index} | ({} if weight is None else {"weight": weight})
    found = {}
    for micro, accumulation in ((8, 1), (1, 8)):
        model = causal(backend)
        before = backend.weights(model)
        trainer = trained(
            model,
            data,
            criterion=shifting(backend, **options),
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=accumulation,
            optim="sgd",
            learning_rate=0.5,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            max_steps=4,
            logging_steps=1,
        )
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        found[micro] = backend.weights(model), losses
        assert largest_difference(before, found[micro][0]) > 0.01, "nothing was trained"
    (whole, losses), (split, split_losses) = found[8], found[1]
    assert largest_difference(whole, split) < 5e-6
    np.testing.assert_allclose(split_losses, losses, rtol=1e-5)
