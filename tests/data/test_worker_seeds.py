"""Random numbers that data and collators draw in workers: others at each place, and the same whoever fetches it.

Each look at a sample and each batch has numbers of its own, from epoch to epoch too, and they do not depend on how many
workers there are. Runs are compared with each other, and their numbers with one another.
"""

import random

import numpy as np
import pytest

from oneloop import Trainer
from tests.backends.support import FEATURES, kit_module

SAMPLES, BATCH = 10, 4
RUN = {
    "num_train_epochs": 2,
    "per_device_train_batch_size": BATCH,
    "optim": "sgd",
    "learning_rate": 0.0,
    "lr_scheduler_type": "constant",
}


class Noisy:
    """Samples of their number and what they draw; `of_framework` draws from the framework's stream."""

    def __init__(self, of_framework):
        self.of_framework = of_framework

    def __len__(self):
        return SAMPLES

    def __getitem__(self, number):
        drawn = [random.random(), np.random.rand(), self.of_framework()]
        return {"number": number, "drawn": drawn, "labels": number % 3}


class ByBatch(Noisy):
    """The same, fetched by the batch."""

    def __getitems__(self, numbers):
        return [self[number] for number in numbers]


class Walked:
    """The same, of data that can only be walked through."""

    def __init__(self, of_framework):
        self.noisy = Noisy(of_framework)

    def __iter__(self):
        return map(self.noisy.__getitem__, range(SAMPLES))


class Quiet:
    """Samples that draw nothing."""

    def __init__(self, of_framework):
        pass

    def __len__(self):
        return SAMPLES

    def __getitem__(self, number):
        return {"number": number, "drawn": [0.0, 0.0, 0.0], "labels": number % 3}


class Collator:
    """Batches in whose features are the numbers of the samples, what they drew, and what the collator draws."""

    def __init__(self, backend):
        self.backend = backend

    def __call__(self, samples):
        own = [random.random(), np.random.rand()]
        x = np.array([[sample["number"], *sample["drawn"], *own] for sample in samples], np.float32)
        labels = np.array([sample["labels"] for sample in samples], np.int64)
        assert x.shape[1] == FEATURES
        return {"x": self.backend.tensor(x), "labels": self.backend.tensor(labels)}


class Recording(Trainer):
    """Keeps the features of each micro-batch, and numbers from the streams that the model draws from."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        self.seen.append(np.array(inputs["x"]))
        self.own.append((random.random(), np.random.rand(), self.draw()))
        return super().compute_loss(model, inputs, *args, **kwargs)


class Twice(Recording):
    """An order that shows samples again and again."""

    def _get_train_sampler(self, train_dataset=None):
        return [3, 3, 3, 3, 3, 7, 3, 3]


@pytest.fixture
def train(backend, arguments):
    """train(kind of data): a Trainer that has seen all micro-batches of two epochs."""
    draw = kit_module(backend.name).Job().draw
    # MindSpore computes nothing in a worker: its threads do not survive a fork.
    of_framework = (lambda: 0.5) if backend.name == "mindspore" else draw

    def run(kind, trainer_class=Recording, **given):
        args = arguments(remove_unused_columns=False, **RUN | given)
        data = kind(of_framework)
        trainer = trainer_class(backend.classifier(), args, train_dataset=data, data_collator=Collator(backend))
        trainer.seen, trainer.own, trainer.draw = [], [], draw
        trainer.train()
        return trainer

    return run


@pytest.fixture
def batches(train):
    """batches(kind of data): the features of all micro-batches."""
    return lambda *args, **given: train(*args, **given).seen


def check_all_differ(backend, batches):
    """No number of a stream comes twice: neither those of the samples nor those of the collator."""
    for stream in (0, 1):
        of_samples = [float(row[1 + stream]) for batch in batches for row in batch]
        of_collator = [float(batch[0][4 + stream]) for batch in batches]
        drawn = of_samples + of_collator
        assert len(set(drawn)) == len(drawn)
    of_framework = [float(row[3]) for batch in batches for row in batch]
    assert backend.name == "mindspore" or len(set(of_framework)) == len(of_framework)


def same(left, right):
    return len(left) == len(right) and all(np.array_equal(a, b) for a, b in zip(left, right))


@pytest.mark.once_on("mindspore", "paddle")
@pytest.mark.parametrize("kind", [ByBatch, Walked, Noisy])
def test_numbers_differ_everywhere_and_do_not_depend_on_the_workers(backend, batches, kind):
    two = batches(kind, dataloader_num_workers=2)
    check_all_differ(backend, two)
    assert same(two, batches(kind, dataloader_num_workers=1, dataloader_persistent_workers=True))


def test_a_sample_that_comes_again_draws_again(backend, batches):
    check_all_differ(backend, batches(Noisy, Twice, dataloader_num_workers=1))


@pytest.mark.once_on("mindspore", "paddle")
@pytest.mark.parametrize("trainer_class", [Recording, Twice])
def test_seeds_of_each_sample(backend, batches, trainer_class):
    """seed_each_sample: the same numbers without workers, and those of samples in batches of another size too."""
    given = {"seed_each_sample": True}
    alone = batches(Noisy, trainer_class, **given)
    check_all_differ(backend, alone)
    assert same(alone, batches(Noisy, trainer_class, dataloader_num_workers=1, **given))
    smaller = batches(Noisy, trainer_class, per_device_train_batch_size=2, **given)
    assert np.array_equal(np.concatenate(alone)[:, :4], np.concatenate(smaller)[:, :4])


def test_seeds_of_each_sample_leave_the_model_its_streams(train):
    assert train(Noisy, seed_each_sample=True).own == train(Quiet, dataloader_num_workers=1).own
