"""Devices: which are available, and how models and batches are moved to them."""

import functools
from typing import Any

import mindspore
import torch

from ..torch.devices import available, empty_cache, kind, move, resolve, title

__all__ = [
    "allow_tf32",
    "available",
    "empty_cache",
    "is_out_of_memory",
    "kind",
    "move",
    "move_model",
    "resolve",
    "title",
]


@functools.cache
def _configure_execution(kind: str) -> None:
    """Once per process: on a CPU asynchronous launches are three times as slow, so they are disabled."""
    if kind == "cpu":
        mindspore.runtime.launch_blocking()


def move_model(model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """The model on that device. Moving creates new tensors, so a model that is already there is not moved."""
    _configure_execution(device.type)
    if getattr(model, "hf_device_map", None) or all(p.device == device for p in model.parameters()):
        return model
    return model.to(device)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that the device or the host ran out of memory."""
    signs = ("out of memory", "Out of memory", "Alloc memory failed", "Memory not enough", "malloc")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)
    )


def allow_tf32(on: bool) -> Any:
    """TF32 matrix products and convolutions on NVIDIA devices."""
    mindspore.device_context.gpu.op_precision.matmul_allow_tf32(on)
    mindspore.device_context.gpu.op_precision.conv_allow_tf32(on)
