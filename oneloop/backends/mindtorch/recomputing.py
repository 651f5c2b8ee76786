"""Blocks that are recomputed in the backward pass."""

from typing import Any

import torch
from mindspore import nn as cells
from mindspore.common.recompute import _RecomputeCell

from .._common.helpers import map_tensors
from .random_generator import generator
from .tensors import is_tensor


def recomputed(block: torch.nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The block's output. Only positional inputs get gradients; keyword inputs get none."""
    place = next(block.parameters()).device
    return _at(_RecomputeCell(_Block(block, options, place))(*args), place)


class _Block(cells.Cell):
    """A module as a cell for MindSpore's recompute. The recomputation uses the dropout masks of the forward pass."""

    def __init__(self, block: torch.nn.Module, options: dict[str, Any], place: torch.device) -> None:
        super().__init__(auto_prefix=False)
        self._run = (block, options, place)
        self._drawn: Any = None

    def trainable_params(self, recurse: bool = True) -> list[Any]:
        return [p for p in self._run[0].parameters() if p.requires_grad]

    def check_names_and_refresh_name(self) -> None:
        """The names of mindtorch's parameters are already unique."""

    def construct(self, *args: Any) -> Any:
        block, options, place = self._run
        args = _at(args, place)
        if self._drawn is None:
            self._drawn = generator.bit_generator.state
            return block._recomputed_forward(*args, **options)
        now, generator.bit_generator.state = generator.bit_generator.state, self._drawn
        try:
            return block._recomputed_forward(*args, **options)
        finally:
            generator.bit_generator.state = now


def _at(value: Any, place: torch.device) -> Any:
    """Set the device of a tensor that MindSpore created, since mindtorch expects it on every tensor."""

    def mark(tensor: Any) -> Any:
        tensor._device = place
        return tensor

    return map_tensors(value, is_tensor, mark)
