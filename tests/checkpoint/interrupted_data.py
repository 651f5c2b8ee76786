"""Training data of every kind, for interrupted_runs.py: where the order comes from, and who keeps the position.

A kind is a function of (a Course, its kit) that returns what a Trainer needs in order to be built: its dataset, and
the overrides of its class. Everything is made anew for each process of a run, as a script would.
"""

import random

import numpy as np

from tests.checkpoint.job import NoisyTexts


class TextsWithState(NoisyTexts):
    """Texts that draw from a generator of their own, whose state they keep."""

    def __init__(self, *args):
        super().__init__(*args)
        self.own = random.Random(8)

    def __getitem__(self, index):
        found = super().__getitem__(index)
        found["input_ids"][0] = 1 + self.own.randrange(20)
        return found

    def state_dict(self):
        version, words, gauss = self.own.getstate()
        return {"version": version, "words": list(words), "gauss": gauss}

    def load_state_dict(self, state):
        self.own.setstate((state["version"], tuple(state["words"]), state["gauss"]))


class Sampler:
    """Single indices in an order that is drawn from NumPy's global stream when an epoch begins."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __iter__(self):
        return iter(np.random.permutation(self.count).tolist())


class LongSampler(Sampler):
    """It yields more indices than it says, and each batch beyond would be an error."""

    def __iter__(self):
        yield from super().__iter__()
        raise AssertionError("nothing was to be read after the length of the sampler")


class LazySampler(Sampler):
    """Each index is drawn when it is asked for, and one more at the end."""

    def __iter__(self):
        for _ in range(self.count):
            yield random.randrange(self.count)
        random.random()


class Stream:
    """An iterable without a state, shuffled when an epoch begins."""

    def __init__(self, texts):
        self.texts = texts

    def __iter__(self):
        yield from map(self.texts.__getitem__, np.random.permutation(len(self.texts)).tolist())


class StreamWithLength(Stream):
    def __len__(self):
        return len(self.texts)


class StreamWithState:
    """An iterable that keeps its position and its order; when it has ended, its state is that of a new start."""

    def __init__(self, texts):
        self.texts = texts
        self.order, self.place = [], 0

    def drawn(self):
        return np.random.permutation(len(self.texts)).tolist()

    def __iter__(self):
        if not self.order:
            self.order = self.drawn()
        while self.place < len(self.order):
            self.place += 1
            yield self.texts[self.order[self.place - 1]]
        self.order, self.place = [], 0

    def state_dict(self):
        return {"order": self.order, "place": self.place}

    def load_state_dict(self, state):
        self.order, self.place = list(state["order"]), state["place"]


class StreamWithGenerator(StreamWithState):
    """Its state has a generator too, which goes on from epoch to epoch."""

    def __init__(self, texts):
        super().__init__(texts)
        self.own = random.Random(8)

    def drawn(self):
        return self.own.sample(range(len(self.texts)), len(self.texts))

    def state_dict(self):
        return super().state_dict() | {"own": self.own.getstate()}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        version, words, gauss = state["own"]
        self.own.setstate((version, tuple(words), gauss))


class StreamWithOffset(StreamWithState):
    """A loaded state is where the next iteration starts; when it has ended, that is the end."""

    start = 0

    def __iter__(self):
        start, self.start = self.start, 0
        if not start:
            self.order = self.drawn()
        for place in range(start, len(self.order)):
            self.place = place + 1
            yield self.texts[self.order[place]]
        random.random()  # so that iterating in vain changes something

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.start = self.place


class StreamWithPlace:
    """An iterable in the order of the data, whose position is back at the start with the last sample."""

    def __init__(self, texts):
        self.texts, self.place = texts, 0

    def __iter__(self):
        is_over = False
        while not is_over:
            place, self.place = self.place, (self.place + 1) % len(self.texts)
            is_over = self.place == 0
            yield self.texts[place]

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


class StreamWithRestart(StreamWithPlace):
    """It stays at its end, and goes back to the start when it is iterated there."""

    def __iter__(self):
        if self.place == len(self.texts):
            self.place = 0
        while self.place < len(self.texts):
            self.place += 1
            yield self.texts[self.place - 1]


class StreamWithEpoch(StreamWithRestart):
    """Its state counts passes too. It has a length: nothing else would tell that a pass was over when it was saved."""

    epoch = 0

    def __len__(self):
        return len(self.texts)

    def __iter__(self):
        self.epoch += self.place == len(self.texts)
        return super().__iter__()

    def state_dict(self):
        return super().state_dict() | {"epoch": self.epoch}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.epoch = state["epoch"]


class StreamWithOwnIterator(StreamWithPlace):
    """Its own iterator, which starts again after it has said that it is over."""

    def __iter__(self):
        return self

    def __next__(self):
        if self.place == len(self.texts):
            self.place = 0
            raise StopIteration
        self.place += 1
        return self.texts[self.place - 1]


def dataset(data, **more):
    return {"data": data, **more}


def with_sampler(data, make):
    return dataset(data, _get_train_sampler=lambda self, train_dataset=None: make(data))


def with_loader(data, make):
    return dataset(data, get_train_dataloader=lambda self: make(data, self.data_collator))


# -- on every framework


def mapped(course, kit):
    return dataset(NoisyTexts(course.samples, 5, kit))


def mapped_with_state(course, kit):
    return dataset(TextsWithState(course.samples, 5, kit))


def sampled(course, kit):
    return with_sampler(NoisyTexts(course.samples, 5, kit), lambda data: Sampler(len(data)))


def sampled_beyond(course, kit):
    return with_sampler(NoisyTexts(course.samples, 5, kit), lambda data: LongSampler(len(data)))


def sampled_lazily(course, kit):
    return with_sampler(NoisyTexts(course.samples, 5, kit), lambda data: LazySampler(len(data)))


def sampled_with_state(course, kit):
    return with_sampler(TextsWithState(course.samples, 5, kit), lambda data: Sampler(len(data)))


def streamed(course, kit):
    return dataset(Stream(NoisyTexts(course.samples, 5, kit)))


def streamed_with_length(course, kit):
    return dataset(StreamWithLength(NoisyTexts(course.samples, 5, kit)))


def streamed_with_state(course, kit):
    return dataset(StreamWithState(NoisyTexts(course.samples, 5, kit)))


def streamed_with_generator(course, kit):
    return dataset(StreamWithGenerator(NoisyTexts(course.samples, 5, kit)))


def streamed_with_offset(course, kit):
    return dataset(StreamWithOffset(NoisyTexts(course.samples, 5, kit)))


def streamed_with_place(course, kit):
    return dataset(StreamWithPlace(NoisyTexts(course.samples, 5, kit)))


def streamed_with_restart(course, kit):
    return dataset(StreamWithRestart(NoisyTexts(course.samples, 5, kit)))


def streamed_with_epoch(course, kit):
    return dataset(StreamWithEpoch(NoisyTexts(course.samples, 5, kit)))


def streamed_with_own_iterator(course, kit):
    return dataset(StreamWithOwnIterator(NoisyTexts(course.samples, 5, kit)))


COMMON = {
    "map": mapped,
    "map with state": mapped_with_state,
    "sampler": sampled,
    "long sampler": sampled_beyond,
    "lazy sampler": sampled_lazily,
    "sampler of data with state": sampled_with_state,
    "stream": streamed,
    "stream with length": streamed_with_length,
    "stream with state": streamed_with_state,
    "stream with generator": streamed_with_generator,
    "stream with offset": streamed_with_offset,
    "stream with place": streamed_with_place,
    "stream with restart": streamed_with_restart,
    "stream with own iterator": streamed_with_own_iterator,
    "stream with epoch": streamed_with_epoch,
}


# -- PyTorch


def _generator(seed=5):
    import torch

    return torch.Generator().manual_seed(seed)


def torch_random(course, kit):
    from torch.utils.data import RandomSampler

    return with_sampler(NoisyTexts(course.samples, 5, kit), RandomSampler)


def torch_generator(course, kit):
    from torch.utils.data import RandomSampler

    data = NoisyTexts(course.samples, 5, kit)
    return with_sampler(data, lambda data: RandomSampler(data, generator=_generator()))


def torch_shared_generator(course, kit):
    """A generator that the training draws from as well."""
    import torch
    from torch.utils.data import RandomSampler

    from oneloop import Trainer

    generator = _generator()

    def compute_loss(self, *args, **kwargs):
        torch.rand((), generator=generator)
        return Trainer.compute_loss(self, *args, **kwargs)

    data = NoisyTexts(course.samples, 5, kit)
    return with_sampler(data, lambda data: RandomSampler(data, generator=generator)) | {"compute_loss": compute_loss}


def torch_replacement(course, kit):
    from torch.utils.data import RandomSampler

    def make(data):
        return RandomSampler(data, replacement=True, num_samples=course.samples + 36, generator=_generator())

    return with_sampler(NoisyTexts(course.samples, 5, kit), make)


def torch_epoch_and_generator(course, kit):
    """A sampler that is told the epoch and goes on with its generator all the same."""
    from torch.utils.data import RandomSampler

    class Told(RandomSampler):
        def set_epoch(self, epoch):
            self.epoch = epoch

    data = NoisyTexts(course.samples, 5, kit)
    return with_sampler(data, lambda data: Told(data, generator=_generator()))


def torch_batches(course, kit):
    from torch.utils.data import BatchSampler, RandomSampler

    def make(data):
        return BatchSampler(RandomSampler(data, generator=_generator()), course.batch, drop_last=False)

    return with_sampler(NoisyTexts(course.samples, 5, kit), make)


def torch_loader(course, kit, generator=lambda: None, kind=None):
    from torch.utils.data import DataLoader

    def make(data, collate):
        options = {"batch_size": course.batch, "shuffle": True, "collate_fn": collate, "generator": generator()}
        return (kind or DataLoader)(data, **options)

    return with_loader(NoisyTexts(course.samples, 5, kit), make)


def torch_loader_generator(course, kit):
    return torch_loader(course, kit, _generator)


def torch_stateful_loader(course, kit):
    from torchdata.stateful_dataloader import StatefulDataLoader

    return torch_loader(course, kit, kind=StatefulDataLoader)


def torch_stateful_loader_generator(course, kit):
    from torchdata.stateful_dataloader import StatefulDataLoader

    return torch_loader(course, kit, _generator, StatefulDataLoader)


def _stateful_loader_with_workers(course, data):
    from torchdata.stateful_dataloader import StatefulDataLoader

    def make(data, collate):
        return StatefulDataLoader(data, batch_size=course.batch, num_workers=2, collate_fn=collate)

    return with_loader(data, make)


def torch_stateful_loader_workers(course, kit):
    return _stateful_loader_with_workers(course, NoisyTexts(course.samples, 5, kit))


def torch_stateful_loader_stream(course, kit):
    """An iterable with a state in two workers, which take whole batches of it."""
    from torch.utils.data import IterableDataset, get_worker_info

    class Divided(StreamWithState, IterableDataset):
        def drawn(self):
            worker = get_worker_info()
            numbers = range(len(self.texts))
            return [i for i in numbers if i // course.batch % worker.num_workers == worker.id]

    return _stateful_loader_with_workers(course, Divided(NoisyTexts(course.samples, 5, kit)))


def torch_stream_generator(course, kit):
    """An iterable of torch with a generator, which is seeded for each epoch."""
    import torch
    from torch.utils.data import IterableDataset

    class Own(IterableDataset):
        def __init__(self, texts):
            self.texts, self.generator = texts, _generator()

        def __iter__(self):
            for index in torch.randperm(len(self.texts), generator=self.generator).tolist():
                yield self.texts[index]

    return dataset(Own(NoisyTexts(course.samples, 5, kit)))


def shuffled_buffer(course, kit):
    """A stream of `datasets` that is shuffled through a buffer."""
    from datasets import Dataset

    texts = NoisyTexts(course.samples, 5, kit)
    rows = Dataset.from_dict({"input_ids": texts.texts, "labels": [sum(text) % 3 for text in texts.texts]})
    return dataset(rows.to_iterable_dataset(num_shards=2).shuffle(seed=3, buffer_size=5))


TORCH = {
    "torch RandomSampler": torch_random,
    "torch generator": torch_generator,
    "torch shared generator": torch_shared_generator,
    "torch replacement": torch_replacement,
    "torch set_epoch and generator": torch_epoch_and_generator,
    "torch BatchSampler": torch_batches,
    "torch DataLoader": torch_loader,
    "torch DataLoader generator": torch_loader_generator,
    "torch StatefulDataLoader": torch_stateful_loader,
    "torch StatefulDataLoader generator": torch_stateful_loader_generator,
    "torch StatefulDataLoader workers": torch_stateful_loader_workers,
    "torch StatefulDataLoader workers and stream": torch_stateful_loader_stream,
    "torch IterableDataset generator": torch_stream_generator,
    "datasets shuffle": shuffled_buffer,
}


# -- PaddlePaddle


def paddle_random(course, kit):
    from paddle.io import RandomSampler

    return with_sampler(NoisyTexts(course.samples, 5, kit), RandomSampler)


def paddle_batches(course, kit):
    from paddle.io import BatchSampler

    def make(data):
        return BatchSampler(data, shuffle=True, batch_size=course.batch)

    return with_sampler(NoisyTexts(course.samples, 5, kit), make)


def paddle_loader(course, kit):
    from paddle.io import DataLoader, Dataset

    class Texts(NoisyTexts, Dataset):
        pass

    def make(data, collate):
        return DataLoader(data, batch_size=course.batch, shuffle=True, collate_fn=collate)

    return with_loader(Texts(course.samples, 5, kit), make)


PADDLE = {
    "paddle RandomSampler": paddle_random,
    "paddle BatchSampler": paddle_batches,
    "paddle DataLoader": paddle_loader,
}


# -- MindSpore


def mindspore_pipeline(course, kit):
    from mindspore.dataset import GeneratorDataset

    source = np.random.RandomState(5)
    ids = source.randint(1, 20, (course.samples, 6)).astype(np.int64)
    rows = [(row, np.int64(row.sum() % 3)) for row in ids]
    return dataset(GeneratorDataset(rows, ["input_ids", "labels"], shuffle=True))


def mindspore_batches(course, kit):
    found = mindspore_pipeline(course, kit)
    sizes = {"per_device_train_batch_size": 1, "per_device_eval_batch_size": 1}  # of batches that it makes itself
    return found | {"data": found["data"].batch(course.batch), "options": sizes}


MINDSPORE = {"mindspore pipeline": mindspore_pipeline, "mindspore batches": mindspore_batches}

KINDS = {"torch": COMMON | TORCH, "paddle": COMMON | PADDLE, "mindspore": COMMON | MINDSPORE}
