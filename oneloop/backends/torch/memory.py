"""How much memory the device has used."""

import torch


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def allocated(device: torch.device) -> int | None:
    """Bytes in use on the device now; None where the framework does not count them (CPU)."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else None


def peak(device: torch.device) -> int | None:
    """The most bytes in use on the device since reset_peak; None where the framework does not count them (CPU)."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
