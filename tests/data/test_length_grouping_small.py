"""Grouping by length on small data sets: other batches in every epoch, and like lengths in each of them.

All lengths differ: sorted as a whole, such a data set would have the same batches in every epoch.
"""

import numpy as np
import pytest

from oneloop import Trainer
from oneloop.data.length_grouping import LengthGroups
from oneloop.data.order import Order
from tests.backends.support import FEATURES


def spread(lengths, batches):
    """How far the lengths of a batch lie apart, on average."""
    return float(np.mean([np.ptp([lengths[sample] for sample in batch]) for batch in batches]))


def check(lengths, epochs):
    """Epochs are lists of whole batches."""
    shuffled = [Order(len(lengths), 0, epoch)[:].reshape(len(epochs[0]), -1) for epoch in range(len(epochs))]
    sets = [{frozenset(batch) for batch in batches} for batches in epochs]
    for one, next_one in zip(sets, sets[1:]):
        assert len(one & next_one) <= 1, "batches of one epoch come again in the next"
    assert spread(lengths, sum(epochs, [])) < 0.6 * spread(lengths, np.concatenate(shuffled))


@pytest.mark.parametrize("samples, batch", [(32, 4), (64, 8), (100, 4), (200, 4), (400, 8)])
def test_batches_change_from_epoch_to_epoch(samples, batch):
    lengths = np.random.RandomState(0).permutation(samples) + 1
    check(lengths, [LengthGroups(lengths, batch, 0, epoch)[:].reshape(-1, batch).tolist() for epoch in range(6)])


@pytest.mark.parametrize("epoch", range(20))
def test_the_longest_sample_is_in_the_first_batch_wherever_its_batch_was(epoch):
    lengths = np.arange(1, 17)
    assert 15 in LengthGroups(lengths, 4, 0, epoch)[:4]


class Recording(Trainer):
    """Keeps which samples each micro-batch holds."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        self.seen.append([int(row[0]) for row in np.array(inputs["x"])])
        return super().compute_loss(model, inputs, *args, **kwargs)


def test_batches_of_a_run_change_from_epoch_to_epoch(backend, arguments):
    lengths = np.random.RandomState(1).permutation(48) + 1
    data = [
        {"x": np.full(FEATURES, number, np.float32), "labels": number % 3, "length": int(length)}
        for number, length in enumerate(lengths)
    ]
    args = arguments(group_by_length=True, per_device_train_batch_size=4, num_train_epochs=3, learning_rate=0.0)
    trainer = Recording(backend.classifier(), args, train_dataset=data)
    trainer.seen = []
    trainer.train()
    epochs = [trainer.seen[start : start + 12] for start in (0, 12, 24)]
    assert all(sorted(sum(batches, [])) == list(range(48)) for batches in epochs)
    check(lengths, epochs)
