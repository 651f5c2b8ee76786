"""Memory usage of the device."""

import mindspore as ms

from .devices import Device


def reset_peak(device: Device) -> None:
    if device.type != "cpu":
        ms.runtime.reset_peak_memory_stats()


def allocated(device: Device) -> int | None:
    """Bytes currently in use on the device; None if the framework does not count them (CPU)."""
    return ms.runtime.memory_allocated() if device.type != "cpu" else None


def peak(device: Device) -> int | None:
    """Peak bytes in use on the device since reset_peak; None if the framework does not count them (CPU)."""
    return ms.runtime.max_memory_allocated() if device.type != "cpu" else None
