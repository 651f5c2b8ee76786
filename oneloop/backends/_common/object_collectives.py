"""Collectives of objects, for frameworks that can only gather and broadcast arrays."""

import math
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...distributed.collectives import ProcessGroup

_WORD = np.int32  # the smallest type that all frameworks can send


class ObjectCollectives(ProcessGroup):
    """Objects over two collectives of arrays, which a backend implements: values are sent as bytes, padded to the
    longest."""

    def all_gather_array(self, array: np.ndarray) -> list[np.ndarray]:
        """The arrays of all processes, by rank: float64 or int32, with one axis, of the same length in all of them."""
        raise NotImplementedError

    def broadcast_array(self, array: np.ndarray) -> np.ndarray:
        """The array of the main process (int32, with one axis) in all of them; those of the others have the same
        length."""
        raise NotImplementedError

    def all_gather(self, numbers: Sequence[float]) -> list[list[float]]:
        return [of_rank.tolist() for of_rank in self.all_gather_array(np.array(numbers, dtype=np.float64))]

    def all_gather_object(self, value: Any) -> list[Any]:
        words = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        sizes = [int(size) for (size,) in self.all_gather([len(words)])]
        every = self.all_gather_array(_padded(words, max(sizes)))
        return [_value(array, size) for array, size in zip(every, sizes, strict=True)]

    def gather_object(self, value: Any) -> list[Any] | None:
        every = self.all_gather_object(value)
        return every if self.is_main else None

    def broadcast_object(self, value: Any) -> Any:
        words = pickle.dumps(value, pickle.HIGHEST_PROTOCOL) if self.is_main else b""
        size = int(self.all_gather([len(words)])[0][0])
        return _value(self.broadcast_array(_padded(words, size)), size)

    def barrier(self) -> None:
        self.all_gather([0.0])


def _padded(words: bytes, size: int) -> np.ndarray:
    array = np.zeros(math.ceil(size / _WORD().itemsize), dtype=_WORD)
    array.view(np.uint8)[: len(words)] = np.frombuffer(words, dtype=np.uint8)
    return array


def _value(array: np.ndarray, size: int) -> Any:
    return pickle.loads(np.ascontiguousarray(array).view(np.uint8)[:size].tobytes())
