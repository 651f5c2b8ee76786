"""The data order. It is computed, not drawn or stored: resuming in the middle of an epoch is as fast as at its start.

Terms used here and wherever data is counted:

- sample: the index of an item in the dataset.
- position: an index into an epoch, 0 to length - 1. An order maps positions to samples.
- micro-batch: the samples that one process passes through the model at once (B of them).
- global micro-batch: the W different micro-batches that all processes compute at the same time. Number k of an epoch
  covers the positions from k*B*W up to (k+1)*B*W; shard r of the data has the r-th run of B in it. W and r are
  `num_batches` and `batch_index` of the mesh (distributed/mesh.py).

Since positions are assigned in order, the number of shards changes which process gets a sample, but not when.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..errors import ArgumentError
from .feistel import MAX_LENGTH, permute
from .worker_seeding import Indices

BLOCK = 8192  # positions computed at a time: enough to amortize the cost per batch, too few for a noticeable pause


class Order:
    """The samples of one epoch by position: shuffled by (seed, epoch), or in dataset order."""

    def __init__(self, length: int, seed: int = 0, epoch: int = 0, shuffle: bool = True):
        if not 0 <= length <= MAX_LENGTH:
            raise ArgumentError(
                f"Invalid length={length}: an epoch has 0 to 2**62 samples; check the dataset's __len__"
            )
        self.length = length
        self.seed = seed
        self.epoch = epoch
        self.shuffle = shuffle

    def __len__(self) -> int:
        return self.length

    def at(self, positions: np.ndarray) -> np.ndarray:
        """The samples at these positions, in an int64 array of the same shape."""
        if not self.shuffle or positions.size == 0:
            return positions
        return permute(positions, self.length, self.seed, self.epoch)

    def take(self, start: int, stop: int) -> np.ndarray:
        """The samples at positions start (inclusive) to stop (exclusive)."""
        if not 0 <= start <= stop <= self.length:
            raise IndexError(f"positions {start} to {stop} are out of range for an epoch of {self.length} samples")
        return self.at(np.arange(start, stop, dtype=np.int64))

    def __getitem__(self, place: int | slice) -> int | np.ndarray:
        if isinstance(place, slice):
            return self.at(np.arange(*place.indices(self.length), dtype=np.int64))
        if not -self.length <= place < self.length:
            raise IndexError(f"position {place} is out of range for an epoch of {self.length} samples")
        return int(self.at(np.array([place % self.length], dtype=np.int64))[0])


class NoBatch:
    """Yielded by a loader when its process has no sample but others do."""


class Collated:
    """Wraps a collator so that it is not called without samples: returns NoBatch instead."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: list[Any]) -> Any:
        return self.collate(samples) if len(samples) else NoBatch()


class BatchSampler:
    """The micro-batches of one process as lists of sample indices, epoch by epoch.

    `orders` maps the epoch number to an order, for example `partial(Order, length, seed)`.

    Without `drop_last`, the remaining samples form one last global micro-batch. They are divided as evenly as possible,
    lower ranks first, so a micro-batch there can be short or, with fewer samples than processes, an empty list: every
    process yields the same number of micro-batches, and the caller decides what to do with an empty one.
    """

    def __init__(
        self,
        orders: Callable[[int], Order],
        micro_batch: int,
        num_shards: int = 1,
        shard_id: int = 0,
        drop_last: bool = False,
        placed: bool = False,
    ):
        if micro_batch < 1:
            raise ArgumentError(f"Invalid batch size {micro_batch}: expected at least 1; increase the batch size")
        if not 0 <= shard_id < num_shards:
            raise ArgumentError(
                f"Invalid rank {shard_id} for {num_shards} processes; check the launcher's environment variables"
            )
        self.orders = orders
        self.batch_size = micro_batch
        self.num_shards = num_shards
        self.shard_id = shard_id
        self.drop_last = drop_last
        self.placed = placed  # batches carry their position, for workers that seed by it
        self.length = len(orders(0))
        self.epoch = 0
        self._start = 0

    def __len__(self) -> int:
        """Micro-batches in a full epoch, independent of start_at; the same on every process."""
        whole, rest = divmod(self.length, self.batch_size * self.num_shards)
        return whole if self.drop_last or not rest else whole + 1

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; a running iteration is not affected."""
        self.epoch = epoch

    def remaining(self, batches: int) -> float:
        """What is left of the epoch after so many global micro-batches: below 0 if not all of them are full, and 0 or
        less if nothing is left."""
        return self.length - batches * self.batch_size * self.num_shards

    def samples_of_update(self, epoch: int, update: int, accumulation: int) -> np.ndarray:
        """The samples that all processes have in an update."""
        size = self.batch_size * self.num_shards * accumulation
        end = min(self.length, len(self) * self.batch_size * self.num_shards)  # drop_last drops what follows
        return self.orders(epoch).take(update * size, min((update + 1) * size, end))

    def start_at(self, batch: int) -> None:
        """Start the next iteration, and only that one, at this micro-batch of its epoch."""
        if not 0 <= batch <= len(self):
            raise ArgumentError(
                f"cannot start at micro-batch {batch} of an epoch that has {len(self)}; "
                "the dataset or the batch size differs from the run that saved this position"
            )
        self._start = batch

    def __iter__(self) -> Iterator[list[int]]:
        # Not a generator itself: epoch and start are read at iter(), not at the first next(). Some loaders call iter()
        # twice and use the second iterator, so the first next() resets the start.
        first = self._start
        batches = self._batches(self.orders(self.epoch), first)
        if not self.placed:
            return batches
        epoch = self.epoch
        return (Indices(batch, (epoch, number, self._first(number))) for number, batch in enumerate(batches, first))

    def positions(self, number: int) -> np.ndarray:
        """The positions of this process's micro-batch `number` in the epoch."""
        first = self._first(number)
        whole = (number + 1) * self.batch_size * self.num_shards <= self.length
        end = first + self.batch_size if whole else self._local_range(number * self.batch_size * self.num_shards)[1]
        return np.arange(first, end, dtype=np.int64)

    def _first(self, number: int) -> int:
        """The position of the first sample of this process's micro-batch `number`."""
        begin = number * self.batch_size * self.num_shards
        whole = begin + self.batch_size * self.num_shards <= self.length
        return begin + self.shard_id * self.batch_size if whole else self._local_range(begin)[0]

    def _batches(self, order: Order, first: int) -> Iterator[list[int]]:
        if self._start == first:
            self._start = 0
        size, together = self.batch_size, self.batch_size * self.num_shards
        whole = self.length // together
        at_once = -(-BLOCK // size)
        own = np.empty(0, np.int64)
        if first < whole:  # a batch that the data do not fill may be larger than memory
            own = np.arange(self.shard_id * size, (self.shard_id + 1) * size, dtype=np.int64)
        for begin in range(first, whole, at_once):
            numbers = np.arange(begin, min(begin + at_once, whole), dtype=np.int64)
            yield from order.at(numbers[:, None] * together + own).tolist()
        if first <= whole < len(self):
            yield self._last(order, whole * together)

    def _last(self, order: Order, begin: int) -> list[int]:
        """This process's micro-batch of the last global micro-batch, if that is incomplete."""
        return order.take(*self._local_range(begin)).tolist()

    def _local_range(self, begin: int) -> tuple[int, int]:
        """This process's part of the positions from `begin` to the end of the epoch."""
        each, extra = divmod(self.length - begin, self.num_shards)
        start = begin + self.shard_id * each + min(self.shard_id, extra)
        return start, start + each + (self.shard_id < extra)
