"""Memory usage of the device, on devices whose module counts it under the names of torch.cuda."""

from typing import Any

import torch


def _module(device: torch.device) -> Any:
    module = None if device.type == "cpu" else getattr(torch, device.type, None)
    return module if hasattr(module, "max_memory_allocated") else None


def reset_peak(device: torch.device) -> None:
    module = _module(device)
    if module is not None:
        module.reset_peak_memory_stats(device)


def allocated(device: torch.device) -> int | None:
    """Bytes currently in use on the device; None if the framework does not count them (CPU)."""
    module = _module(device)
    return None if module is None else module.memory_allocated(device)


def peak(device: torch.device) -> int | None:
    """Peak bytes in use on the device since reset_peak; None if the framework does not count them (CPU)."""
    module = _module(device)
    return None if module is None else module.max_memory_allocated(device)
