"""The part of a parameter that this process has, where an axis divides it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ATTRIBUTE = "oneloop_part"


@dataclass(frozen=True)
class Part:
    """One of `count` equal parts along a dim of a tensor."""

    dim: int
    count: int
    index: int

    def whole_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the whole tensor, from that of a part."""
        return tuple(size * self.count if dim == self.dim else size for dim, size in enumerate(shape))

    def of(self, array: Any) -> Any:
        """This part of a whole array or tensor, without a copy where that is possible."""
        size = array.shape[self.dim] // self.count
        rows = slice(self.index * size, (self.index + 1) * size)
        return array[(slice(None),) * self.dim + (rows,)]


def part_of(tensor: Any) -> Part | None:
    """The part that this process has of a parameter; None if it has all."""
    return getattr(tensor, ATTRIBUTE, None)


def whole_shape(tensor: Any) -> tuple[int, ...]:
    """The shape of a parameter, divided or not."""
    part = part_of(tensor)
    return tuple(tensor.shape) if part is None else part.whole_shape(tensor.shape)
