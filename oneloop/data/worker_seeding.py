"""Random numbers in DataLoader workers, as a function of the position in the data.

A worker fetches whatever batch comes next, so an RNG per worker would depend on timing, and a resumed run would draw
other numbers. Instead, each sample (and each batch, for datasets with batched fetching and for collators) is seeded by
(data seed, epoch, position). Without workers this would cost more than a step of a small model, and is not needed: the
RNG state of the main process is in the checkpoint.
"""

import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import randomness
from ..backends.loading import load
from .feistel import key_of
from .samples import fetch_sample

# Separate these seeds from each other and from the keys of the data order.
_SAMPLE, _FETCH, _COLLATE = -101, -102, -103

current: tuple[int, ...] | None = None  # in a worker: the seed of the batch being collated


class Indices(list):
    """The samples of a batch, with their position in the run."""

    __slots__ = ("position",)

    def __init__(self, samples: list[int], position: tuple[int, int, int]) -> None:
        super().__init__(samples)
        self.position = position  # (epoch, number of the global micro-batch, position of the first sample in the epoch)

    def __reduce__(self) -> Any:
        return Indices, (list(self), self.position)


def seed_rngs(backend_name: str, seed: int) -> None:
    """Seed all global random number generators."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    load(backend_name).randomness.seed(seed)


class SeededData:
    """A map-style dataset for workers. It fetches the dataset's samples; only the random numbers are seeded.

    With `repeats`, for orders that may repeat a sample in an epoch, each occurrence has its own random numbers. With
    `alone` (seed_each_sample) nothing depends on which worker fetches what: samples are fetched one by one, seeded by
    their position in the epoch. It then also works without workers; RestoreRNGCollator restores the main process's RNG
    state.
    """

    def __init__(
        self, dataset: Any, seed: int, shard_id: int, backend_name: str, repeats: bool = False, per_sample: bool = False
    ) -> None:
        self.dataset = dataset
        self.seed = seed
        self.shard_id = shard_id
        self.backend_name = backend_name
        self.repeats = repeats
        self.per_sample = per_sample
        self._main = os.getpid()
        self._kept: Any = None

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def _start(self, *place: int) -> int:
        seed = key_of(self.seed, *place) >> 1
        seed_rngs(self.backend_name, seed)
        return seed

    def __getitems__(self, indices: list[int]) -> list[Any]:
        global current
        epoch, number, position = getattr(indices, "position", (0, 0, 0))
        if os.getpid() == self._main:
            self._kept = _streams(self.backend_name)
        if self.per_sample:
            samples = []
            for i, index in enumerate(indices):
                self._start(epoch, _SAMPLE, index, *((position + i,) if self.repeats else ()))
                samples.append(fetch_sample(self.dataset, index))
            current = (self._start(epoch, _COLLATE, position),)
            return samples
        fetch = getattr(self.dataset, "__getitems__", None)
        if fetch is not None:
            self._start(epoch, _FETCH, self.shard_id, number)
            samples = fetch(list(indices))
        else:
            samples = []
            for i, index in enumerate(indices):
                self._start(epoch, _SAMPLE, index, *((self.shard_id, number, i) if self.repeats else ()))
                samples.append(fetch_sample(self.dataset, index))
        current = (self._start(epoch, _COLLATE, self.shard_id, number),)  # seed of the collator, which runs next
        return samples

    def restore_rng(self) -> None:
        """Restore the main process's RNG state from before the last batch."""
        global current
        current = None
        if self._kept is not None:
            randomness.set_state(load(self.backend_name), self._kept)
            self._kept = None


def _streams(backend_name: str) -> Any:
    return randomness.get_state(load(backend_name))


class RestoreRNGCollator:
    """The collator for data that is seeded in the main process: restores the model's RNG state afterwards."""

    def __init__(self, collate: Callable[[list[Any]], Any], data: SeededData) -> None:
        self.collate = collate
        self.data = data

    def __call__(self, samples: list[Any]) -> Any:
        try:
            return self.collate(samples)
        finally:
            self.data.restore_rng()
