"""Autocast in the forward pass of a model alone.

The outputs are float32, and so is what a compute_loss, or a library on top of it, does with them.
"""

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

_HALF = (torch.float16, torch.bfloat16)


class ForwardAutocast:
    """A context in which each call of a model enters autocast and returns float32.

    It hooks the call instead of replacing `forward`, so that a copy of the model does not call the original one.
    """

    def __init__(self, model: nn.Module, autocast: Callable[[], AbstractContextManager]) -> None:
        self.model = model
        self.autocast = autocast
        self._entered: list[AbstractContextManager] = []  # a model may call itself
        self._handles: list[Any] = []

    def __enter__(self) -> None:
        self._handles = [
            self.model.register_forward_pre_hook(self._begin, prepend=True),
            # Also if the forward pass fails: otherwise autocast would stay on.
            self.model.register_forward_hook(self._end, always_call=True),
        ]

    def __exit__(self, *error: Any) -> None:
        for handle in self._handles:
            handle.remove()

    def _begin(self, model: nn.Module, inputs: Any) -> None:
        context = self.autocast()
        context.__enter__()
        self._entered.append(context)

    def _end(self, model: nn.Module, inputs: Any, outputs: Any) -> Any:
        if self._entered:
            self._entered.pop().__exit__(None, None, None)
        return in_float32(outputs)


def in_float32(value: Any) -> Any:
    """The value with its half-precision tensors, also those in dicts, tuples and lists, in float32."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in _HALF else value
    if isinstance(value, Mapping):
        found = {key: in_float32(inner) for key, inner in value.items()}
        changed = {key: inner for key, inner in found.items() if inner is not value[key]}
        if not changed:
            return value
        new: Any = copy.copy(value)
        for key, inner in changed.items():
            new[key] = inner
        return new
    if isinstance(value, (tuple, list)):
        items = [in_float32(inner) for inner in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value
