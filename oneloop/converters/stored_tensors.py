"""Tensors in files of other libraries, read when they are needed: whole, or the box that a process has of them.

A tensor may be stored in pieces, by the processes that wrote it: consecutive elements of the flat tensor (DeepSpeed),
or boxes (torch.distributed.checkpoint). Nothing is read until a box is asked for, and then only the bytes of its rows.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError
from ..formats.reading import open_file
from ..formats.safetensors_io import Raw, numpy_type
from .plain_pickle import Kept

Box = tuple[slice, ...]
Shape = tuple[int, ...]


class Tensor(Kept):
    """A tensor whose type and shape are known, and whose elements are in files."""

    dtype: str  # by safetensors' name
    shape: Shape

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def dim(self) -> int:
        return len(self.shape)

    def box(self, box: Box) -> np.ndarray:
        """A part of it; `box` has a range for each dimension."""
        raise NotImplementedError

    def whole(self) -> np.ndarray:
        return self.box(tuple(slice(0, size) for size in self.shape))

    def raw(self) -> Raw:
        return self.part(tuple(slice(0, size) for size in self.shape))

    def part(self, box: Box) -> Raw:
        array = np.asarray(self.box(box), order="C")
        return Raw(self.dtype, array.shape, array.reshape(-1).view(np.uint8))


@dataclass(frozen=True)
class StoredTensor(Tensor):
    """A tensor in a file, one row after the other."""

    path: Path
    start: int  # of its first byte
    dtype: str
    shape: Shape

    def elements(self, first: int, last: int) -> np.ndarray:
        """Elements of the flat tensor."""
        kind = numpy_type(self.dtype)
        if first >= last:
            return np.zeros(0, kind)
        try:
            with open_file(self.path) as file:
                if os.fstat(file.fileno()).st_size < self.start + last * kind.itemsize:
                    raise CheckpointError(f"{self.path} has become shorter since it was opened")
                return np.fromfile(file, kind, last - first, offset=self.start + first * kind.itemsize)
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be read: {error.strerror or error}") from error

    def box(self, box: Box) -> np.ndarray:
        return _rows(self, box)


@dataclass(frozen=True)
class StridedTensor(Tensor):
    """A tensor whose elements are in another order, such as a transposed one; it is read whole."""

    source: StoredTensor  # all elements, flat
    dtype: str
    shape: Shape
    strides: Shape  # in elements

    def box(self, box: Box) -> np.ndarray:
        flat = self.source.elements(0, self.source.shape[0])
        strides = [n * flat.itemsize for n in self.strides]
        return np.lib.stride_tricks.as_strided(flat, self.shape, strides, writeable=False)[box]


@dataclass(frozen=True)
class Elements:
    """Consecutive elements of a stored tensor, taken as flat, that are elements of another one from `start` on."""

    start: int
    count: int
    source: StoredTensor
    first: int  # in the source


@dataclass(frozen=True)
class FlatTensor(Tensor):
    """A tensor whose elements are in several stored ones, in order and without a gap."""

    dtype: str
    shape: Shape
    pieces: tuple[Elements, ...]

    def elements(self, first: int, last: int) -> np.ndarray:
        found = np.empty(max(last - first, 0), numpy_type(self.dtype))
        for piece in self.pieces:
            low, high = max(first, piece.start), min(last, piece.start + piece.count)
            if low < high:
                shift = piece.first - piece.start
                found[low - first : high - first] = piece.source.elements(low + shift, high + shift)
        return found

    def box(self, box: Box) -> np.ndarray:
        return _rows(self, box)


@dataclass(frozen=True)
class BoxedTensor(Tensor):
    """A tensor that is stored in boxes, which cover it."""

    dtype: str
    shape: Shape
    pieces: tuple[tuple[Shape, StoredTensor], ...]  # where the box begins, and its elements

    def box(self, box: Box) -> np.ndarray:
        found = np.empty(tuple(max(part.stop - part.start, 0) for part in box), numpy_type(self.dtype))
        for offsets, source in self.pieces:
            common = [
                slice(max(part.start, offset), min(part.stop, offset + size))
                for part, offset, size in zip(box, offsets, source.shape)
            ]
            if all(part.start < part.stop for part in common):
                here = tuple(slice(c.start - part.start, c.stop - part.start) for c, part in zip(common, box))
                there = tuple(slice(c.start - offset, c.stop - offset) for c, offset in zip(common, offsets))
                found[here] = source.box(there)
        return found


def is_covered(shape: Shape, boxes: Sequence[tuple[Shape, Shape]]) -> bool:
    """Whether boxes, by their offsets and sizes, are within a shape, do not overlap, and cover it."""
    if any(len(offsets) != len(shape) or len(sizes) != len(shape) for offsets, sizes in boxes):
        return False
    if any(o + s > n for offsets, sizes in boxes for o, s, n in zip(offsets, sizes, shape)):
        return False
    filled = [each for each in boxes if math.prod(each[1])]
    if sum(math.prod(sizes) for _, sizes in filled) != math.prod(shape):
        return False
    if not shape:
        return True
    # Along the dimension that is cut most often: there a thousand slices have no pairs to compare.
    axis = max(range(len(shape)), key=lambda i: len({offsets[i] for offsets, _ in filled}))
    current: list[tuple[Shape, Shape]] = []
    for each in sorted(filled, key=lambda box: box[0][axis]):
        current = [other for other in current if other[0][axis] + other[1][axis] > each[0][axis]]
        if any(_overlap(each, other) for other in current):
            return False
        current.append(each)
    return True


def _overlap(a: tuple[Shape, Shape], b: tuple[Shape, Shape]) -> bool:
    return all(max(p, q) < min(p + n, q + m) for p, n, q, m in zip(*a, *b))


def _rows(tensor: Any, box: Box) -> np.ndarray:
    """A box of a tensor that is stored row by row: its rows are read, and of these the rest of the box is taken."""
    if not box:
        return tensor.elements(0, 1).reshape(())
    row = math.prod(tensor.shape[1:])
    first, last = box[0].start, max(box[0].start, box[0].stop)
    found = tensor.elements(first * row, last * row).reshape((last - first, *tensor.shape[1:]))
    rest = (slice(None), *box[1:])
    return found[rest]
