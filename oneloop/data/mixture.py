"""Mixture: several datasets in given proportions.

Which dataset and which of its samples stands at a position is a pure function of seed, epoch and position, as for a
single dataset: any number of processes sees the same batches, and a run resumes in the middle without reading anything.
"""

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from numbers import Integral, Real
from typing import Any

import numpy as np

from ..errors import ArgumentError, DataError, a_type
from .feistel import key_of, permute
from .interleaving import Interleaving
from .order import BatchSampler, Order
from .stream_mixture import StreamMixture, check_weights, is_map_style

STOPS = ("first_exhausted", "all_exhausted")
AT_ONCE = 64  # micro-batches whose sources are computed together
_SOURCE = -2  # separates the keys of sources from those of a single dataset

Weights = Mapping[str, float] | Sequence[float]


class Mixture:
    """Several datasets in proportions, as the train_dataset of a Trainer.

    Args:
        datasets: The datasets by name, or a list of them.
        weights: The proportion of each, by name or in their order; they need not add up to 1. None: by size. A list of
            `(step, weights)` changes them during training, for example `[(0, [0.9, 0.1]), (1000, [0.5, 0.5])]`; a
            dataset with weight 0 is left out.
        temperature: For weights by size: the sizes to the power of 1 / temperature. 1 keeps their proportions, larger
            values give small datasets more.
        stop: When an epoch ends: "first_exhausted", before a dataset would be repeated; "all_exhausted", once every
            sample was seen, while the smaller datasets are repeated, each time in another order; or a number of
            samples.

    The number of samples of each dataset, at any point of an epoch, is within one of its proportion.

    If a dataset can only be iterated, the mixture is a stream too (StreamMixture): it needs weights, each epoch begins
    with the first sample of each dataset, and the end of a dataset is found when it has no next sample.
    """

    def __new__(
        cls, datasets: Any = None, weights: Any = None, *, temperature: float = 1.0, stop: str | int = STOPS[0]
    ) -> Any:
        found = {} if datasets is None else _named(datasets)  # None: of copy and pickle
        if all(is_map_style(dataset) for dataset in found.values()):
            return super().__new__(cls)
        check_weights(weights, temperature)
        return StreamMixture(found, _schedule_of(list(found), weights), _checked_stop(stop))

    def __init__(
        self,
        datasets: Mapping[str, Any] | Sequence[Any],
        weights: Weights | Sequence[tuple[int, Any]] | None = None,
        *,
        temperature: float = 1.0,
        stop: str | int = "first_exhausted",
    ) -> None:
        self.datasets = _named(datasets)
        self.sizes = {name: len(dataset) for name, dataset in self.datasets.items()}
        self.stop = _checked_stop(stop)
        self.weights, self.temperature = weights, temperature
        self.schedule = self._schedule(self.sizes)
        self._ends = list(itertools.accumulate(self.sizes.values()))

    # -- a map-style dataset: the samples of all, one dataset after the other

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Any:
        source, place = self.source_of(index)
        return self.datasets[source][place]

    def source_of(self, index: int) -> tuple[str, int]:
        """The name of the dataset of a sample, and the sample's index in it."""
        index = int(index)
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} is out of range: the mixture has {len(self)}")
        number = bisect_right(self._ends, index)
        name = self.names[number]
        return name, index - self._ends[number] + self.sizes[name]

    @property
    def names(self) -> list[str]:
        return list(self.datasets)

    # -- proportions

    def _schedule(self, sizes: Mapping[str, int]) -> list[tuple[int, list[Fraction]]]:
        weights: Any = self.weights
        temperature = self.temperature
        if weights is None:
            if not temperature > 0:
                raise ArgumentError(f"Invalid temperature={temperature!r}: expected a number > 0.")
            powers = [size if temperature == 1 else size ** (1 / temperature) for size in sizes.values()]
            return [(0, [_fraction(power) for power in powers])]
        if temperature != 1:
            raise ArgumentError("temperature applies to weights by size: remove weights=, or temperature=.")
        return _schedule_of(self.names, weights)

    # -- the order

    def orders(
        self, seed: int, samples_per_step: int, shuffle: bool = True, packs: Sequence[int] | None = None
    ) -> Callable[[int], "MixtureOrder"]:
        """A function from the epoch to the order of its samples. Given the number of packs of each dataset, these are
        the samples, and proportions are theirs."""
        sizes = self.sizes if packs is None else dict(zip(self.names, packs))
        schedule = self.schedule if packs is None else self._schedule(sizes)
        plan = Interleaving([(step * samples_per_step, weights) for step, weights in schedule])
        length = self._length(plan, sizes)

        def order(epoch: int) -> MixtureOrder:
            return MixtureOrder(self, plan, length, seed, epoch, shuffle, packs)

        return order

    def _length(self, plan: Interleaving, sizes: Mapping[str, int]) -> int:
        """Samples of an epoch."""
        if isinstance(self.stop, Integral):
            return int(self.stop)
        last = 1 if self.stop == "all_exhausted" else 0
        ends = {name: plan.position_of(s, size - last) for s, (name, size) in enumerate(sizes.items())}
        if self.stop == "all_exhausted":
            missing = [name for name, end in ends.items() if end is None]
            if missing:
                raise ArgumentError(
                    f"stop='all_exhausted', but {missing} are never exhausted: their final weight is 0. Pass "
                    "stop='first_exhausted' or a number of samples."
                )
            return max(end for end in ends.values() if end is not None) + 1
        known = [end for end in ends.values() if end is not None]
        return min(known)


class MixtureOrder(Order):
    """The samples of one epoch of a mixture. Epochs follow one another: a dataset that was not exhausted continues.

    With `packs`, the number of packs of each dataset, samples are packs, which differ from pass to pass: those of pass
    p are numbered from p * sum(packs) on.
    """

    def __init__(
        self,
        mixture: Mixture,
        plan: Interleaving,
        length: int,
        seed: int,
        epoch: int,
        shuffle: bool = True,
        packs: Sequence[int] | None = None,
    ) -> None:
        super().__init__(length, seed, epoch, shuffle)
        self.mixture = mixture
        self.plan = plan
        self.sizes = list(mixture.sizes.values() if packs is None else packs)
        self.in_a_pass = 0 if packs is None else sum(packs)

    def at(self, positions: np.ndarray) -> np.ndarray:
        flat = positions.ravel() + self.epoch * self.length
        sources, numbers = self.plan.at(flat)
        result = np.empty(flat.shape, np.int64)
        first = 0
        for s, size in enumerate(self.sizes):
            of_source = np.flatnonzero(sources == s)
            passes, places = np.divmod(numbers[of_source], size)
            if self.shuffle:
                key = key_of(self.seed, _SOURCE, s)
                for number in np.unique(passes):
                    chosen = passes == number
                    places[chosen] = permute(places[chosen], size, key, int(number))
            result[of_source] = first + places + passes * self.in_a_pass
            first += size
        return result.reshape(positions.shape)

    def sources(self, positions: np.ndarray) -> np.ndarray:
        """The numbers of the datasets that the samples at these positions come from."""
        return self.plan.at(positions + self.epoch * self.length)[0]

    def counts(self, position: int) -> dict[str, int]:
        """The samples of each dataset before a position of this epoch, in this epoch."""
        begin = self.plan.counts(self.epoch * self.length)
        now = self.plan.counts(self.epoch * self.length + position)
        return {name: b - a for name, a, b in zip(self.mixture.names, begin, now)}


def training_data(dataset: Any, args: Any) -> Any:
    """A dict of datasets as a Mixture with the weights of the arguments; anything else as it is."""
    given = [name for name in ("mixture_weights", "mixture_temperature", "mixture_stop") if _is_given(args, name)]
    if not isinstance(dataset, dict) or type(dataset).__module__.partition(".")[0] == "datasets" or 0 in dataset:
        if given and dataset is not None:
            raise ArgumentError(
                f"{given[0]} applies to a train_dataset that is a dict of datasets, and this is a "
                f"{type(dataset).__name__}. Pass the datasets by name, or remove {given[0]}."
            )
        return dataset
    if any(map(_is_column, dataset.values())):  # validation.dataset says what is expected
        return dataset
    return Mixture(dataset, args.mixture_weights, temperature=args.mixture_temperature or 1.0, stop=args.mixture_stop)


def _is_column(part: Any) -> bool:
    """Whether this is one column of a dataset, such as its labels, rather than a dataset."""
    if isinstance(part, (list, tuple)):
        return bool(part) and not isinstance(part[0], (Mapping, tuple))
    is_array = hasattr(part, "dtype") and hasattr(part, "shape")
    return isinstance(part, (str, bytes)) or is_array or not (hasattr(part, "__iter__") or hasattr(part, "__len__"))


def _is_given(args: Any, name: str) -> bool:
    return getattr(args, name) != {"mixture_stop": "first_exhausted", "mixture_temperature": 1.0}.get(name)


def parts_of(dataset: Any) -> Any:
    """The datasets of a mixture, by name, to be evaluated one by one; anything else as it is."""
    return dataset.datasets if isinstance(dataset, Mixture | StreamMixture) else dataset


def source_lookup(mixture: Any, loader: Any, place: tuple[int, int, int]) -> Callable[[int, int], np.ndarray] | None:
    """A function of (epoch, number of a micro-batch) that returns the numbers of the datasets that this process's rows
    come from; None if the loader does not follow the mixture's order. `place` is (samples of a micro-batch, processes
    that share the stream, number of this one), for streams."""
    if isinstance(mixture, StreamMixture):
        return _sources_of_stream(mixture, *place)
    sampler: Any = getattr(loader, "batch_sampler", None)
    if not isinstance(sampler, BatchSampler) or not isinstance(sampler.orders(0), MixtureOrder):
        return None

    @lru_cache(maxsize=2)
    def several(epoch: int, chunk: int) -> list[np.ndarray]:
        """Of consecutive micro-batches: one by one, each would cost as much as all of them."""
        numbers = range(chunk * AT_ONCE, min((chunk + 1) * AT_ONCE, len(sampler)))
        positions = [sampler.positions(number) for number in numbers]
        order = sampler.orders(epoch)
        assert isinstance(order, MixtureOrder)
        sources = order.sources(np.concatenate(positions))
        return np.split(sources, np.cumsum([len(each) for each in positions])[:-1])

    def sources(epoch: int, number: int) -> np.ndarray:
        chunk, place = divmod(number, AT_ONCE)
        return several(epoch, chunk)[place]

    return sources


def _sources_of_stream(
    mixture: StreamMixture, size: int, num_shards: int, shard_id: int
) -> Callable[[int, int], np.ndarray]:
    plan = mixture.plan()

    def sources(epoch: int, number: int) -> np.ndarray:
        first = (number * num_shards + shard_id) * size
        return plan.at(np.arange(first, first + size))[0]

    return sources


def _named(datasets: Any) -> dict[str, Any]:
    if isinstance(datasets, Mapping):
        found = {str(name): dataset for name, dataset in datasets.items()}
    elif isinstance(datasets, Sequence) and not isinstance(datasets, str):
        found = {str(number): dataset for number, dataset in enumerate(datasets)}
    else:
        raise ArgumentError(f"Invalid datasets {type(datasets).__name__}: expected a dict or a list of datasets.")
    if not found:
        raise ArgumentError("a mixture needs at least one dataset.")
    for name, dataset in found.items():
        if not hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__"):
            raise DataError(f"dataset {name!r} of the mixture is {a_type(dataset)}, which is not a dataset.")
        if isinstance(dataset, Iterator):
            raise DataError(
                f"dataset {name!r} of the mixture is {a_type(dataset)}, which can be read only once. Pass an "
                "object whose __iter__ starts again."
            )
        if is_map_style(dataset) and len(dataset) == 0:
            raise DataError(f"dataset {name!r} of the mixture is empty. Remove it, or pass at least one sample.")
    return found


def _checked_stop(stop: Any) -> Any:
    if stop not in STOPS and not (isinstance(stop, Integral) and int(stop) >= 1):
        raise ArgumentError(
            f"Invalid stop={stop!r}: expected 'first_exhausted', 'all_exhausted' or a number of samples."
        )
    return stop


def _schedule_of(names: list[str], weights: Any) -> list[tuple[int, list[Fraction]]]:
    """[(step, the weight of each dataset from there on), ...]"""
    if not _is_schedule(weights):
        return [(0, _by_name(names, weights))]
    schedule = [(step, _by_name(names, of_piece)) for step, of_piece in weights]
    steps = [step for step, _ in schedule]
    if steps[0] != 0 or any(a >= b for a, b in itertools.pairwise(steps)):
        raise ArgumentError(f"Invalid steps {steps} of weights: expected 0 first, and each larger than the last.")
    return schedule


def _by_name(names: list[str], weights: Weights) -> list[Fraction]:
    if isinstance(weights, Mapping):
        if list(weights) != names and set(weights) != set(names):
            raise ArgumentError(f"Invalid weights of {sorted(map(str, weights))}: expected one for each of {names}.")
        weights = [weights[name] for name in names]
    if len(weights) != len(names):
        raise ArgumentError(f"Invalid weights: {len(weights)} of them for {len(names)} datasets.")
    return [_fraction(weight) for weight in weights]


def _is_schedule(weights: Any) -> bool:
    return (
        isinstance(weights, Sequence)
        and len(weights) > 0
        and all(isinstance(each, Sequence) and len(each) == 2 and isinstance(each[0], Integral) for each in weights)
        and all(isinstance(each[1], Mapping | Sequence) for each in weights)
    )


def _fraction(weight: Any) -> Fraction:
    """A weight as it is written: 0.1 is one tenth."""
    if isinstance(weight, Real | Decimal) and not isinstance(weight, bool) and math.isfinite(weight):
        return Fraction(weight) if isinstance(weight, Fraction | Integral) else Fraction(str(weight))
    raise ArgumentError(f"Invalid weight {weight!r}: expected a finite number.")
