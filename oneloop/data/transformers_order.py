"""data_order="transformers": the samples in the order of transformers' Trainer, which loads data through accelerate.

- random: torch.randperm of a generator that is seeded with data_seed + epoch (accelerate's SeedableRandomSampler). It
  is a pure function of (seed, epoch), so a resume computes its position.
- group_by_length (LengthGroupedSampler): the permutation is drawn from torch's default generator when the epoch starts.
  A resume in the middle of the epoch draws it again from the state that the generator had then.
- several processes: process r has the batches r, W + r, 2W + r, ... of the epoch. The last ones are filled with samples
  from the start of the epoch (even_batches), so that every process has whole batches.
"""

from collections import deque
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any

import numpy as np

from ..distributed.collectives import ProcessGroup
from .length_grouping import BATCHES_PER_BLOCK
from .order import BatchSampler, Order

Randperm = Callable[[int, "int | None"], np.ndarray]


def by_length(samples: np.ndarray, lengths: np.ndarray, batch: int) -> np.ndarray:
    """A permutation arranged as by transformers: sorted by length, longest first, in blocks of up to fifty batches. The
    longest sample of all changes places with the first one."""
    block = batch * max(1, min(BATCHES_PER_BLOCK, len(samples) // (4 * batch)))
    starts = range(0, len(samples), block)
    parts = (samples[start : start + block] for start in starts)
    arranged = np.concatenate([part[np.argsort(-lengths[part], kind="stable")] for part in parts])
    longest = starts[int(np.argmax(lengths[arranged[::block]]))]
    arranged[[0, longest]] = arranged[[longest, 0]]
    return arranged


class RandomOrder(Order):
    """The order of accelerate's SeedableRandomSampler."""

    def __init__(self, length: int, seed: int, randperm: Randperm, epoch: int = 0) -> None:
        super().__init__(length, seed, epoch)
        self._randperm = randperm

    @cached_property
    def samples(self) -> np.ndarray:
        return self._randperm(self.length, self.seed + self.epoch)

    def at(self, positions: np.ndarray) -> np.ndarray:
        return self.samples[positions]


class DrawnOrder(RandomOrder):
    """An order that its epoch has drawn, of DrawnOrders."""

    def __init__(self, orders: "DrawnOrders", epoch: int) -> None:
        Order.__init__(self, len(orders.lengths), epoch=epoch)
        self._orders = orders

    @property
    def samples(self) -> np.ndarray:
        if self.epoch not in self._orders.drawn:
            self._orders.draw(self.epoch)
        return self._orders.drawn[self.epoch]


class DrawnOrders:
    """The orders of transformers' LengthGroupedSampler, each drawn at the start of its epoch."""

    def __init__(self, lengths: np.ndarray, batch: int, randperm: Randperm, processes: ProcessGroup) -> None:
        self.lengths, self.batch = lengths, batch
        self.drawn: dict[int, np.ndarray] = {}
        self._randperm, self._processes = randperm, processes

    def __call__(self, epoch: int) -> DrawnOrder:
        return DrawnOrder(self, epoch)

    def draw(self, epoch: int) -> None:
        """Draw the order of an epoch. A collective: every process draws, but all use that of the main process, since
        their generators may be in different states."""
        samples = self._processes.broadcast_object(self._randperm(len(self.lengths), None))
        # The one before is kept: an update that turns out not to be finite may be its last.
        self.drawn = {epoch: by_length(samples, self.lengths, self.batch)} | {
            e: order for e, order in self.drawn.items() if e == epoch - 1
        }


def random_orders(length: int, seed: int, randperm: Randperm) -> Callable[[int], Order]:
    """A function from the epoch to its order."""
    return partial(RandomOrder, length, seed, randperm)


class ShardedBatches(BatchSampler):
    """The micro-batches of one process as accelerate's BatchSamplerShard divides them (even_batches)."""

    def begin(self) -> None:
        """Draw the order of the epoch that is opened, if orders are drawn and the loader has not asked for it yet. The
        loader draws its own seed first, so it must have been asked for an iterator."""
        if isinstance(self.orders, DrawnOrders) and not self._is_begun:
            self.orders.draw(self.epoch)
            self._is_begun = True

    _is_begun = False

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self._is_begun = False

    @property
    def is_drawn(self) -> bool:
        return isinstance(self.orders, DrawnOrders)

    def __iter__(self) -> Iterator[list[int]]:
        return self._begun() if self.is_drawn else super().__iter__()

    def _begun(self) -> Iterator[list[int]]:
        self.begin()
        yield from super().__iter__()

    def _first(self, number: int) -> int:
        return (number * self.num_shards + self.shard_id) * self.batch_size

    def _last(self, order: Order, begin: int) -> list[int]:
        start = begin + self.shard_id * self.batch_size
        if self.num_shards == 1:
            return super()._last(order, begin)
        return order.at(np.arange(start, start + self.batch_size, dtype=np.int64) % self.length).tolist()


class Lookahead:
    """The batches of a loader, fetched one before it is needed, as accelerate does to find the last one. Data and
    collators that draw random numbers in the main process then draw them in the same order."""

    def __init__(self, batches: Iterator[Any], states: Callable[[], Any]) -> None:
        self.before: Any = None  # the states before the waiting batch was fetched; None without one
        self._batches, self._states = batches, states
        self._waiting: deque[Any] = deque()

    def fetch(self, count: int = 1) -> None:
        """Fetch this many batches, if there are so many left."""
        for _ in range(count):
            states = self._states()
            batch = next(self._batches, _NONE)
            if batch is _NONE:
                return
            self.before = states
            self._waiting.append(batch)

    def __iter__(self) -> "Lookahead":
        return self

    def __next__(self) -> Any:
        if not self._waiting:
            self.fetch()
        if not self._waiting:
            raise StopIteration
        batch = self._waiting.popleft()
        if not self._waiting:
            self.before = None
            self.fetch()
        return batch


_NONE = object()
