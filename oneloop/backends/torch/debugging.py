"""debug="underflow_overflow": name the layer in which the first non-finite value appears."""

from collections.abc import Callable
from typing import Any

import torch

from ...errors import NonFiniteError


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for inner in value for tensor in _tensors(inner)]
    return []


def watch(model: torch.nn.Module, step: Callable[[], int]) -> Callable[[], None]:
    """Check the weights and the output of every layer in each forward pass; the value returned takes the watch off."""

    def check(name: str, layer: torch.nn.Module, what: str, values: list[torch.Tensor]) -> None:
        for value in values:
            finite = torch.isfinite(value)
            if not bool(finite.all()):
                bad = int((~finite).sum())
                raise NonFiniteError(
                    f"step {step()}: {bad} of {value.numel()} values in the {what} of layer {name!r} "
                    f"({type(layer).__name__}) are not finite. The layers before it were fine. Look at its inputs, "
                    "lower the learning rate, or use bf16 instead of fp16."
                )

    def hook(name: str) -> Callable[..., None]:
        def after(layer: torch.nn.Module, inputs: Any, output: Any) -> None:
            check(name, layer, "weights", [p.detach() for p in layer.parameters(recurse=False)])
            check(name, layer, "output", _tensors(output))

        return after

    handles = [layer.register_forward_hook(hook(name or "model")) for name, layer in model.named_modules()]

    def remove() -> None:
        for handle in handles:
            handle.remove()

    return remove
