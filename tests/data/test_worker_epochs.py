"""Workers that live on from epoch to epoch: an epoch that is left early leaves nothing to the next one."""

import numpy as np
import pytest

from oneloop import Trainer, TrainerCallback
from oneloop.data.order import Order
from tests.backends.support import FEATURES

SAMPLES, SEED = 32, 42
RUN = {
    "num_train_epochs": 3,
    "per_device_train_batch_size": 2,
    "learning_rate": 0.1,
    "optim": "sgd",
    "lr_scheduler_type": "constant",
    "seed": SEED,
    "dataloader_num_workers": 2,
    "dataloader_prefetch_factor": 2,
}


def sample(number):
    """One whose first feature says which it is."""
    return {"x": np.full(FEATURES, number, np.float32), "labels": number % 3}


class Recording(Trainer):
    """Keeps which samples each micro-batch holds."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        self.seen.append([int(row[0]) for row in np.array(inputs["x"])])
        return super().compute_loss(model, inputs, *args, **kwargs)


class Stops(TrainerCallback):
    """Ends the first two epochs after two steps each, and the run after `steps`."""

    def __init__(self, steps):
        self.steps, self.epochs = steps, 0

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.epochs += 1

    def on_step_end(self, args, state, control, **kwargs):
        control.should_epoch_stop = self.epochs <= 2 and state.global_step % 2 == 0
        control.should_training_stop = state.global_step == self.steps


@pytest.fixture(params=[True, False], ids=["persistent", "new"])
def batches_seen(request, backend, arguments):
    """Train with epochs that are left early; the samples of all micro-batches."""

    def run(data, steps=None):
        args = arguments(dataloader_persistent_workers=request.param, **RUN)
        trainer = Recording(backend.classifier(), args, train_dataset=data, callbacks=[Stops(steps)])
        trainer.seen = []
        trainer.train()
        return trainer.seen

    return run


def in_order(epoch, count):
    """The first batches of an epoch."""
    return Order(SAMPLES, SEED, epoch)[: 2 * count].reshape(-1, 2).tolist()


def test_the_next_epoch_begins_with_its_own_batches(batches_seen):
    seen = batches_seen([sample(number) for number in range(SAMPLES)])
    assert seen == in_order(0, 2) + in_order(1, 2) + in_order(2, SAMPLES // 2)


class Walked:
    """Samples that can only be walked through, counted from the epoch on, so that every epoch has its own."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        for number in range(12):
            yield sample(100 * self.epoch + number)


def test_an_iterable_data_set_begins_anew(batches_seen):
    seen = batches_seen(Walked())
    pairs = [[number, number + 1] for number in range(0, 12, 2)]
    assert seen[:2] == pairs[:2]
    assert seen[2:4] == [[100 + a, 100 + b] for a, b in pairs[:2]]
    assert seen[4:] == [[200 + a, 200 + b] for a, b in pairs]


class Fails:
    """Has a sample that cannot be read."""

    def __init__(self, broken):
        self.broken = broken

    def __len__(self):
        return SAMPLES

    def __getitem__(self, number):
        if number == self.broken:
            raise OSError(f"sample {number} cannot be read")
        return sample(number)


def test_an_error_that_was_made_ahead_for_an_epoch_that_was_left_is_not_raised(batches_seen):
    """The third batch was asked for and never used."""
    broken = int(Order(SAMPLES, SEED, 0)[4])
    assert broken not in sum(in_order(1, 2), [])
    seen = batches_seen(Fails(broken), steps=4)
    assert seen == in_order(0, 2) + in_order(1, 2)
