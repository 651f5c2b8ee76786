"""debug="underflow_overflow": name the layer in which the first non-finite value appears."""

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn

from ...errors import NonFiniteError
from .models import unwrap
from .tensors import is_floating, to_numpy


def _tensors(value: Any) -> list[ms.Tensor]:
    if isinstance(value, ms.Tensor):
        return [value] if is_floating(value) else []
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for inner in value for tensor in _tensors(inner)]
    return []


def watch(model: Any, step: Callable[[], int]) -> Callable[[], None]:
    """Check the weights and the output of every layer in each forward pass; the value returned takes the watch off."""

    def check(name: str, layer: nn.Cell, what: str, values: list[ms.Tensor]) -> None:
        for value in values:
            finite = np.isfinite(to_numpy(value))
            if not finite.all():
                raise NonFiniteError(
                    f"step {step()}: {int((~finite).sum())} of {finite.size} values in the {what} of layer {name!r} "
                    f"({type(layer).__name__}) are not finite. The layers before it were fine. Look at its inputs, or "
                    "lower the learning rate."
                )

    def hook(name: str) -> Callable[..., None]:
        def after(layer: nn.Cell, inputs: Any, output: Any) -> None:
            check(name, layer, "weights", [p for _, p in layer.parameters_and_names(expand=False)])
            check(name, layer, "output", _tensors(output))

        return after

    cells = unwrap(model).cells_and_names()
    handles = [cell.register_forward_hook(hook(name or "model")) for name, cell in cells]

    def remove() -> None:
        for handle in handles:
            handle.remove()

    return remove
