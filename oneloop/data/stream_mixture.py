"""Interleave streams in given proportions: what `Mixture` makes of datasets that can only be iterated.

The dataset at a position is the same function of the position as for map-style data. Each dataset is read in its own
order, and its state is stored with the position, so a run resumes without reading anything again.
"""

from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from ..errors import ArgumentError, DataError
from .feistel import key_of
from .interleaving import Interleaving
from .iterable import has_shuffle_buffer
from .order import BLOCK, Order

_SOURCE = -2  # as for map-style data
PASSES = 10**6  # epochs and passes have different numbers, below this many epochs


class Indexed:
    """A map-style dataset as a stream, in an order that is computed from seed, epoch and position."""

    def __init__(self, dataset: Any, number: int) -> None:
        self.dataset = dataset
        self.number = number
        self.seed, self.shuffle = 0, True
        self.epoch = self.position = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.position = epoch, 0

    def __iter__(self) -> Iterator[Any]:
        order = Order(len(self.dataset), key_of(self.seed, _SOURCE, self.number), self.epoch, self.shuffle)
        while self.position < len(order):
            for index in order.take(self.position, min(self.position + BLOCK, len(order))).tolist():
                self.position += 1
                yield self.dataset[index]
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.position = state["place"]


class MixtureSource:
    """One dataset of the mixture in an epoch: its passes, and the samples read in the current one."""

    def __init__(self, name: str, dataset: Any) -> None:
        self.name = name
        self.dataset = dataset
        self.passes = self.samples_read = 0
        self._samples: Iterator[Any] | None = None

    def start(self, epoch: int, passes: int) -> None:
        """Begin a pass; the order of each pass is another one, if the dataset has set_epoch."""
        self.passes, self.samples_read, self._samples = passes, 0, None
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch + passes * PASSES)

    def next(self, default: Any) -> Any:
        if self._samples is None:
            self._samples = iter(self.dataset)
        sample = next(self._samples, default)
        if sample is not default:
            self.samples_read += 1
        elif self.samples_read == 0:
            raise DataError(f"dataset {self.name!r} of the mixture has no samples. Remove it.")
        return sample

    @property
    def has_state(self) -> bool:
        """Whether its state_dict says where it is. That of a shuffle buffer does not have the buffer."""
        methods = (getattr(self.dataset, name, None) for name in ("state_dict", "load_state_dict"))
        return all(callable(method) for method in methods) and not has_shuffle_buffer(self.dataset)

    def state(self) -> dict[str, Any]:
        return {"passes": self.passes, "taken": self.samples_read, "state": self.dataset.state_dict()}

    def load(self, epoch: int, stored: Mapping[str, Any]) -> None:
        self.start(epoch, stored["passes"])
        self.dataset.load_state_dict(stored["state"])
        self.samples_read = stored["taken"]


class StreamMixture:
    """Several datasets in proportions, at least one of which can only be iterated; see `Mixture`."""

    def __init__(
        self, datasets: Mapping[str, Any], schedule: Sequence[tuple[int, Any]], stop: str | int = "first_exhausted"
    ) -> None:
        self.datasets = dict(datasets)
        self.schedule = list(schedule)
        self.stop = stop
        if stop == "all_exhausted" and not all(self.schedule[-1][1]):
            raise ArgumentError(
                "stop='all_exhausted', but a dataset is never exhausted: its final weight is 0. Pass "
                "stop='first_exhausted' or a number of samples."
            )
        self.epoch = 0
        self.prepared: tuple[int, int, bool] = (0, 1, True)
        self._parts = [
            MixtureSource(name, _as_stream(dataset, i)) for i, (name, dataset) in enumerate(self.datasets.items())
        ]
        self._position = 0
        self._exhausted: set[int] = set()
        self._is_positioned = False  # the next iteration starts at the position that was loaded

    @property
    def names(self) -> list[str]:
        return list(self.datasets)

    def prepare(self, seed: int, samples_per_step: int, shuffle: bool = True) -> None:
        """Called with what the arguments say: weights may change by the step, and map-style datasets are shuffled."""
        self.prepared = seed, samples_per_step, shuffle
        for part in self._parts:
            if isinstance(part.dataset, Indexed):
                part.dataset.seed, part.dataset.shuffle = seed, shuffle

    def replaced(self, datasets: Mapping[str, Any]) -> "StreamMixture":
        """The same mixture of other datasets."""
        made = StreamMixture(datasets, self.schedule, self.stop)
        made.prepare(*self.prepared)
        return made

    def plan(self) -> Interleaving:
        return Interleaving([(step * self.prepared[1], weights) for step, weights in self.schedule])

    def sources(self, positions: np.ndarray) -> np.ndarray:
        """The numbers of the datasets at these positions of any epoch."""
        return self.plan().at(positions)[0]

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        if not self._is_positioned:
            self._position, self._exhausted = 0, set()
            for part in self._parts:
                part.start(self.epoch, 0)
        self._is_positioned = False
        return self._samples()

    def _samples(self) -> Iterator[Any]:
        plan = self.plan()
        while True:
            for source in plan.at(np.arange(self._position, self._position + BLOCK))[0].tolist():
                if isinstance(self.stop, Integral) and self._position >= self.stop:
                    return
                sample = self._next(source)
                if sample is _END:
                    return
                self._position += 1
                yield sample

    def _next(self, source: int) -> Any:
        """The next sample of a dataset, from its start again where the epoch continues."""
        part = self._parts[source]
        sample = part.next(_END)
        if sample is not _END or self.stop == "first_exhausted":
            return sample
        self._exhausted.add(source)
        if self.stop == "all_exhausted" and len(self._exhausted) == len(self._parts):
            return _END
        part.start(self.epoch, part.passes + 1)
        return part.next(_END)

    @property
    def without_state(self) -> list[str]:
        """The datasets whose position cannot be stored."""
        return [part.name for part in self._parts if not part.has_state]

    def state_dict(self) -> dict[str, Any] | None:
        """None if a dataset has no state: then the mixture is read again from the start of its epoch."""
        if self.without_state:
            return None
        return {
            "position": self._position,
            "exhausted": sorted(self._exhausted),
            "parts": {part.name: part.state() for part in self._parts},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration continues there; the epoch is set before."""
        self._position, self._exhausted = state["position"], set(state["exhausted"])
        for part in self._parts:
            part.load(self.epoch, state["parts"][part.name])
        self._is_positioned = True


_END = object()


def is_map_style(dataset: Any) -> bool:
    """Whether it has a length and items. Streams of `datasets` have __getitem__, for columns, but no length."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        return False
    return not any(base.__name__ == "IterableDataset" for base in type(dataset).__mro__)


def _as_stream(dataset: Any, number: int) -> Any:
    return Indexed(dataset, number) if is_map_style(dataset) else dataset


def check_weights(weights: Any, temperature: float) -> None:
    if weights is None or temperature != 1:
        raise ArgumentError(
            "a mixture of streams needs weights: the sizes of streams, which are the weights otherwise, are not known."
        )
