"""Devices: which there are, and how models and batches get there."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ...errors import ArgumentError
from ...processes import world

_KINDS = {"gpu": "cuda", "cuda": "cuda", "cpu": "cpu", "xpu": "xpu", "npu": "npu", "mps": "mps"}


def available(kind: str) -> int:
    """How many devices of that kind this machine has."""
    if kind == "cpu":
        return 1
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    module = getattr(torch, kind, None)
    return module.device_count() if module is not None and module.is_available() else 0


def resolve(spec: str | None) -> torch.device:
    """A real device for "cpu", "gpu", "cuda:1", "xpu", "npu", "mps" or None, which means the best there is."""
    if spec is None:
        kind = next((kind for kind in ("cuda", "npu", "xpu", "mps") if available(kind)), "cpu")
        index = ""
    else:
        name, _, index = str(spec).partition(":")
        if name not in _KINDS or (index and not index.isdigit()):
            raise ArgumentError(f"device={spec!r} is not a device; use cpu, gpu, gpu:0, cuda:0, xpu, npu or mps")
        kind = _KINDS[name]
    count = available(kind)
    if count == 0 or (index and int(index) >= count):
        raise ArgumentError(
            f"device={spec!r}, but PyTorch {torch.__version__} sees {count} {kind} device(s) on this machine. "
            "Leave device out to take the best there is, or use device='cpu'."
        )
    if kind in ("cpu", "mps"):
        return torch.device(kind)
    return torch.device(kind, int(index) if index else world().local_rank % count)


def kind(device: torch.device) -> str:
    """cpu, cuda, xpu, npu or mps."""
    return device.type


def title(device: torch.device) -> str | None:
    """The product's name of an accelerator; None for a CPU."""
    module = getattr(torch, device.type, None)
    return module.get_device_name(device) if hasattr(module, "get_device_name") else None


def place(model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """The model on that device. A model that spreads itself over devices, or is quantised, stays where it is."""
    if getattr(model, "hf_device_map", None) or getattr(model, "is_quantized", False):
        return model
    return model.to(device)


def move(batch: Any, device: torch.device, non_blocking: bool = True) -> Any:
    """Every tensor and array of a nested batch on the device; what is neither stays as it is."""
    if isinstance(batch, torch.Tensor):
        return batch if batch.device == device else batch.to(device, non_blocking=non_blocking)
    if isinstance(batch, Mapping):
        moved = {key: move(value, device, non_blocking) for key, value in batch.items()}
        return moved if type(batch) is dict else type(batch)(moved)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move(value, device, non_blocking) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(move(value, device, non_blocking) for value in batch)
    if isinstance(batch, np.ndarray) and batch.dtype.kind in "biuf":
        return torch.from_numpy(batch).to(device, non_blocking=non_blocking)
    return batch


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that the device or the host ran out of memory."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(
        sign in text
        for sign in ("out of memory", "can't allocate memory", "DefaultCPUAllocator", "CUDNN_STATUS_NOT_SUPP")
    )


def empty_cache(device: torch.device) -> None:
    """Give cached blocks back to the device; nothing to do on a CPU."""
    if device.type != "cpu":
        getattr(torch, device.type).empty_cache()


def allow_tf32(on: bool) -> None:
    """TF32 matrix products and convolutions on NVIDIA devices."""
    torch.backends.cuda.matmul.allow_tf32 = on
    torch.backends.cudnn.allow_tf32 = on
