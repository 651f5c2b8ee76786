"""Samplers of single indices: what `_get_train_sampler` returns, and what users may return instead."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from ..backends import registry
from ..distributed.collectives import SINGLE_PROCESS, ProcessGroup
from ..distributed.mesh import SINGLE, Mesh
from ..errors import DataError
from .order import BLOCK, Order
from .worker_seeding import Indices


class IndexSampler:
    """Yields the sample indices of an order, epoch by epoch; usable as a sampler of a framework's loader."""

    def __init__(self, orders: Callable[[int], Order]) -> None:
        self.orders = orders
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.orders(0))

    def __iter__(self) -> Iterator[int]:
        order = self.orders(self.epoch)
        for start in range(0, len(order), BLOCK):
            yield from order.take(start, min(start + BLOCK, len(order))).tolist()


class UserBatches:
    """Batches from a user's sampler. Its order is not computed, so a resume iterates over it again."""

    batch_size: int
    num_shards, shard_id = 1, 0  # that each batch of the sampler is split into, and the one of this process

    def __init__(self, sampler: Any, placed: bool, processes: ProcessGroup, mesh: Mesh) -> None:
        self.sampler = sampler
        self.placed = placed  # batches carry their position, for workers that seed by it
        self.processes, self.mesh = processes, mesh
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[list[int]]:
        # Not a generator itself: the epoch is read at iter(), not at the first next().
        batches = self._batches()
        if not self.placed:
            return batches
        epoch = self.epoch
        return (Indices(batch, (epoch, number, self._first(number))) for number, batch in enumerate(batches))

    def _batches(self) -> Iterator[list[int]]:
        raise NotImplementedError

    def _first(self, number: int) -> int:
        """The position of the first sample of this process's batch of that number."""
        return (number * self.mesh.num_batches + self.mesh.batch_index) * self.batch_size


class SamplerBatches(UserBatches):
    """Batches of a sampler of single indices.

    With several processes, the order is broadcast from the main process and split as in BatchSampler; a sampler that
    shards its samples itself (it has `num_replicas`) is used unchanged.
    """

    def __init__(
        self,
        sampler: Any,
        batch_size: int,
        drop_last: bool,
        placed: bool = False,
        processes: ProcessGroup = SINGLE_PROCESS,
        mesh: Mesh = SINGLE,
    ) -> None:
        super().__init__(sampler, placed, processes, SINGLE if hasattr(sampler, "num_replicas") else mesh)
        self.num_shards, self.shard_id = self.mesh.num_batches, self.mesh.batch_index
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __len__(self) -> int:
        whole, rest = divmod(len(self.sampler), self.batch_size * self.num_shards)
        return whole if self.drop_last or not rest else whole + 1

    def _batches(self) -> Iterator[list[int]]:
        if self.num_shards > 1:
            yield from self._split()
            return
        samples = iter(self.sampler)
        while batch := list(islice(samples, self.batch_size)):
            if len(batch) < self.batch_size and self.drop_last:
                return
            yield [int(i) for i in batch]

    def _split(self) -> Iterator[list[int]]:
        """Broadcasts the order from the main process, since samplers draw from RNGs that differ between processes. A
        sampler may yield more than its length, or never end."""
        order = self.processes.broadcast_object(
            np.fromiter(islice(iter(self.sampler), len(self.sampler)), np.int64) if self.shard_id == 0 else None
        )
        for number in range(len(self)):
            start, stop = self._part(number, len(order))
            yield order[start:stop].tolist()

    def _first(self, number: int) -> int:
        return self._part(number, len(self.sampler))[0]

    def _part(self, number: int, length: int) -> tuple[int, int]:
        """The positions of this process in a global micro-batch; a short one is divided as evenly as possible."""
        begin = number * self.batch_size * self.num_shards
        each, extra = divmod(max(0, min(self.batch_size * self.num_shards, length - begin)), self.num_shards)
        start = begin + self.shard_id * each + min(self.shard_id, extra)
        return start, start + each + (self.shard_id < extra)


def yields_batches(sampler: Any) -> bool:
    """Whether this is a framework's batch sampler (an override may return one); imports no framework."""
    return any(
        base.__name__ == "BatchSampler" and registry.is_framework_module(base.__module__)
        for base in type(sampler).__mro__
    )


def shuffles(sampler: Any, dataset: Any) -> bool:
    """Whether this is torch's RandomSampler, which yields every sample of the dataset once; imports no framework."""
    bases = [(base.__module__.partition(".")[0], base.__name__) for base in type(sampler).__mro__]
    return ("torch", "RandomSampler") in bases and not sampler.replacement and sampler.num_samples == len(dataset)


class GivenBatches(UserBatches):
    """The batches of a user's batch sampler, unchanged."""

    def __init__(self, sampler: Any, placed: bool = False, mesh: Mesh = SINGLE) -> None:
        if mesh.num_batches > 1 and not (hasattr(sampler, "nranks") or hasattr(sampler, "num_replicas")):
            raise DataError(
                f"{type(sampler).__name__} yields the same batches on each of the {mesh.size} processes. Return a "
                "sampler of single indices, which is sharded automatically, or a DistributedBatchSampler."
            )
        super().__init__(sampler, placed, SINGLE_PROCESS, mesh)
        self.batch_size = int(getattr(sampler, "batch_size", None) or 1)

    def __len__(self) -> int:
        return len(self.sampler)

    def _batches(self) -> Iterator[list[int]]:
        return ([int(i) for i in batch] for batch in self.sampler)
