"""Copies of tensors for a save: what training changes must not show in the files."""

import mmap
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import StateChangedError
from .async_writer import stepped_back
from .safetensors_io import Raw


def _touch(arrays: list[np.ndarray]) -> None:
    """Write to every page, so that it is allocated; in blocks, so that the GIL is released in between."""
    for array in arrays:
        for start in range(0, array.size, 2**20):
            array[start : start + 2**20 : mmap.PAGESIZE] = 0


class LateCopies:
    """Copies that a thread makes while training goes on, of tensors that nothing should change until they are awaited.
    If something does, the copy fails: it would have values of two steps."""

    def __init__(
        self, pairs: list[tuple[Any, Any]], copy_to: Callable[[Any, Any], Any], version: Callable[[Any], int]
    ) -> None:
        self._pairs, self._copy_to, self._version = pairs, copy_to, version
        self._versions = [version(tensor) for tensor, _ in pairs]
        self._thread = threading.Thread(target=self._run, name="oneloop-copies", daemon=True)
        self.error: BaseException | None = None
        self._thread.start()

    def _run(self) -> None:
        try:
            for tensor, buffer in self._pairs:
                self._copy_to(tensor, buffer)
            if [self._version(tensor) for tensor, _ in self._pairs] != self._versions:
                raise StateChangedError(
                    "the optimizer's state was changed while it was being copied, not by the optimizer's step. From "
                    "now on, training waits for the copy"
                )
        except BaseException as error:
            self.error = error
        finally:
            self._pairs = []

    def wait(self) -> None:
        """Called before anything may change the tensors."""
        self._thread.join()

    def check(self) -> None:
        """Called before the copies are written."""
        self.wait()
        if self.error is not None:
            raise self.error


class Buffers:
    """Copies of tensors, in buffers that are reused for every save."""

    # Allocating memory takes several times as long as the copy into it; below this size, neither matters.
    WORTH_PREPARING = 64 * 2**20
    # Copying less takes no longer than a few milliseconds.
    WORTH_A_THREAD = 16 * 2**20

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}
        self._preparing: threading.Thread | None = None
        self.late: LateCopies | None = None  # of the last save that had some

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

    def copy(self, tensors: dict[str, Any], copy_to: Callable[[Any, Any], Any]) -> dict[str, Any]:
        """copy_to(tensor, buffer or None) returns the buffer with the copy."""
        self._await_threads()
        copies = {name: copy_to(tensor, self._kept.get(name)) for name, tensor in tensors.items()}
        self._kept.update(copies)
        return copies

    def copy_late(self, tensors: dict[str, Any], weights: Any, version: Callable[[Any], int]) -> dict[str, Any]:
        """The buffers that a thread copies to while this returns: see `late`."""
        self._await_threads()
        for name, tensor in tensors.items():
            kept = self._kept.get(name)
            if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
                self._kept[name] = weights.room(tensor)
        buffers = {name: self._kept[name] for name in tensors}
        self.late = LateCopies(list(zip(tensors.values(), buffers.values(), strict=True)), weights.copy_to, version)
        return buffers

    def is_worth_a_thread(self, size: int) -> bool:
        """Whether copies of so many bytes should be late. Not once something has disturbed them in this run."""
        return size >= self.WORTH_A_THREAD and (self.late is None or self.late.error is None)

    def end_late(self) -> None:
        """Wait until nothing is being copied."""
        if self.late is not None:
            self.late.wait()

    def _await_threads(self) -> None:
        self.end_late()  # of a save that failed before it needed them
        if self._preparing is not None:
            self._preparing.join()
            self._preparing = None
