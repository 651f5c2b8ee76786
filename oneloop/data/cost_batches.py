"""max_tokens_per_batch: micro-batches of equal cost instead of an equal number of samples.

The samples are sorted by length, once, and divided into buckets: runs of similar lengths. A bucket has a number of
micro-batches of a fixed number of samples, as many as its longest sample allows within the budget. So an epoch has the
same number of micro-batches as any other, which is known before training, and no batch is over the budget.

An epoch shuffles the samples within each bucket, and the micro-batches of all buckets. Those of an update come from
anywhere among the micro-batches of about the same cost. What a micro-batch has in it is a function of (seed, epoch,
number): it is computed, not stored. An update has as many micro-batches as all processes compute for it, so that it is
the same on any number of processes if that number stays; they are assigned to processes by cost.

Positions, as in order.py, are indices into the sorted samples after each bucket has been shuffled. A micro-batch has a
run of them.
"""

import hashlib
from collections.abc import Callable, Iterator
from functools import cached_property, partial

import numpy as np

from ..errors import ArgumentError, DataError
from .feistel import key_of, permute
from .order import BLOCK, BatchSampler, Order
from .worker_seeding import Indices

SPREAD = 0.08  # how much shorter than its longest sample those of a bucket may be
LEAST_BATCHES = 4  # in a bucket, however different its lengths: a sample must not meet the same ones in every epoch
EQUAL = 0.03  # micro-batches whose costs differ by less may be in one update
LAYOUT = "batch_layout"  # where checkpoints have the digest of the division
_UPDATES, _BATCHES, _SAMPLES = -109, -110, -111  # separate the keys of these permutations from all others

Cost = Callable[[int, int], float]  # of a micro-batch: of its number of samples, and the length of the longest one


def padded_tokens(samples: int, longest: int) -> float:
    return samples * longest


class CostLayout:
    """How the samples are divided into micro-batches, in every epoch. `per_update` is their number in an update, over
    all processes and accumulation steps."""

    def __init__(self, lengths: np.ndarray, budget: float, per_update: int, cost: Cost = padded_tokens) -> None:
        self.lengths, self.budget, self.per_update, self.cost = lengths, budget, per_update, cost
        self.sorted = np.argsort(-lengths, kind="stable")
        self._longest_first = lengths[self.sorted]
        self._check_longest()
        self.buckets, sizes = self._fitted()
        starts, counts, of_bucket = self._batches(self.buckets, sizes)
        starts, counts, of_bucket = self._filled(starts, counts, of_bucket)
        costs = np.array([self._cost(*each) for each in zip(counts.tolist(), self._longest(of_bucket).tolist())])
        by_cost = np.argsort(-costs, kind="stable")
        # Of each micro-batch, by decreasing cost.
        self.starts, self.counts, self.costs = starts[by_cost], counts[by_cost], costs[by_cost]
        in_first = np.flatnonzero((of_bucket[by_cost] == 0) & (self.counts > 0))
        self._in_first_bucket = in_first[np.argsort(self.starts[in_first])]
        self.classes = self._classes()

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def updates(self) -> int:
        return len(self) // self.per_update

    @property
    def whole_updates(self) -> int:
        """Those in which every micro-batch has a sample: all of them, unless there are few samples."""
        return self.updates - bool(self.counts.min() == 0)

    @cached_property
    def digest(self) -> str:
        """Of what is in the micro-batches, to tell whether a resumed run has the same ones."""
        known = hashlib.sha256(str(self.per_update).encode())
        for array in (self.sorted, self.buckets, self.starts, self.counts, self.classes):
            known.update(np.ascontiguousarray(array, np.int64).tobytes())
        return known.hexdigest()[:16]

    # -- samples and batches of an epoch

    def samples_at(self, positions: np.ndarray, seed: int, epoch: int) -> np.ndarray:
        flat = positions.ravel()
        numbers, which = np.unique(np.searchsorted(self.buckets, flat, side="right") - 1, return_inverse=True)
        places = np.empty_like(flat)
        for index, bucket in enumerate(numbers.tolist()):
            start, stop = int(self.buckets[bucket]), int(self.buckets[bucket + 1])
            here = which == index
            key = key_of(seed, bucket, _SAMPLES)
            places[here] = start + permute(flat[here] - start, stop - start, key, epoch)
        return self.sorted[places].reshape(positions.shape)

    def batches_of(self, updates: np.ndarray, seed: int, epoch: int) -> np.ndarray:
        """The micro-batches of these updates, a row for each, by decreasing cost."""
        updates = self._shuffled_updates(updates, seed, epoch)
        slots = updates[:, None] * self.per_update + np.arange(self.per_update, dtype=np.int64)
        return np.sort(self._shuffled_batches(slots, seed, epoch), axis=1)

    def _shuffled_updates(self, updates: np.ndarray, seed: int, epoch: int) -> np.ndarray:
        """The update with the longest samples is the first one: if it does not fit into memory, the first step
        fails."""
        whole = self.whole_updates
        if not whole:
            return updates
        shuffle = partial(permute, length=whole, seed=key_of(seed, _UPDATES), epoch=epoch)
        batch = np.array([self._longest_batch(seed, epoch)])
        longest = self._shuffled_batches(batch, seed, epoch, inverse=True) // self.per_update
        swapped = int(shuffle(longest, inverse=True)[0]) if longest[0] < whole else 0
        updates = np.where(updates == 0, swapped, np.where(updates == swapped, 0, updates))
        inside = updates < whole
        return np.where(inside, shuffle(np.where(inside, updates, 0)), updates)

    def _longest_batch(self, seed: int, epoch: int) -> int:
        """The micro-batch with the longest sample, which is in the first bucket."""
        key = key_of(seed, 0, _SAMPLES)
        position = permute(np.array([0]), int(self.buckets[1]), key, epoch, inverse=True)[0]
        starts = self.starts[self._in_first_bucket]
        return int(self._in_first_bucket[np.searchsorted(starts, position, side="right") - 1])

    def _shuffled_batches(self, slots: np.ndarray, seed: int, epoch: int, inverse: bool = False) -> np.ndarray:
        """The micro-batch at each place of the epoch: any of its class."""
        flat, found = slots.ravel(), np.empty(slots.size, np.int64)
        numbers, which = np.unique(np.searchsorted(self.classes, flat, side="right") - 1, return_inverse=True)
        for index, number in enumerate(numbers.tolist()):
            start, stop = int(self.classes[number]), int(self.classes[number + 1])
            here = which == index
            key = key_of(seed, number, _BATCHES)
            found[here] = start + permute(flat[here] - start, stop - start, key, epoch, inverse)
        return found.reshape(slots.shape)

    # -- the division

    def _cost(self, samples: int, longest: int) -> float:
        return float(self.cost(samples, longest)) if samples else 0.0

    def _check_longest(self) -> None:
        longest = int(self._longest_first[0])
        cost = self._cost(1, longest)
        if cost > self.budget:
            raise DataError(
                f"sample {self.sorted[0]} has {longest} tokens and a cost of {cost:g}, more than "
                f"max_tokens_per_batch={self.budget:g}. Truncate or remove samples like this, or increase the budget."
            )

    def _divide(self, budget: float) -> tuple[np.ndarray, np.ndarray]:
        """The starts of the buckets, with the end of the last one, and how many samples their batches have."""
        total, start = len(self.sorted), 0
        starts, sizes = [0], []
        ascending = self._longest_first[::-1]
        while start < total:
            longest = int(self._longest_first[start])
            size = most_samples(longest, budget, self.cost, total)
            similar = total - int(np.searchsorted(ascending, longest * (1 - SPREAD)))  # the first that is too short
            batches = min(max((similar - start) // size, LEAST_BATCHES), (total - start) // size)
            start = start + batches * size if batches else total
            if total - start < 2 * size:  # or few samples would meet each other in every epoch
                start = total
            starts.append(start)
            sizes.append(size)
        return np.array(starts, np.int64), np.array(sizes, np.int64)

    def _fitted(self) -> tuple[np.ndarray, np.ndarray]:
        """The division with the largest budget, up to that of the arguments, which fills the last update. Dividing
        what is left alone would make one update of many small batches."""
        found = self._divide(self.budget)
        wanted = -(-_count(*found) // self.per_update) * self.per_update
        low, high = 0.0, float(self.budget)
        for _ in range(30):
            middle = (low + high) / 2
            divided = self._divide(middle)
            if _count(*divided) > wanted:
                low = middle
            else:
                high, found = middle, divided
        return found

    @staticmethod
    def _batches(buckets: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """First position, number of samples and bucket of each batch."""
        numbers = -(-np.diff(buckets) // sizes)
        of_bucket = np.repeat(np.arange(len(sizes)), numbers)
        within = np.arange(len(of_bucket)) - np.repeat(np.cumsum(numbers) - numbers, numbers)
        starts = buckets[of_bucket] + within * sizes[of_bucket]
        return starts, np.minimum(sizes[of_bucket], buckets[of_bucket + 1] - starts), of_bucket

    def _filled(
        self, starts: np.ndarray, counts: np.ndarray, of_bucket: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """With as many batches as whole updates have: those with the most samples are halved and, if all have one
        sample, some are empty."""
        while missing := -len(starts) % self.per_update:
            halved = np.argsort(-counts, kind="stable")[: min(missing, int((counts > 1).sum()))]
            if not halved.size:
                nothing = np.zeros(missing, np.int64)
                return np.append(starts, nothing), np.append(counts, nothing), np.append(of_bucket, nothing)
            rest = counts[halved] // 2
            counts[halved] -= rest
            starts = np.append(starts, starts[halved] + counts[halved])
            counts, of_bucket = np.append(counts, rest), np.append(of_bucket, of_bucket[halved])
        return starts, counts, of_bucket

    def _longest(self, of_bucket: np.ndarray) -> np.ndarray:
        return self._longest_first[self.buckets[of_bucket]]

    def _classes(self) -> np.ndarray:
        """The starts of runs of batches of about equal cost, each of whole updates, with the end of the last one."""
        starts, total = [0], len(self)
        ascending = self.costs[::-1]
        while starts[-1] < total:
            first = starts[-1]
            end = total - int(np.searchsorted(ascending, self.costs[first] * (1 - EQUAL)))
            updates = max(1, (end - first) // self.per_update)
            starts.append(first + updates * self.per_update)
        return np.array(starts, np.int64)


def most_samples(longest: int, budget: float, cost: Cost, limit: int) -> int:
    """How many samples of this length are within the budget: at least one, and at most `limit`."""
    longest, most = max(longest, 1), 1
    if cost is padded_tokens:
        return min(max(int(budget) // longest, 1), limit)
    while most < limit and cost(2 * most, longest) <= budget:
        most *= 2
    low, high = most, 2 * most  # the first is within the budget, or one; the second is not, or is above the limit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(middle, longest) <= budget else (low, middle)
    return min(low, limit)


def shares_of(num_shards: int, shard_id: int, accumulation: int) -> np.ndarray:
    """Which micro-batches of an update, by decreasing cost, a process computes. They are assigned back and forth, so
    that the sums are about equal."""
    rounds = np.arange(accumulation)
    return rounds * num_shards + np.where(rounds % 2, num_shards - 1 - shard_id, shard_id)


def _count(buckets: np.ndarray, sizes: np.ndarray) -> int:
    return int((-(-np.diff(buckets) // sizes)).sum())


class CostOrder(Order):
    """The samples of an epoch by position: sorted by length, and shuffled within buckets."""

    def __init__(self, layout: CostLayout, seed: int = 0, epoch: int = 0):
        super().__init__(len(layout.sorted), seed, epoch)
        self.layout = layout

    def at(self, positions: np.ndarray) -> np.ndarray:
        return self.layout.samples_at(positions, self.seed, self.epoch) if positions.size else positions


class CostBatches(BatchSampler):
    """The micro-batches of one process, `accumulation` of them in each update. None is dropped by drop_last: they are
    all as large as the budget allows."""

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
        order = orders(0)
        assert isinstance(order, CostOrder)
        self.layout, self.seed, self.accumulation = order.layout, order.seed, accumulation
        self.batch_size = max(1, round(self.length / len(self.layout)))  # on average
        if self.layout.per_update != accumulation * num_shards:
            raise ArgumentError(
                f"updates of {self.layout.per_update} micro-batches cannot be divided by {num_shards} process(es) that "
                f"compute {accumulation} each. Set gradient_accumulation_steps before train()."
            )
        self._own = shares_of(num_shards, shard_id, accumulation)

    @property
    def digest(self) -> str:
        return self.layout.digest

    def __len__(self) -> int:
        return self.layout.updates * self.accumulation

    def remaining(self, batches: int) -> float:
        not_whole = self.layout.updates - self.layout.whole_updates
        return self.layout.whole_updates + not_whole / 2 - batches / self.accumulation

    def positions(self, number: int) -> np.ndarray:
        start, count = self._range(self.epoch, number)
        return np.arange(start, start + count, dtype=np.int64)

    def samples_of_update(self, epoch: int, update: int, accumulation: int) -> np.ndarray:
        batches = self.layout.batches_of(np.array([update]), self.seed, epoch)[0]
        ranges = [
            np.arange(self.layout.starts[batch], self.layout.starts[batch] + self.layout.counts[batch])
            for batch in batches.tolist()
        ]
        return self.orders(epoch).at(np.concatenate(ranges))

    def _range(self, epoch: int, number: int) -> tuple[int, int]:
        """The first position of this process's micro-batch `number`, and how many it has."""
        update, place = divmod(number, self.accumulation)
        batch = self.layout.batches_of(np.array([update]), self.seed, epoch)[0, self._own[place]]
        return int(self.layout.starts[batch]), int(self.layout.counts[batch])

    def __iter__(self) -> Iterator[list[int]]:
        # Not a generator itself, as in BatchSampler.
        return self._from(self.epoch, self._start)

    def _from(self, epoch: int, first: int) -> Iterator[list[int]]:
        if self._start == first:
            self._start = 0
        order, layout = self.orders(epoch), self.layout
        begun, skipped = divmod(first, self.accumulation)
        at_once = max(1, BLOCK // (self.batch_size * self.accumulation))
        for begin in range(begun, layout.updates, at_once):
            updates = np.arange(begin, min(begin + at_once, layout.updates), dtype=np.int64)
            batches = layout.batches_of(updates, self.seed, epoch)[:, self._own].ravel()[skipped:]
            number, skipped = begin * self.accumulation + skipped, 0
            starts, counts = layout.starts[batches], layout.counts[batches]
            ends = np.cumsum(counts)
            positions = np.arange(ends[-1]) + np.repeat(starts - (ends - counts), counts)
            several = np.split(order.at(positions), ends[:-1])
            for place, samples in enumerate(several):
                batch = samples.tolist()
                yield Indices(batch, (epoch, number + place, int(starts[place]))) if self.placed else batch
