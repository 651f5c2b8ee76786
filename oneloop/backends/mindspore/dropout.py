"""Dropout with masks from an RNG whose state can be saved in a checkpoint.

MindSpore keeps the state of `nn.Dropout` inside its kernel, where it cannot be read or restored, so a resumed run would
have other masks. Here the layers of a model get their masks from one NumPy generator, in the order in which they are
called. Layers that are recomputed in the backward pass use the masks of the forward pass.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.common._register_for_recompute import recompute_registry

_WORDS = ("state", "inc")
_MASK64 = 2**64 - 1

generator = np.random.Generator(np.random.PCG64(0))


def seed(value: int) -> None:
    generator.bit_generator.state = np.random.PCG64(value).state


def get_state() -> np.ndarray:
    """The generator's state: two numbers of 128 bits, and a half-used word."""
    found: Any = generator.bit_generator.state
    wide = [part for word in _WORDS for part in (found["state"][word] >> 64, found["state"][word] & _MASK64)]
    return np.array([*wide, found["has_uint32"], found["uinteger"]], dtype=np.uint64)


def set_state(array: np.ndarray) -> None:
    high, low, inc_high, inc_low, has, rest = (int(word) for word in array)
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": inc_high << 64 | inc_low},
        "has_uint32": has,
        "uinteger": rest,
    }


def uniform(shape: tuple[int, ...]) -> np.ndarray:
    """Numbers from 0 up to 1, for masks and noise."""
    return generator.random(shape, dtype=np.float32)


class Mask:
    """Replaces the kernel of a layer: some elements become zero, and the others are scaled up."""

    def __init__(self, drop: float, channels: int | None = None) -> None:
        self.drop = drop
        self.channels = channels  # axes from here on share a random number: whole channels are dropped

    def __call__(self, x: ms.Tensor) -> tuple[ms.Tensor, None]:
        shape = tuple(x.shape)
        if self.channels is not None:
            shape = shape[: self.channels] + (1,) * (len(shape) - self.channels)
        kept = uniform(shape) >= self.drop
        mask = ms.Tensor((kept / (1.0 - self.drop)).astype(np.float32))
        return x * (mask if x.dtype == ms.float32 else mask.astype(x.dtype)), None


class _Channels:
    """Dropout1d, 2d and 3d: construct of a layer whose kernel is hidden in a function."""

    def __init__(self, layer: nn.Cell, axes: int) -> None:
        self.layer = layer
        self.axes = axes  # of one channel, such as two for an image

    def __call__(self, x: ms.Tensor) -> ms.Tensor:
        drop = _share(self.layer)
        return Mask(drop, x.ndim - self.axes)(x)[0] if self.layer.training and drop > 0 else x


_CHANNELS = {nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}
_DROPPING: tuple[Any, ...] = (nn.Dropout, *_CHANNELS)


def install(model: nn.Cell) -> None:
    """Let every dropout layer of a model take its masks from this RNG."""
    for _, cell in model.cells_and_names():
        if isinstance(cell, nn.Dropout):
            cell.dropout = Mask(_share(cell))
        elif type(cell) in _CHANNELS:
            cell.construct = _Channels(cell, _CHANNELS[type(cell)])
        if getattr(cell, "_recompute_cell", None) is not None:
            replay_in(cell)


def _share(cell: nn.Cell) -> float:
    """The drop probability of a layer; its name differs between classes."""
    given = getattr(cell, "p", None) if isinstance(cell, nn.Dropout) else getattr(cell, "prob", None)
    return 1.0 - cell.keep_prob if given is None else float(given)


def is_active(model: nn.Cell) -> bool:
    """Whether a layer drops anything in training."""
    return any(cell.training and _share(cell) > 0 for _, cell in model.cells_and_names() if isinstance(cell, _DROPPING))


# -- recomputed layers


def replay_in(cell: nn.Cell) -> None:
    """Recompute this cell in the backward pass, with the masks of the forward pass."""
    cell._recompute_cell = recompute_registry.get()(cell.construct, False, False, True, _contexts)


def _contexts() -> tuple[Any, Any]:
    """One for the forward pass and one for the recomputation, as mindspore.recompute requires."""
    start: list[Any] = []
    return _remember(start), _repeat(start)


@contextlib.contextmanager
def _remember(start: list[Any]) -> Iterator[None]:
    start[:] = [generator.bit_generator.state]
    yield


@contextlib.contextmanager
def _repeat(start: list[Any]) -> Iterator[None]:
    now = generator.bit_generator.state
    generator.bit_generator.state = start[0]
    try:
        yield
    finally:
        generator.bit_generator.state = now
