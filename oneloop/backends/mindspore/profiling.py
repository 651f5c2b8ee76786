"""mindspore.profiler."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

from mindspore import profiler as profiling

_WHOLE = "Default"  # the whole profiled time, as one event
_PLACE = re.compile(r"^Default/(.*/)?|-op\d+$")  # of an operator in its graph


def start(device: Any, folder: Path) -> Any:
    raw = folder / "mindspore"
    shutil.rmtree(raw, ignore_errors=True)
    activities = [profiling.ProfilerActivity.CPU]
    activities += {"gpu": [profiling.ProfilerActivity.GPU], "npu": [profiling.ProfilerActivity.NPU]}.get(
        device.type, []
    )
    profiler = profiling.profile(activities=activities, on_trace_ready=profiling.tensorboard_trace_handler(str(raw)))
    profiler.start()
    return profiler, raw, device.type


def step(profiler: Any) -> None:
    profiler[0].step()


def stop(profiler: Any, trace: Path) -> None:
    """End it and write a trace in Chrome's format. On an accelerator the files of MindStudio Insight are kept next to
    it."""
    profiler, raw, kind = profiler
    profiler.stop()
    events: list[dict[str, Any]] = []
    for part in sorted(raw.rglob("trace_view.json")):
        events += [_numbers(event) for event in json.loads(part.read_text(encoding="utf-8"))]
    trace.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    if kind == "cpu":
        shutil.rmtree(raw, ignore_errors=True)


def _numbers(event: dict[str, Any]) -> dict[str, Any]:
    """Times are strings there, which viewers do not accept."""
    return {**event, **{key: float(event[key]) for key in ("ts", "dur") if key in event}}


def operator(event: dict[str, Any]) -> str | None:
    """The name of the operator that an event of the trace calls; None for other events."""
    return _PLACE.sub("", event["name"]) if event["name"] != _WHOLE else None
