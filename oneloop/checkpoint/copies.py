"""Copies of tensors for a save: what training changes must not show in the files."""

import mmap
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ..formats.safetensors_io import Raw
from .async_writer import stepped_back

THREADS = 4  # that copy at once; more do not make memory faster


def _touch(arrays: list[np.ndarray]) -> None:
    """Write to every page, so that it is allocated; in blocks, so that the GIL is released in between."""
    for array in arrays:
        for start in range(0, array.size, 2**20):
            array[start : start + 2**20 : mmap.PAGESIZE] = 0


def _cores() -> int:
    """Those that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Buffers:
    """Copies of tensors, in buffers that are reused for every save."""

    # Allocating memory takes several times as long as the copy into it; below this size, neither matters.
    WORTH_PREPARING = 64 * 2**20
    # Copying less takes no longer than a few milliseconds.
    WORTH_THREADS = 16 * 2**20

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}
        self._preparing: threading.Thread | None = None

    def prepare(self, rooms: dict[str, Any], raw: Callable[[Any], Raw]) -> None:
        """Use these buffers, and allocate their pages in the background before the first save needs them."""
        raws = [raw(room) for room in rooms.values()]
        arrays = [np.frombuffer(each.data, np.uint8) for each in raws if each.size]
        if sum(array.nbytes for array in arrays) < self.WORTH_PREPARING:
            return
        self._kept.update(rooms)
        self._preparing = threading.Thread(
            target=stepped_back, args=(_touch, arrays), name="oneloop-buffers", daemon=True
        )
        self._preparing.start()

    def copy(self, tensors: dict[str, Any], weights: Any) -> dict[str, Any]:
        """The copies that the backend's `weights` make. All of them are complete when this returns, so that code of the
        user, which may change the tensors without a trace, never runs beside a copy."""
        if self._preparing is not None:
            self._preparing.join()
            self._preparing = None
        shared = {name: tensor for name, tensor in tensors.items() if weights.is_copied_by_threads(tensor)}
        threads = min(THREADS, _cores()) if sum(map(_size, shared.values())) >= self.WORTH_THREADS else 1
        shared = shared if threads > 1 else {}
        copies = {name: weights.copy_to(t, self._kept.get(name)) for name, t in tensors.items() if name not in shared}
        if shared:
            names = sorted(shared, key=lambda name: -_size(shared[name]))  # large ones first: no thread waits long
            given = [shared[name] for name in names], [self._kept.get(name) for name in names]
            with ThreadPoolExecutor(threads, thread_name_prefix="oneloop-copy") as pool:
                copies |= zip(names, pool.map(weights.copy_to, *given), strict=True)
        self._kept.update(copies)
        return {name: copies[name] for name in tensors}


def _size(tensor: Any) -> int:
    return tensor.nbytes
