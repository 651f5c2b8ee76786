"""Memory usage of the device."""

import torch


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def allocated(device: torch.device) -> int | None:
    """Bytes currently in use on the device; None if the framework does not count them (CPU)."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else None


def peak(device: torch.device) -> int | None:
    """Peak bytes in use on the device since reset_peak; None if the framework does not count them (CPU)."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
