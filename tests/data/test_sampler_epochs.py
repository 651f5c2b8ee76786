"""A sampler, batch sampler, data set or loader of the user's is told the epoch, also after a resume."""

from itertools import islice

import numpy as np
import pytest

from oneloop import Trainer
from tests.backends.support import FEATURES, kit_module

SAMPLES, BATCH = 8, 2  # four steps an epoch
RUN = {
    "num_train_epochs": 3,
    "per_device_train_batch_size": BATCH,
    "optim": "sgd",
    "learning_rate": 0.01,
    "save_strategy": "steps",
    "save_steps": 6,  # in the middle of the second epoch
}


def order_of(epoch):
    """Another one in each epoch, and for no epoch at all none that could be mistaken for one of them."""
    return [(3 * place + 5 * epoch) % SAMPLES for place in range(SAMPLES)]


WHOLE = [order_of(epoch)[place : place + BATCH] for epoch in range(3) for place in range(0, SAMPLES, BATCH)]


class Numbered:
    """Samples whose first feature says which they are."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, number):
        return {"x": np.full(FEATURES, number, np.float32), "labels": int(number) % 3}


class ByEpoch:
    """A sampler of single indices."""

    epoch = 99

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return SAMPLES

    def __iter__(self):
        return iter(order_of(self.epoch))


class BatchesByEpoch(ByEpoch):
    """The same by batches."""

    batch_size = BATCH

    def __len__(self):
        return SAMPLES // BATCH

    def __iter__(self):
        indices = iter(order_of(self.epoch))
        while batch := list(islice(indices, BATCH)):
            yield batch


class WalkedByEpoch(ByEpoch):
    """An iterable data set."""

    def __iter__(self):
        return map(Numbered().__getitem__, order_of(self.epoch))


class Loader:
    """A loader of one's own, of no framework."""

    def __init__(self, indices, collate, **more):
        self.indices, self.collate = indices, collate
        vars(self).update(more)

    def __len__(self):
        return SAMPLES // BATCH

    def __iter__(self):
        indices = iter(self.indices)
        while chosen := list(islice(indices, BATCH)):
            yield self.collate([Numbered()[number] for number in chosen])


class LoaderByEpoch(Loader):
    def set_epoch(self, epoch):
        self.indices.set_epoch(epoch)


class Recording(Trainer):
    """Keeps which samples each micro-batch holds."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        self.seen.append([int(row[0]) for row in np.array(inputs["x"])])
        return super().compute_loss(model, inputs, *args, **kwargs)


class WithSampler(Recording):
    def _get_train_sampler(self, train_dataset=None):
        return ByEpoch()


def loading(make):
    """A Trainer whose get_train_dataloader is make(the collator)."""

    class Loading(Recording):
        def get_train_dataloader(self):
            return make(self.data_collator)

    return Loading


def plain(attribute):
    """get_train_dataloader with a loader of one's own, which shows what it draws from under this name."""

    def make(collate):
        told = ByEpoch()
        if attribute == "itself":
            return LoaderByEpoch(told, collate)
        return Loader(told, collate, **{attribute: told})

    return loading(make)


@pytest.fixture
def check(arguments, tmp_path):
    """check(kit, trainer_class): three epochs in the sampler's order, in one go and from the middle of the second."""

    def run(kit, trainer_class, make_data=Numbered, **given):
        for folder, step in (("whole", 0), ("resumed", 6)):
            args = arguments(tmp_path / folder, **RUN | given)
            trainer = trainer_class(kit.classifier(), args, train_dataset=make_data())
            trainer.seen = []
            trainer.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}") if step else None)
            assert trainer.seen == WHOLE[step:], folder

    return run


def test_a_sampler_of_get_train_sampler(backend, check):
    check(backend, WithSampler)


@pytest.mark.once_on("mindspore", "paddle")
@pytest.mark.parametrize("attribute", ["sampler", "batch_sampler", "dataset", "itself"])
def test_a_loader_of_ones_own(backend, check, attribute):
    check(backend, plain(attribute))


def test_an_iterable_data_set(backend, check):
    check(backend, Recording, WalkedByEpoch, max_steps=12)


@pytest.mark.parametrize("given", ["sampler", "batch sampler", "sampler in a batch sampler"])
def test_a_loader_of_torch(check, given):
    data = pytest.importorskip("torch").utils.data
    options = {
        "sampler": lambda: {"sampler": ByEpoch(), "batch_size": BATCH},
        "batch sampler": lambda: {"batch_sampler": BatchesByEpoch()},
        "sampler in a batch sampler": lambda: {"batch_sampler": data.BatchSampler(ByEpoch(), BATCH, False)},
    }[given]
    trainer_class = loading(lambda collate: data.DataLoader(Numbered(), collate_fn=collate, **options()))
    check(kit_module("torch").Kit(), trainer_class)


@pytest.mark.parametrize("step", [6, 8])  # within the second epoch, at its end
@pytest.mark.parametrize("given", ["sampler of the Trainer", "sampler", "shuffle"])
def test_a_sampler_with_a_generator_of_its_own(arguments, tmp_path, given, step):
    """It draws the order of each epoch from where the one before ended."""
    torch = pytest.importorskip("torch")
    data = torch.utils.data

    def generator():
        return torch.Generator().manual_seed(5)

    class Sampling(Recording):
        def _get_train_sampler(self, train_dataset=None):
            return data.RandomSampler(Numbered(), generator=generator())

    def make(collate):
        options = {"sampler": data.RandomSampler(Numbered(), generator=generator())}
        options = options if given == "sampler" else {"shuffle": True, "generator": generator()}
        return data.DataLoader(Numbered(), collate_fn=collate, batch_size=BATCH, **options)

    seen = {}
    for folder in ("whole", "resumed"):
        args = arguments(tmp_path / folder, **RUN | {"save_steps": step})
        trainer_class = Sampling if given == "sampler of the Trainer" else loading(make)
        trainer = trainer_class(kit_module("torch").Kit().classifier(), args, train_dataset=Numbered())
        trainer.seen = seen[folder] = []
        resume = None if folder == "whole" else str(tmp_path / "whole" / f"checkpoint-{step}")
        trainer.train(resume_from_checkpoint=resume)
    epochs = [seen["whole"][place : place + 4] for place in (0, 4, 8)]
    assert len(epochs[2]) == 4 and epochs[0] != epochs[1] != epochs[2]
    assert seen["resumed"] == seen["whole"][step:]


@pytest.mark.parametrize("given", ["batch sampler", "sampler in a batch sampler"])
def test_a_loader_of_paddle(check, given):
    io = pytest.importorskip("paddle").io

    class Sampler(ByEpoch, io.Sampler):
        pass

    class Batches(BatchesByEpoch, io.BatchSampler):
        def __init__(self):
            super().__init__(Numbered(), batch_size=BATCH)

    make = {
        "batch sampler": Batches,
        "sampler in a batch sampler": lambda: io.BatchSampler(None, Sampler(), False, BATCH),
    }
    options = lambda: {"batch_sampler": make[given]()}  # noqa: E731
    trainer_class = loading(lambda collate: io.DataLoader(Numbered(), collate_fn=collate, **options()))
    check(kit_module("paddle").Kit(), trainer_class)


class LongerThanItsLength:
    """A loader of one's own that yields more batches than its length says, and others in each epoch."""

    epoch = 99

    def __init__(self, collate):
        self.collate = collate

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 3

    def __iter__(self):
        return (self.collate([Numbered()[(self.epoch + place) % SAMPLES]]) for place in range(5))


@pytest.mark.parametrize("accumulation", [1, 2])
def test_an_epoch_ends_at_the_length_of_the_loader(backend, arguments, tmp_path, accumulation):
    """As in transformers; a resume within an epoch goes on to the same end."""
    seen = [[[(epoch + place) % SAMPLES] for place in range(3)] for epoch in range(3)]
    steps = -(-3 // accumulation)
    for folder, resume in (("whole", None), ("resumed", steps + 1)):
        args = arguments(
            tmp_path / folder, **RUN | {"save_steps": steps + 1, "gradient_accumulation_steps": accumulation}
        )
        trainer = loading(LongerThanItsLength)(backend.classifier(), args, train_dataset=Numbered())
        trainer.seen = []
        trainer.train(resume_from_checkpoint=resume and str(tmp_path / "whole" / f"checkpoint-{resume}"))
        assert trainer.state.global_step == 3 * steps and trainer.state.epoch == 3.0
        assert trainer.seen == (sum(seen, []) if resume is None else seen[1][accumulation:] + seen[2])
