"""Quantized tensors that torchao's optimizers keep in their state: to plain data for a checkpoint, and back.

As tensors of floats they would be quantized anew by a resumed run, which would then differ."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from ...errors import CheckpointError
from ...formats.schema import format_short

# Classes by module. A checkpoint can name no others.
_CLASSES = {
    "torchao.optim.subclass_8bit": "OptimState8bit",
    "torchao.optim.subclass_4bit": "OptimState4bit",
    "torchao.optim.subclass_fp8": "OptimStateFp8",
}


def is_quantized(value: Any) -> bool:
    module = type(value).__module__
    return _CLASSES.get(module) == type(value).__name__ and module in sys.modules


def packed(value: Any, pack: Callable[[Any, str], Any]) -> dict[str, Any]:
    """Plain data; `pack` does the same to a part, given by its name."""
    names, context = value.__tensor_flatten__()
    parts = {name: pack(getattr(value, name), name) for name in names}
    options = [tuple(option) if isinstance(option, torch.Size) else option for option in context]
    return {"quantized": {"module": type(value).__module__, "parts": parts, "options": pack(options, "options")}}


def unpacked(data: Any, unpack: Callable[[Any], Any], source: str) -> Any:
    """A quantized tensor from the data of `packed`."""
    module = data.get("module") if isinstance(data, dict) else None
    if module not in _CLASSES or not isinstance(data.get("parts"), dict):
        raise _unreadable(data, source)
    cls = getattr(import_module(module), _CLASSES[module])
    parts = {name: unpack(part) for name, part in data["parts"].items()}
    options = unpack(data.get("options"))
    if set(parts) != set(cls.tensor_attrs) or not all(isinstance(part, torch.Tensor) for part in parts.values()):
        raise _unreadable(data, source)
    try:
        return cls.__tensor_unflatten__(parts, options)
    except Exception as error:  # the class checks types and sizes, by assertions too
        raise _unreadable(data, source) from error


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """A quantized tensor with the results of the function in place of its parts."""
    names, context = value.__tensor_flatten__()
    return type(value).__tensor_unflatten__({name: function(getattr(value, name)) for name in names}, context)


def _unreadable(data: Any, source: str) -> CheckpointError:
    return CheckpointError(
        f"the optimizer state in {source} has a quantized tensor that cannot be read: {format_short(data)}"
    )
