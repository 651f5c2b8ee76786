"""world_invariant=True: which samples are in a micro-batch does not depend on the number of processes.

An update has V micro-batches of B samples: number v of update u has the positions from (u*V + v)*B on. Of W processes
each computes V/W consecutive ones, so that what it adds up is a block. What is left at the end of an epoch fills
micro-batches one after the other, and those that follow are empty: dividing it evenly, as BatchSampler does, would make
batches of other sizes on another number of processes.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .order import BLOCK, BatchSampler, Order


class UpdateBatches(BatchSampler):
    """The micro-batches of one process, `accumulation` of them in each update. Every epoch is a whole number of
    updates; with drop_last, an update that is not full is dropped."""

    def __init__(
        self,
        orders: Callable[[int], Order],
        micro_batch: int,
        num_shards: int = 1,
        shard_id: int = 0,
        drop_last: bool = False,
        placed: bool = False,
        accumulation: int = 1,
    ):
        super().__init__(orders, micro_batch, num_shards, shard_id, drop_last, placed)
        self.accumulation = accumulation

    def __len__(self) -> int:
        whole, rest = divmod(self.length, self._samples_per_update)
        return (whole if self.drop_last or not rest else whole + 1) * self.accumulation

    @property
    def _samples_per_update(self) -> int:
        return self.batch_size * self.num_shards * self.accumulation

    def positions(self, number: int) -> np.ndarray:
        return np.arange(*self._range(number), dtype=np.int64)

    def _first(self, number: int) -> int:
        return self._range(number)[0]

    def _range(self, number: int) -> tuple[int, int]:
        """The positions of this process's micro-batch `number`, from the first to behind the last."""
        start = int(self._starts(np.array([number]))[0])
        return min(start, self.length), min(start + self.batch_size, self.length)

    def _starts(self, numbers: np.ndarray) -> np.ndarray:
        updates, places = np.divmod(numbers, self.accumulation)
        return ((updates * self.num_shards + self.shard_id) * self.accumulation + places) * self.batch_size

    def _batches(self, order: Order, first: int) -> Iterator[Any]:
        if self._start == first:
            self._start = 0
        whole = self.length // self._samples_per_update * self.accumulation
        at_once = -(-BLOCK // self.batch_size)
        for begin in range(first, whole, at_once):
            starts = self._starts(np.arange(begin, min(begin + at_once, whole), dtype=np.int64))
            yield from order.at(starts[:, None] + np.arange(self.batch_size, dtype=np.int64)).tolist()
        for number in range(max(first, whole), len(self)):
            yield order.take(*self._range(number)).tolist()
