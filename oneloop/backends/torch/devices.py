"""Devices: which are available, and how models and batches are moved to them."""

from typing import Any

import torch

from ...distributed.world import world
from .._common import device_moves

_KINDS = {"gpu": "cuda", "cuda": "cuda", "cpu": "cpu", "xpu": "xpu", "npu": "npu", "mps": "mps"}


def available(kind: str) -> int:
    """The number of devices of that kind on this machine."""
    if kind == "cpu":
        return 1
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    module = getattr(torch, kind, None)
    return module.device_count() if module is not None and module.is_available() else 0


def resolve(spec: str | None) -> torch.device:
    """A real device for "cpu", "gpu", "cuda:1", "xpu", "npu", "mps" or None, which means the best available."""
    best_first = ("cuda", "npu", "xpu", "mps")
    return torch.device(*device_moves.choose(spec, _KINDS, best_first, available, f"PyTorch {torch.__version__}"))


def kind(device: torch.device) -> str:
    """cpu, cuda, xpu, npu or mps."""
    return device.type


def title(device: torch.device) -> str | None:
    """The product name of an accelerator; None for a CPU."""
    module: Any = getattr(torch, device.type, None)
    return module.get_device_name(device) if hasattr(module, "get_device_name") else None


def move_model(model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """The model on that device. A model that is spread over devices, or is quantised, is not moved."""
    if getattr(model, "hf_device_map", None) or getattr(model, "is_quantized", False):
        return model
    if world().rank > 0 and any(p.is_meta for p in model.parameters()):
        _materialise(model, device)
    return model.to(device)


def _materialise(model: torch.nn.Module, device: torch.device) -> None:
    """Memory for tensors on the meta device, in a process that gets their values from the main process; tied ones stay
    tied. As nn.Module.to_empty, which unties them."""
    made: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, value in tensors.items():
                if value is None or not value.is_meta:
                    continue
                if id(value) not in made:
                    room = torch.empty_like(value, device=device)
                    is_parameter = isinstance(value, torch.nn.Parameter)
                    made[id(value)] = torch.nn.Parameter(room, value.requires_grad) if is_parameter else room
                tensors[name] = made[id(value)]


def move(batch: Any, device: torch.device, non_blocking: bool = True) -> Any:
    """Move every tensor and array of a nested batch to the device; other values are unchanged."""
    if type(batch) is dict and all(type(value) is torch.Tensor for value in batch.values()):  # as nearly all are
        return {
            name: value if value.device == device else value.to(device, non_blocking=non_blocking)
            for name, value in batch.items()
        }

    def moved(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.device == device:
            return value
        return value.to(device, non_blocking=non_blocking)

    return device_moves.map_batch(batch, moved, lambda array: moved(torch.from_numpy(array)))


def recorded_event(device: torch.device) -> Any:
    """An event that follows what was queued on an accelerator so far; None where there are no events (CPU)."""
    kind = None if device.type == "cpu" else getattr(getattr(torch, device.type), "Event", None)
    if kind is None:
        return None
    event = kind()
    event.record()
    return event


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that the device or the host ran out of memory."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(
        sign in text
        for sign in ("out of memory", "can't allocate memory", "DefaultCPUAllocator", "CUDNN_STATUS_NOT_SUPP")
    )


def empty_cache(device: torch.device) -> None:
    """Free cached memory of the device; no effect on a CPU."""
    if device.type != "cpu":
        getattr(torch, device.type).empty_cache()


def allow_tf32(on: bool) -> None:
    """TF32 matrix products and convolutions on NVIDIA devices."""
    torch.backends.cuda.matmul.allow_tf32 = on
    torch.backends.cudnn.allow_tf32 = on
