"""Digests of what the layers of a model compute in one pass over the micro-batches of an update."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..formats import digests
from ..formats.digests import Axis, Positions, ProjectionFactors

# Noise that stands for rounding errors, in units of half a unit in the last place, of which one rounding is 0.6 on
# average. In half precision a layer rounds its input, its weight and its result; in float32, sums in another order add
# to that.
NOISE = {"float16": 1.0, "bfloat16": 1.0}
USUAL_NOISE = 2.0
# Noise is taken from a part of so many random numbers, and repeated. A prime: repetitions do not meet in a column.
PART, POOL = 131071, 1 << 18


def noise_of(dtype: str) -> float:
    """The noise of results of this type, relative to them."""
    return NOISE.get(dtype, USUAL_NOISE) * digests.rounding_of(dtype)


class Key(NamedTuple):
    """What a record is of; see formats/trace_file.py."""

    kind: str
    name: str
    item: str = ""
    call: int = 0


@dataclass
class Entry:
    """The digests of one tensor, which are still on the device: one for each micro-batch."""

    type: str
    dtype: str
    axes: tuple[Axis, ...]
    vectors: list[tuple[Any, float]] = field(default_factory=list)  # with the factor of each
    transposed: Any = None
    is_of_batch: bool = False  # processes with other batches have other values
    is_averaged: bool = False  # the values of all processes whose gradients are averaged add up
    samples: int = 0  # in all micro-batches


class Division(NamedTuple):
    """Which features of a plain tensor a process has, where a layer has divided them."""

    start: int
    width: int
    size: int

    def piece(self, found: tuple[Any, list[int], list[int]]) -> tuple[Any, list[int], list[int]]:
        """The same piece of a tensor with these features."""
        local, offsets, sizes = found
        if not sizes or sizes[-1] != self.width:
            return found
        return local, [*offsets[:-1], self.start], [*sizes[:-1], self.size]


class Noise:
    """Normally distributed noise that does not use the random numbers of the run. All processes draw the same."""

    def __init__(self, tracing: Any, seed: int) -> None:
        self._tracing = tracing
        self._random = np.random.default_rng(seed)
        self._pool = self._random.standard_normal(POOL).astype(np.float32)
        self._constants: dict[str, Any] = {}

    def pair(self, tensor: Any) -> tuple[Any, Any]:
        """Twice as many numbers as the local part of the tensor has, in its shape and on its device."""
        local = self._tracing.piece(tensor)[0]
        first, second = (self._tracing.repeated(part, list(local.shape)) for part in self.parts(local))
        return first, second

    def parts(self, tensor: Any) -> tuple[Any, Any]:
        """Two vectors of random numbers on the device of a tensor, to be repeated as often as needed."""
        key = str(getattr(tensor, "device", getattr(tensor, "place", "")))
        if key not in self._constants:
            self._constants[key] = self._tracing.constant(self._pool, tensor)
        first, second = (self._constants[key][start : start + PART] for start in self._starts())
        return first, second

    def _starts(self) -> list[int]:
        return self._random.integers(0, POOL - PART, 2).tolist()


class Factors:
    """The random factors of tensors, kept on the device for the length of a recorded step."""

    def __init__(self, tracing: Any) -> None:
        self._tracing = tracing
        self._known: dict[Any, tuple[ProjectionFactors, Any]] = {}
        self.samples: np.ndarray | None = None  # of the micro-batch
        self.rows: int | None = None

    def set_samples(self, samples: np.ndarray | None) -> None:
        self.samples, self.rows = samples, None if samples is None else len(samples)
        self._known = {key: known for key, known in self._known.items() if not digests.has_samples(key[0])}

    def digest(self, tensor: Any, axes: tuple[Axis, ...], only_projections: bool = False) -> Any:
        """The digest of the local part of a tensor."""
        key = (axes, str(getattr(tensor, "device", "")))
        if key not in self._known:
            weights = digests.weights_of(axes, self.samples)
            left, right = (self._tracing.constant(rows, tensor) for rows in weights.rows)
            self._known[key] = weights, (left, right)
        return self._tracing.digest(tensor, *self._known[key], only_projections=only_projections)


class Collector:
    """Attached to the layers for one pass. With noise, every output and every gradient gets rounding errors."""

    def __init__(
        self,
        tracing: Any,
        factors: Factors,
        gradient_factor: float,
        positions_in: Callable[[Any], tuple[Positions, ...]],
        noise: Noise | None = None,
        with_parameters: frozenset[str] = frozenset(),
    ) -> None:
        """`with_parameters`: the names of layers that have some, or whose inner layers have."""
        self.tracing, self.factors, self.noise = tracing, factors, noise
        self._with_parameters = with_parameters
        self.gradient_factor, self._positions_in = gradient_factor, positions_in
        self.entries: dict[Key, Entry] = {}
        self.is_open = False  # within a micro-batch that counts
        self._micro_batch = 0
        self._in_backward = False
        self._calls: dict[str, int] = {}
        self._recalls: dict[str, int] = {}
        self._open_calls: list[tuple[str, int, Division | None]] = []
        self._divided: dict[int, Division] = {}  # by id: tensors of this forward pass whose features are divided
        self._known: dict[int, Any] = {}  # tensors of this forward pass that are recorded, by id
        self._outputs: set[int] = set()  # those that are outputs of a layer
        self._remove: Callable[[], None] | None = None

    # -- a pass

    def attach(self, model: Any) -> None:
        self._remove = self.tracing.watch(model, self._before, self._after)

    def detach(self) -> None:
        if self._remove is not None:
            self._remove()
            self._remove = None
        self.is_open = False
        self._forget()

    def start_micro_batch(self, index: int) -> None:
        self.is_open, self._in_backward = True, False
        self._micro_batch = index
        self._calls, self._recalls, self._open_calls = {}, {}, []
        self._forget()

    def end_micro_batch(self, index: int) -> None:
        self.is_open = False
        self._forget()

    def _forget(self) -> None:
        self._known.clear()
        self._outputs.clear()
        self._divided.clear()

    # -- layers

    def _before(self, name: str, layer: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        if not self.is_open:
            return None
        counts = self._recalls if self._in_backward else self._calls
        call = counts.get(name, 0)
        counts[name] = call + 1
        every = (self._divided.get(id(value)) for value in (*args, *kwargs.values()))
        self._open_calls.append((name, call, next(filter(None, every), None)))
        args = tuple(self._input(value, Key("input", name, str(i), call), layer) for i, value in enumerate(args))
        kwargs = {key: self._input(value, Key("input", name, key, call), layer) for key, value in kwargs.items()}
        return args, kwargs

    def _input(self, value: Any, key: Key, layer: Any) -> Any:
        if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
            return type(value)(
                self._input(inner, key._replace(item=f"{key.item}.{i}"), layer) for i, inner in enumerate(value)
            )
        if not self.tracing.is_floating(value):
            return value
        division = self._divided.get(id(value))
        pieces = self.tracing.piece if division is None else partial(self._divided_piece, division)
        if not self._in_backward and id(value) not in self._known:
            self._record(key, value, layer, pieces, self._positions_in(layer))
            self._known[id(value)] = value
        if not self.tracing.has_gradient(value):
            return value
        other = self.tracing.alias(value)
        self._known[id(other)] = other  # for layers inside of this one
        if division is not None:
            self._divided[id(other)] = division
        self._listen(other, key._replace(kind="input_gradient"), layer, pieces)
        return other

    def _divided_piece(self, division: Division, tensor: Any) -> Any:
        return division.piece(self.tracing.piece(tensor))

    def _output_pieces(
        self, layer: Any, name: str, value: Any, of_input: Division | None
    ) -> tuple[Callable[[Any], Any], Division | None]:
        """How an output of a layer is divided: as its weight is, or as its input, for a layer without parameters such
        as an activation function."""
        own = partial(self.tracing.output_piece, layer)
        local, offsets, sizes = own(value)
        if not sizes:
            return own, None
        if local.shape[-1] < sizes[-1]:
            return own, Division(offsets[-1], local.shape[-1], sizes[-1])
        if of_input is None or name in self._with_parameters or sizes[-1] != of_input.width:
            return own, None
        return partial(self._divided_piece, of_input), of_input

    def _after(self, name: str, layer: Any, output: Any) -> Any:
        if not self.is_open or not self._open_calls:
            return None
        while self._open_calls and self._open_calls[-1][0] != name:  # a layer that has raised an exception
            self._open_calls.pop()
        if not self._open_calls:
            return None
        _, call, division = self._open_calls.pop()
        return self._output(output, Key("output", name, "", call), layer, division)

    def _output(self, value: Any, key: Key, layer: Any, of_input: Division | None) -> Any:
        if isinstance(value, dict):
            found = {
                name: self._output(inner, self._inner(key, name), layer, of_input) for name, inner in value.items()
            }
            if self.noise is None or all(found[name] is value[name] for name in value):
                return value
            for name, inner in found.items():
                value[name] = inner
            return value
        if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
            made = [self._output(inner, self._inner(key, str(i)), layer, of_input) for i, inner in enumerate(value)]
            return value if self.noise is None else type(value)(made)
        if not self.tracing.is_floating(value):
            return value
        key = key._replace(item=key.item or "0")
        pieces, division = self._output_pieces(layer, key.name, value, of_input)
        if not self._in_backward:
            if id(value) in self._outputs:  # of a layer inside of this one
                return value
            self._record(key, value, layer, pieces, self._positions_in(layer))
        if self.tracing.has_gradient(value):  # without noise: the layer itself may have used it
            self._listen(value, key._replace(kind="output_gradient"), layer, pieces)
        if self.noise is not None:
            relative = noise_of(self.tracing.dtype_of(value))
            value = self.tracing.noisy(value, self.noise.pair(value), relative)
        self._known[id(value)] = value
        self._outputs.add(id(value))
        if division is not None:
            self._divided[id(value)] = division
        return value

    @staticmethod
    def _inner(key: Key, name: str) -> Key:
        return key._replace(item=f"{key.item}.{name}" if key.item else name)

    def _listen(self, tensor: Any, key: Key, layer: Any, pieces: Callable[[Any], Any]) -> None:
        positions = self._positions_in(layer)  # those of the forward pass

        def received(gradient: Any) -> Any:
            if not self._in_backward:
                self._in_backward = True
                self._forget()
            if not self.is_open:
                return None
            self._record(key, gradient, layer, pieces, positions, self.gradient_factor)
            if self.noise is None:
                return None
            relative = noise_of(self.tracing.dtype_of(gradient))
            return self.tracing.noisy(gradient, self.noise.pair(gradient), relative)

        self.tracing.on_gradient(tensor, received)

    def _record(
        self,
        key: Key,
        tensor: Any,
        layer: Any,
        pieces: Callable[[Any], Any],
        positions: tuple[Positions, ...],
        factor: float = 1.0,
    ) -> None:
        local, offsets, sizes = pieces(tensor)
        whole = digests.activation_axes(tuple(local.shape), self.factors.rows, offsets, sizes)
        axes, slices = digests.at_positions(whole, positions)
        if slices is not None:
            local = local.reshape([axis.count for axis in whole])[slices]
        is_gradient = key.kind.endswith("gradient")
        is_of_batch = is_gradient or digests.has_samples(axes)
        known = self.entries.get(key)
        if known is None:
            kind, dtype = type(layer).__name__, self.tracing.dtype_of(tensor)
            known = Entry(kind, dtype, axes, is_of_batch=is_of_batch, is_averaged=is_gradient)
            self.entries[key] = known
        known.vectors.append((self.factors.digest(local, axes, self.noise is not None), factor))
        known.samples += self.factors.rows or 0

    # -- tensors that do not belong to a micro-batch

    def add(
        self, key: Key, tensor: Any, letters: str, kind: str = "", factor: float = 1.0, turned: bool = False
    ) -> Any:
        """Record a weight, or something with the axes of a weight; returns its digest."""
        local, offsets, sizes = self.tracing.piece(tensor)
        axes = digests.weight_axes(letters, tuple(local.shape), offsets, sizes)
        entry = Entry(kind, self.tracing.dtype_of(tensor), axes)
        vector = self.factors.digest(local, axes, self.noise is not None)
        entry.vectors.append((vector, factor))
        other = digests.swapped(axes) if turned else None
        if other is not None:
            entry.transposed = self.factors.digest(local, other, only_projections=True)
        self.entries[key] = entry
        return vector


# -- on the host


@dataclass
class Digest:
    """The numbers of a tensor, or of a part of it, on the host."""

    norm: float
    largest: float
    bad: int
    projections: np.ndarray
    column_sum: float

    @classmethod
    def total(cls, rows: Sequence[np.ndarray]) -> "Digest":
        """Of the whole tensor, from the digests of its parts."""
        if len(rows) == 1:
            norm, largest, bad, *projections, column_sum = rows[0].tolist()
            return cls(norm, largest, int(bad), np.array(projections), column_sum)
        every = np.stack(rows)
        return cls(
            float(np.sqrt(np.sum(every[:, digests.NORM] ** 2))),
            float(every[:, digests.LARGEST].max()),
            int(every[:, digests.BAD].sum()),
            every[:, digests.FIRST : digests.FIRST + digests.PROJECTIONS].sum(0),
            float(every[:, digests.COLUMN_SUM].sum()),
        )

    def row(self) -> np.ndarray:
        return np.array([self.norm, self.largest, self.bad, *self.projections, self.column_sum])


def read_entries(tracing: Any, collectors: Sequence[Collector]) -> list[dict[Key, list[np.ndarray]]]:
    """The digests of all collectors, read from the device at once: of each entry those of its micro-batches."""
    vectors = [vector for one in collectors for entry in one.entries.values() for vector, _ in entry.vectors]
    rows = iter(tracing.read(vectors))
    found: list[dict[Key, list[np.ndarray]]] = []
    for one in collectors:
        own: dict[Key, list[np.ndarray]] = {}
        for key, entry in one.entries.items():
            parts = []
            for _, factor in entry.vectors:
                row = np.array(next(rows))
                row[digests.BAD] /= factor if factor else 1.0
                parts.append(row * factor)
            own[key] = parts
        found.append(own)
    return found
