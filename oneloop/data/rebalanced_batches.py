"""train_sampling_strategy="batch_rebalance": the samples of an update in micro-batches of about equal cost.

An update has the samples that it has in random order. They are sorted by length and cut into as many runs as there are
micro-batches, few long samples or many short ones, so that the most expensive run is as cheap as can be. The runs do
not depend on the number of processes, to which they are assigned by cost.
"""

import hashlib
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np

from .cost_batches import Cost, most_samples, padded_tokens, shares_of
from .order import Order
from .update_batches import UpdateBatches
from .worker_seeding import Indices

HALVINGS = 12  # of the range in which the cost of the most expensive run is searched


class RebalancedBatches(UpdateBatches):
    """The micro-batches of one process, `accumulation` of them in each update."""

    def __init__(
        self,
        orders: Callable[[int], Order],
        micro_batch: int,
        num_shards: int = 1,
        shard_id: int = 0,
        drop_last: bool = False,
        placed: bool = False,
        accumulation: int = 1,
        lengths: np.ndarray | None = None,
        cost: Cost = padded_tokens,
    ):
        super().__init__(orders, micro_batch, num_shards, shard_id, drop_last, placed, accumulation)
        self.lengths = np.zeros(self.length, np.int64) if lengths is None else lengths
        self.cost = cost
        self._own = shares_of(num_shards, shard_id, accumulation)

    @cached_property
    def digest(self) -> str:
        """Of what decides about the micro-batches."""
        longest = int(self.lengths.max(initial=0))
        known = hashlib.sha256(repr([float(self.cost(count, longest)) for count in (1, 2, 3)]).encode())
        known.update(np.ascontiguousarray(self.lengths, np.int64).tobytes())
        return known.hexdigest()[:16]

    def positions(self, number: int) -> np.ndarray:
        """The positions of this process's micro-batch `number` in the epoch."""
        update, place = divmod(number, self.accumulation)
        return self._runs(self.orders(self.epoch), update)[self._own[place]][1]

    def __iter__(self) -> Iterator[list[int]]:
        # Not a generator itself, as in BatchSampler.
        return self._from(self.epoch, self._start)

    def _from(self, epoch: int, first: int) -> Iterator[list[int]]:
        if self._start == first:
            self._start = 0
        order = self.orders(epoch)
        begun, skipped = divmod(first, self.accumulation)
        for update in range(begun, len(self) // self.accumulation):
            runs = self._runs(order, update)
            for place in range(skipped, self.accumulation):
                start, positions = runs[self._own[place]]
                batch: Any = order.at(positions).tolist()
                number = update * self.accumulation + place
                yield Indices(batch, (epoch, number, start)) if self.placed else batch
            skipped = 0

    def _runs(self, order: Order, update: int) -> list[tuple[int, np.ndarray]]:
        """The micro-batches of an update, by decreasing cost: a number that no other one of the epoch has, and their
        positions."""
        size, count = self._samples_per_update, self.num_shards * self.accumulation
        positions = np.arange(update * size, min((update + 1) * size, self.length), dtype=np.int64)
        lengths = self.lengths[order.at(positions)]
        longest_first = np.argsort(-lengths, kind="stable")
        sorted_lengths = lengths[longest_first]
        borders = equal_runs(sorted_lengths, count, self.cost)
        runs = list(zip(borders, borders[1:]))
        costs = [
            float(self.cost(end - start, int(sorted_lengths[start]))) if end > start else 0.0 for start, end in runs
        ]
        by_cost = sorted(range(count), key=lambda index: -costs[index])
        # An empty one is not collated.
        return [(int(positions[0]) + runs[i][0], positions[longest_first[slice(*runs[i])]]) for i in by_cost]


def equal_runs(lengths: np.ndarray, count: int, cost: Cost) -> list[int]:
    """The borders of `count` runs of samples, longest first, of which the most expensive is as cheap as possible. None
    is empty if there are enough samples."""
    total = len(lengths)
    found = [total * i // min(count, total) for i in range(min(count, total) + 1)]
    low = float(cost(1, int(lengths[0])))
    high = max(float(cost(end - start, int(lengths[start]))) for start, end in zip(found, found[1:]))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        borders = _cut(lengths, middle, cost, count)
        if borders is None:
            low = middle
        else:
            high, found = middle, borders
    while len(found) <= count:  # halve the most expensive ones
        runs = [(float(cost(b - a, int(lengths[a]))), a, b) for a, b in zip(found, found[1:]) if b - a > 1]
        if not runs:
            return found + [found[-1]] * (count + 1 - len(found))
        _, start, end = max(runs)
        found = sorted([*found, (start + end + 1) // 2])
    return found


def _cut(lengths: np.ndarray, limit: float, cost: Cost, count: int) -> list[int] | None:
    """The borders of runs within this cost; None if they are more than `count`, or a sample is above it."""
    borders = [0]
    while borders[-1] < len(lengths):
        longest = int(lengths[borders[-1]])
        if len(borders) > count or cost(1, max(longest, 1)) > limit:
            return None
        borders.append(min(borders[-1] + most_samples(longest, limit, cost, len(lengths)), len(lengths)))
    return borders
