"""torch.profiler."""

from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

_OPERATORS = ("cpu_op", "kernel", "gpu_memcpy", "gpu_memset")  # categories of a trace


def start(device: torch.device, folder: Path) -> Any:
    activities = [ProfilerActivity.CPU]
    own = getattr(ProfilerActivity, device.type.upper(), None) if device.type != "cpu" else None
    profiler = torch.profiler.profile(activities=activities + ([own] if own is not None else []))
    profiler.start()
    return profiler


def step(profiler: Any) -> None:
    profiler.step()


def stop(profiler: Any, trace: Path) -> None:
    """Stop it and write a trace in Chrome's format."""
    profiler.stop()
    profiler.export_chrome_trace(str(trace))


def operator(event: dict[str, Any]) -> str | None:
    """The name of the operator that an event of the trace calls; None for other events."""
    return event["name"] if event.get("cat") in _OPERATORS else None
