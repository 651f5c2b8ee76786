"""debug="underflow_overflow": report the layer in which the first non-finite value appears."""

from collections.abc import Callable
from typing import Any

import torch

from .._common import nan_hooks


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _count(value: torch.Tensor) -> tuple[int, int]:
    finite = torch.isfinite(value)
    return (0 if bool(finite.all()) else int((~finite).sum())), value.numel()


def watch(model: torch.nn.Module, step: Callable[[], int]) -> Callable[[], None]:
    """Check every layer in each forward pass; the returned function removes the hooks."""
    return nan_hooks.watch_layers(
        model.named_modules(),
        step,
        listen=lambda layer, function: layer.register_forward_hook(function),
        weights_of=lambda layer: [p.detach() for p in layer.parameters(recurse=False)],
        is_floating=_is_floating,
        count=_count,
        advice="Check its inputs, lower the learning rate, or use bf16 instead of fp16",
    )
