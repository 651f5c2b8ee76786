"""Buffers of a model, such as the running statistics of its norms, and copies of those that training changes. No
framework."""

from dataclasses import dataclass
from typing import Any

# A buffer is copied before every update up to this size. A larger one is copied once it has changed.
SMALL = 1 << 20


@dataclass(eq=False)
class Buffer:
    """A buffer, by its place in a layer: code may write to the tensor, or put another one in its place."""

    name: str  # as in checkpoints
    layer: Any
    container: dict[str, Any]  # of the layer, with the buffer under this key
    key: str
    tensor: Any = None  # before the current update
    copy: Any = None
    stamp: Any = None  # changes when the tensor may have changed

    @property
    def current(self) -> Any:
        return self.container[self.key]


class BufferCopies:
    """Restores the buffers that a skipped update has changed. Nothing is read from the device, apart from one
    comparison of large buffers after the first update.

    The kernels of some norms change their statistics without a trace in the tensor's version, and so does code that
    writes through `.data` or NumPy. So small buffers are copied whether or not they seem to change. Large ones are
    compared by values in the first update; one that is constant then is watched by its version and by the mode of its
    layer.
    """

    def __init__(self, buffers: list[Buffer], tensors: Any) -> None:
        self._tensors = tensors  # the module of the backend
        self._changing: list[Buffer] = []
        self._constant = buffers
        self._is_first = True

    def begin(self) -> None:
        """Before an update: copy the buffers that training changes."""
        if self._is_first:
            for buffer in self._constant:
                buffer.tensor, buffer.stamp = buffer.current, self._stamp(buffer)
            self._copy(self._constant)
            return
        self._take_changed()
        for buffer in self._changing:
            if buffer.current is not buffer.tensor:  # replaced, not written to
                buffer.tensor, buffer.copy = buffer.current, None
        self._copy(self._changing)

    def end(self, bad: Any) -> list[str]:
        """After an update: restore its buffers if it was bad, which is a bool or a flag on the device; the names of
        those that could not be restored."""
        if bad is False and not self._is_first:
            return []
        if self._is_first:
            self._changing = [
                b for b in self._constant if self._is_small(b) or self._has_changed(b) or not self._equals(b)
            ]
            self._constant = [buffer for buffer in self._constant if buffer not in self._changing]
        else:
            self._take_changed()
        if bad is not False:
            self._restore([buffer for buffer in self._changing if buffer.copy is not None], bad)
        if self._is_first:
            self._is_first = False
            for buffer in self._constant:
                buffer.copy = None
        return [buffer.name for buffer in self._changing if buffer.copy is None]

    def _take_changed(self) -> None:
        """Buffers that were constant and may not be any more."""
        changed = [buffer for buffer in self._constant if self._has_changed(buffer)]
        if changed:
            self._changing = [*self._changing, *changed]
            self._constant = [buffer for buffer in self._constant if buffer not in changed]

    def _copy(self, buffers: list[Buffer]) -> None:
        kept = self._tensors.keep([b.tensor for b in buffers], [b.copy for b in buffers])
        for buffer, copy in zip(buffers, kept, strict=True):
            buffer.copy = copy

    def _restore(self, buffers: list[Buffer], bad: Any) -> None:
        if bad is True:
            for buffer in buffers:
                buffer.container[buffer.key] = buffer.tensor
        self._tensors.restore_copies([b.current for b in buffers], [b.copy for b in buffers], bad)

    def _is_small(self, buffer: Buffer) -> bool:
        return self._tensors.size(buffer.tensor) <= SMALL

    def _stamp(self, buffer: Buffer) -> Any:
        tensor = buffer.current
        return id(tensor), self._tensors.version(tensor), buffer.layer.training

    def _has_changed(self, buffer: Buffer) -> bool:
        return self._stamp(buffer) != buffer.stamp

    def _equals(self, buffer: Buffer) -> bool:
        return self._tensors.equals(buffer.tensor, buffer.copy)
