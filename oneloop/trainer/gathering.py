"""Collects the batches of an evaluation into arrays. Time and memory are linear in the size of the data."""

import mmap
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import ModelError

PADDING = -100


class Pages:
    """A large array whose pages are populated in blocks just before they are written: single page faults cost more
    than the copy itself. Where the system does not support that, it is an ordinary array."""

    POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14 and newer
    SMALLEST = 1 << 24

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self.memory: mmap.mmap | None = None
        if size >= self.SMALLEST and sys.platform == "linux":
            self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.array = np.frombuffer(self.memory, dtype=dtype).reshape(shape)
        else:
            self.array = np.zeros(shape, dtype=dtype)
        self.row = self.array[:1].nbytes
        self.ready = 0

    def prepare(self, rows: int) -> None:
        """Populate the memory of the first `rows` rows."""
        if self.memory is None or rows * self.row <= self.ready:
            return
        end = min(-(-rows * self.row // mmap.PAGESIZE) * mmap.PAGESIZE, len(self.memory))
        try:
            self.memory.madvise(self.POPULATE_WRITE, self.ready, end - self.ready)
        except (OSError, ValueError):  # an older kernel: pages are populated one by one, as usual
            self.memory = None
        self.ready = end // mmap.PAGESIZE * mmap.PAGESIZE


class Rows:
    """One array that grows by batches along its first axis.

    When the number of rows is known, batches are written directly into the final array, so that the peak is one copy
    of the data. Batches that differ in their other sizes are kept and padded once, at the end.
    """

    def __init__(self, expected: int | None, tensors: Any) -> None:
        self.expected = expected
        self.tensors = tensors  # the backend's
        self.array: np.ndarray | None = None
        self.pages: Pages | None = None
        self.used = 0
        self.chunks: list[np.ndarray] = []

    def _host(self, batch: Any) -> np.ndarray:
        return self.tensors.to_numpy(batch) if self.tensors.is_tensor(batch) else np.asarray(batch)

    def add(self, batch: Any) -> None:
        if not self.tensors.is_tensor(batch):
            batch = np.asarray(batch)
        if len(batch.shape) == 0:
            batch = batch.reshape(1)
        if self.chunks or not self.expected:
            self.chunks.append(np.array(self._host(batch)))
            return
        shape, dtype = tuple(batch.shape), self._host(batch[:0]).dtype
        if self.array is None:
            self.pages = Pages((self.expected, *shape[1:]), dtype)
            self.array = self.pages.array
        end = self.used + shape[0]
        if shape[1:] == self.array.shape[1:] and dtype == self.array.dtype and end <= len(self.array):
            assert self.pages is not None
            self.pages.prepare(end)
            if self.tensors.is_tensor(batch):
                self.tensors.copy_into(self.array[self.used : end], batch)
            else:
                self.array[self.used : end] = batch
            self.used = end
        else:
            whole = [self.array[: self.used]] if self.used else []
            self.chunks, self.array = [*whole, np.array(self._host(batch))], None

    def result(self) -> np.ndarray | None:
        """The complete array. Ragged batches are padded with -100 (False for booleans) at their ends."""
        if self.array is not None:
            return self.array[: self.used]
        if not self.chunks:
            return None
        chunks, self.chunks = self.chunks, []
        widths = [c.shape[1:] for c in chunks]
        dtype = np.result_type(*{c.dtype for c in chunks})
        if len({c.ndim for c in chunks}) > 1:
            raise ValueError(
                f"batches of an evaluation have different numbers of axes: {sorted({c.ndim for c in chunks})}"
            )
        shape = (sum(len(c) for c in chunks), *(max(sizes) for sizes in zip(*widths, strict=True)))
        ragged = len(set(widths)) > 1
        whole = (
            np.full(shape, False if dtype.kind == "b" else PADDING, dtype=dtype) if ragged else np.empty(shape, dtype)
        )
        start = 0
        for i, chunk in enumerate(chunks):
            place = (slice(start, start + len(chunk)), *(slice(size) for size in chunk.shape[1:]))
            whole[place] = chunk
            start += len(chunk)
            chunks[i] = np.empty(0)  # frees the batch, so that the peak stays near one copy
        return whole


class NestedRows:
    """Rows for every leaf of a nested structure: arrays in tuples, lists and dicts."""

    def __init__(self, expected: int | None, tensors: Any, as_list: bool = False) -> None:
        self.expected = expected
        self.tensors = tensors
        self.as_list = as_list  # eval_do_concat_batches=False: a list of batches
        self.tree: Any = None
        self.batches: list[Any] = []

    def add(self, batch: Any) -> None:
        if batch is None:
            return
        if self.as_list:
            self.batches.append(_map(batch, lambda leaf: np.array(Rows(None, self.tensors)._host(leaf))))
            return
        if self.tree is None:
            self.tree = _map(batch, lambda _: Rows(self.expected, self.tensors))
        _both(self.tree, batch)

    def result(self) -> Any:
        if self.as_list:
            return self.batches or None
        return None if self.tree is None else _map(self.tree, lambda rows: rows.result())


def _map(value: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _map(inner, function) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(_map(inner, function) for inner in value)
    return value if value is None else function(value)


def _both(tree: Any, value: Any) -> None:
    if isinstance(tree, dict):
        if not isinstance(value, dict) or tree.keys() != value.keys():
            raise _other_parts(list(tree), list(value) if isinstance(value, dict) else type(value).__name__)
        for key, inner in tree.items():
            _both(inner, value[key])
    elif isinstance(tree, tuple):
        if not isinstance(value, (list, tuple)) or len(tree) != len(value):
            raise _other_parts(len(tree), len(value) if isinstance(value, (list, tuple)) else type(value).__name__)
        for inner, part in zip(tree, value):
            _both(inner, part)
    elif tree is not None:
        tree.add(value)


def _other_parts(first: Any, now: Any) -> ModelError:
    return ModelError(
        f"an output of the evaluation has a different structure in one batch ({now}) than in the first ({first}), "
        "so the "
        "batches cannot be concatenated. List the output in ignore_keys, or set eval_do_concat_batches=False, which "
        "returns a list of batches."
    )


map_leaves = _map
