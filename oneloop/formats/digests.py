"""Digests of tensors: a few numbers that tell whether two tensors are the same up to rounding. No framework.

A digest is a vector of SIZE numbers: the norm, the largest magnitude, the number of values that are not finite,
PROJECTIONS random projections, and one more that is random along the last axis alone (`COLUMN_SUM`). A projection is
the sum of all values, each multiplied by a random weight. The weight of a value is a product of one factor for each of
its axes, which depends on the role of the axis and the global index along it, and on nothing else. So the projections
of shards add up to that of the whole tensor, and the order of the axes does not matter.

The factor of a sample depends on its contents rather than on its place: activations of the same samples have the same
projections however they are ordered, accumulated or divided over processes.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

VERSION = 1  # of the random factors
PROJECTIONS = 8
NORM, LARGEST, BAD, FIRST = 0, 1, 2, 3
COLUMN_SUM = FIRST + PROJECTIONS
SIZE = COLUMN_SUM + 1

FEATURES = "features"  # the role of the last axis of activations, and of vectors such as biases
SAMPLES = "samples"  # the role of the axis of the samples in a micro-batch

# Half a unit in the last place, relative to the value.
ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def rounding_of(dtype: str) -> float:
    return ROUNDING.get(dtype, ROUNDING["bfloat16"])


# -- random factors


def _mix(values: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64: 64 well mixed bits for each number."""
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))


def factors_of(numbers: np.ndarray) -> np.ndarray:
    """Factors for these 64-bit numbers: PROJECTIONS for each, uniform, with mean 0 and variance 1."""
    with np.errstate(over="ignore"):
        words = np.stack([_mix(numbers), _mix(numbers + np.uint64(0x9E3779B97F4A7C15))], axis=-1)
    chunks = words[..., None] >> np.arange(0, 64, 16, dtype=np.uint64) & np.uint64(0xFFFF)
    unit = (chunks.reshape(*numbers.shape, PROJECTIONS).astype(np.float64) + 0.5) / 32768.0 - 1.0
    return (unit * np.sqrt(3.0)).astype(np.float32)


@lru_cache(maxsize=256)
def factors(role: str, start: int, count: int) -> np.ndarray:
    """The factors of the indices from `start` on along an axis with this role."""
    key = int.from_bytes(hashlib.blake2b(role.encode(), digest_size=8).digest(), "little")
    with np.errstate(over="ignore"):
        indices = np.arange(start, start + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    return factors_of(_mix(indices))


# -- axes


@dataclass(frozen=True)
class Axis:
    """`count` indices from `start` on of an axis that has `size` in the whole tensor."""

    role: str
    count: int
    start: int = 0
    size: int = -1

    @property
    def full(self) -> int:
        return self.count if self.size < 0 else self.size


def weight_axes(letters: str, shape: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]) -> tuple[Axis, ...]:
    """Axes of a weight: by its letters (see converters/framework_layout.py), or else by their places."""
    if letters and len(letters) == len(shape):
        roles = [f"weight.{letter}" for letter in letters]
    elif len(shape) == 1:
        roles = [FEATURES]
    else:
        roles = [f"weight.{place}" for place in range(len(shape))]
    return tuple(map(Axis, roles, shape, offsets, sizes))


def activation_axes(
    shape: Sequence[int], rows: int | None, offsets: Sequence[int] = (), sizes: Sequence[int] = ()
) -> tuple[Axis, ...]:
    """Axes of an activation in a micro-batch of so many samples. Samples and positions in one axis, the first, count as
    two. `offsets` and `sizes`: of a shard."""
    offsets = offsets or [0] * len(shape)
    sizes = sizes or list(shape)
    if rows and rows in shape:
        place = list(shape).index(rows)
        roles = _places(len(shape), place)
        return tuple(map(Axis, roles, shape, offsets, sizes))
    if rows and shape and shape[0] > rows and shape[0] % rows == 0:
        inner = shape[0] // rows
        roles = _places(len(shape) + 1, 0)
        return tuple(map(Axis, roles, (rows, inner, *shape[1:]), (0, 0, *offsets[1:]), (rows, inner, *sizes[1:])))
    return tuple(map(Axis, _places(len(shape), None), shape, offsets, sizes))


@dataclass(frozen=True)
class Positions:
    """Which positions of the sequences a process has where they are divided, or padded to be divided."""

    given: int  # in tensors, with padding
    start: int
    count: int  # without padding
    length: int  # of the whole sequences

    @classmethod
    def of_part(cls, number: int, part: int, length: int) -> "Positions":
        """Part `number` of sequences that are divided into parts of this size."""
        start = min(number * part, length)
        return cls(part, start, min(part, length - start), length)


def at_positions(
    axes: tuple[Axis, ...], possible: Sequence[Positions]
) -> tuple[tuple[Axis, ...], tuple[slice, ...] | None]:
    """The axes of an activation that has one of these positions of whole sequences, and the slices that leave out the
    padding. The axis of positions is the first one that has as many, apart from that of the samples."""
    for positions in possible:
        for place, axis in enumerate(axes):
            if axis.role != SAMPLES and axis.count == positions.given:
                own = Axis(axis.role, positions.count, positions.start, positions.length)
                slices = (*(slice(None) for _ in axes[:place]), slice(positions.count))
                return (*axes[:place], own, *axes[place + 1 :]), slices
    return axes, None


def _places(dims: int, samples: int | None) -> list[str]:
    others = iter(f"activation.{place}" for place in range(dims))
    rest = dims - (samples is not None)
    named = [next(others) for _ in range(rest - 1)] + [FEATURES] * (rest > 0)
    return named if samples is None else [*named[:samples], SAMPLES, *named[samples:]]


def canonical_shape(axes: Sequence[Axis]) -> list[int]:
    """The full shape without regard to the order of the axes: sizes sorted by role, without axes of size one that only
    one framework has (letter 1)."""
    return [axis.full for axis in sorted(axes, key=lambda axis: axis.role) if axis.role != "weight.1"]


def has_samples(axes: Sequence[Axis]) -> bool:
    return any(axis.role == SAMPLES for axis in axes)


# -- the two matrices of a projection


@dataclass(frozen=True)
class ProjectionFactors:
    """Factors of a tensor that is viewed as a matrix: projection k is the sum over a, b of left[a, k] x[a, b]
    right[b, k]."""

    left: np.ndarray
    right: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.left), len(self.right)

    @property
    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Two matrices l and r: the sums of the rows of (l @ x) * r are the projections, and the column sum."""
        left = np.concatenate([self.left.T, np.ones((1, len(self.left)), np.float32)])
        return np.ascontiguousarray(left), np.concatenate([self.right.T, self.right.T[:1]])


def weights_of(axes: Sequence[Axis], samples: np.ndarray | None) -> ProjectionFactors:
    """`samples`: the factors of the samples of this micro-batch. The view is cut where both matrices are small."""
    each = [samples if axis.role == SAMPLES and samples is not None else _factors(axis) for axis in axes]
    counts = [len(one) for one in each]
    cuts = range(len(counts) + 1)
    cut = min(cuts, key=lambda place: int(np.prod(counts[:place], dtype=float) + np.prod(counts[place:], dtype=float)))
    return ProjectionFactors(_product(each[:cut]), _product(each[cut:]))


def _factors(axis: Axis) -> np.ndarray:
    # An axis of size one that only one framework has must not change anything.
    return np.ones((axis.count, PROJECTIONS), np.float32) if axis.role == "weight.1" else _of(axis)


def _of(axis: Axis) -> np.ndarray:
    return factors(axis.role, axis.start, axis.count)


def _product(each: Sequence[np.ndarray]) -> np.ndarray:
    found = np.ones((1, PROJECTIONS), np.float32)
    for one in each:
        found = (found[:, None, :] * one[None, :, :]).reshape(-1, PROJECTIONS)
    return np.ascontiguousarray(found)


def swapped(axes: Sequence[Axis]) -> tuple[Axis, ...] | None:
    """The axes of a square matrix with the roles exchanged; None for other tensors and for shards."""
    if len(axes) != 2 or axes[0].full != axes[1].full or any(axis.count != axis.full for axis in axes):
        return None
    first, second = axes
    return (
        Axis(second.role, first.count, first.start, first.size),
        Axis(first.role, second.count, second.start, second.size),
    )


# -- samples


def hash_rows(columns: Sequence[tuple[str, np.ndarray]], rows: int) -> tuple[np.ndarray, dict[str, int]]:
    """A 64-bit number for the contents of each sample, and one for each column, which adds up over micro-batches.
    Numbers are compared as int64 or float32, whatever their type."""
    total = np.zeros(rows, np.uint64)
    found: dict[str, int] = {}
    for name, array in columns:
        wide = np.ascontiguousarray(array, np.float32 if array.dtype.kind in "fV" else np.int64)
        every = len(wide.shape) > 0 and wide.shape[0] == rows
        views = wide.reshape(rows, -1) if every else np.broadcast_to(wide.reshape(1, -1), (rows, wide.size))
        header = f"{name}:{wide.dtype.kind}:{views.shape[1]}".encode()
        hashed = np.array(
            [
                int.from_bytes(hashlib.blake2b(header + row.tobytes(), digest_size=8).digest(), "little")
                for row in views
            ],
            dtype=np.uint64,
        )
        with np.errstate(over="ignore"):
            total = _mix(total + hashed)
            found[name] = int(hashed.sum(dtype=np.uint64))
    return total, found


def columns_of(batch: Any, to_numpy: Any) -> list[tuple[str, np.ndarray]]:
    """The numeric columns of a batch by name, sorted: nested ones with dots."""
    found: list[tuple[str, np.ndarray]] = []

    def visit(value: Any, name: str) -> None:
        if isinstance(value, dict):
            for key in sorted(value, key=str):
                visit(value[key], f"{name}.{key}" if name else str(key))
        elif isinstance(value, (list, tuple)):
            for place, inner in enumerate(value):
                visit(inner, f"{name}.{place}" if name else str(place))
        else:
            array = to_numpy(value)
            if array is not None and array.dtype.kind in "biufV":
                found.append((name, array))

    visit(batch, "")
    return found
