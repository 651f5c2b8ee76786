"""paddle.profiler."""

import re
from pathlib import Path
from typing import Any

from paddle import profiler as profiling

_OPERATORS = ("Operator", "Kernel", "Memcpy", "Memset")  # categories of a trace
_ADDED = re.compile(r"( dygraph)?\[[\d.]+ \ws\]$")  # what Paddle appends to a name: "matmul dygraph[12.3 us]"


def start(device: Any, folder: Path) -> Any:
    wanted = {"gpu": "GPU", "xpu": "XPU", "npu": "CUSTOM_DEVICE"}.get(device.type)
    targets = [profiling.ProfilerTarget.CPU]
    targets += [getattr(profiling.ProfilerTarget, wanted)] if wanted else []
    # Without our own function, Paddle writes to the working directory.
    profiler = profiling.Profiler(targets=targets, on_trace_ready=lambda profiler: None)
    profiler.start()
    return profiler


def step(profiler: Any) -> None:
    profiler.step()


def stop(profiler: Any, trace: Path) -> None:
    """Stop it and write a trace in Chrome's format."""
    profiler.stop()
    profiler.export(str(trace), format="json")


def operator(event: dict[str, Any]) -> str | None:
    """The name of the operator that an event of the trace calls; None for other events."""
    return _ADDED.sub("", event["name"]) if event.get("cat") in _OPERATORS else None
