"""Devices: which are available, and how models and batches are moved to them."""

import os
from typing import Any

import paddle

from .._common import device_moves

_KINDS = {"gpu": "gpu", "cuda": "gpu", "cpu": "cpu", "xpu": "xpu", "npu": "npu", "mps": "mps"}


class Device(str):
    """A device by its name in Paddle, such as "cpu" or "gpu:0", for paddle.set_device."""

    @property
    def type(self) -> str:
        return self.partition(":")[0]

    @property
    def index(self) -> int | None:  # type: ignore[override]  # a device has one; nobody searches its name
        number = self.partition(":")[2]
        return int(number) if number else None


def available(kind: str) -> int:
    """How many devices of that kind this machine has and this build of Paddle can use."""
    if kind == "cpu":
        return 1
    if kind == "gpu":
        return paddle.device.cuda.device_count() if paddle.is_compiled_with_cuda() else 0
    if kind == "xpu":
        return paddle.device.xpu.device_count() if paddle.is_compiled_with_xpu() else 0
    if kind in (paddle.device.get_all_custom_device_type() or ()):
        return paddle.base.core.get_custom_device_count(kind)
    return 0


def resolve(spec: str | None) -> Device:
    """A real device for "cpu", "gpu", "cuda:1", "xpu", "npu" or None, which means the best available."""
    best_first = ("gpu", "xpu", "npu")
    kind, number = device_moves.choose(spec, _KINDS, best_first, available, f"Paddle {paddle.__version__}")
    return Device(kind if number is None else f"{kind}:{number}")


def kind(device: Device) -> str:
    """cpu, cuda, xpu or npu."""
    return "cuda" if device.type == "gpu" else device.type


def title(device: Device) -> str | None:
    """The product name of an accelerator; None for a CPU, and if Paddle does not report it."""
    return paddle.device.cuda.get_device_name(device) if device.type == "gpu" else None


def _is_on(tensor: paddle.Tensor, device: Device) -> bool:
    return tensor.place.is_cpu_place() if device == "cpu" else str(tensor.place) == f"Place({device})"


def move_model(model: paddle.nn.Layer, device: Device) -> paddle.nn.Layer:
    """The model on that device, which becomes Paddle's default for new tensors."""
    paddle.set_device(device)
    if all(_is_on(value, device) for value in (*model.parameters(), *model.buffers()) if value._is_initialized()):
        return model
    return model.to(device=device)


def move(batch: Any, device: Device, non_blocking: bool = True) -> Any:
    """Move every tensor and array of a nested batch to the device; other values are unchanged."""

    def moved(value: Any) -> Any:
        if not isinstance(value, paddle.Tensor) or _is_on(value, device):
            return value
        return value.to(device, blocking=not non_blocking)

    return device_moves.map_batch(batch, moved, lambda array: paddle.to_tensor(array, place=device))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that the device or the host ran out of memory."""
    if isinstance(error, MemoryError):
        return True
    text = str(error)
    return isinstance(error, (RuntimeError, SystemError, OSError)) and any(
        sign in text for sign in ("out of memory", "Out of memory", "ResourceExhausted", "alloc memory")
    )


def empty_cache(device: Device) -> None:
    """Free cached memory of the device; no effect on a CPU."""
    if device.type in ("gpu", "xpu"):
        getattr(paddle.device, "cuda" if device.type == "gpu" else "xpu").empty_cache()


def allow_tf32(on: bool) -> None:
    """TF32 on NVIDIA devices. Paddle has no option for it: the libraries read this variable at their first use."""
    os.environ["NVIDIA_TF32_OVERRIDE"] = "1" if on else "0"
