"""Memory usage of the device."""

import paddle

from .devices import Device


def reset_peak(device: Device) -> None:
    if device.type == "gpu":
        paddle.device.cuda.reset_max_memory_allocated(device)


def allocated(device: Device) -> int | None:
    """Bytes currently in use on the device; None if the framework does not count them (CPU)."""
    return paddle.device.cuda.memory_allocated(device) if device.type == "gpu" else None


def peak(device: Device) -> int | None:
    """Peak bytes in use on the device since reset_peak; None if the framework does not count them (CPU)."""
    return paddle.device.cuda.max_memory_allocated(device) if device.type == "gpu" else None
