"""Averages, speed and memory of a run."""

import time
from typing import Any


class LossMeter:
    """Averages the losses of updates. They stay on the device until a log or a checkpoint asks for them."""

    def __init__(self, backend: Any, skip_nonfinite: bool) -> None:
        self.backend = backend
        self.skip_nonfinite = skip_nonfinite
        self.total = 0.0  # of the whole run
        self.since_log = 0.0
        self.steps_since_log = 0
        self.steps = 0
        self._unread: list[Any] = []

    def add(self, loss: Any) -> None:
        self._unread.append(loss)
        if len(self._unread) >= 512:
            self.read()

    def read(self) -> None:
        """Bring what lies on the device into the sums."""
        if not self._unread:
            return
        values = self.backend.tensors.total(self._unread, self.skip_nonfinite)
        self.since_log += values
        self.total += values
        self.steps_since_log += len(self._unread)
        self.steps += len(self._unread)
        self._unread = []

    def take(self) -> float | None:
        """The average since the last take; None when there was no step."""
        self.read()
        if self.steps_since_log == 0:
            return None
        average = self.since_log / self.steps_since_log
        self.since_log, self.steps_since_log = 0.0, 0
        return average

    def average(self) -> float:
        """Over the whole run, also across resumes."""
        self.read()
        return self.total / max(1, self.steps)

    def state(self) -> dict[str, Any]:
        self.read()
        sums = {"total": self.total, "since_log": self.since_log}
        counts = {"steps_since_log": self.steps_since_log, "steps": self.steps}
        return {key: float(value).hex() for key, value in sums.items()} | counts

    def load_state(self, state: dict[str, Any]) -> None:
        self.total, self.since_log = float.fromhex(state["total"]), float.fromhex(state["since_log"])
        self.steps_since_log, self.steps = state["steps_since_log"], state["steps"]


def speed_metrics(
    split: str,
    start_time: float,
    num_samples: int | None = None,
    num_steps: int | None = None,
    num_tokens: int | None = None,
) -> dict[str, float]:
    """Seconds since start_time, and samples, steps and tokens per second."""
    runtime = time.time() - start_time
    result = {f"{split}_runtime": round(runtime, 4)}
    if runtime <= 0:
        return result
    for count, name in ((num_samples, "samples"), (num_steps, "steps"), (num_tokens, "tokens")):
        if count is not None:
            result[f"{split}_{name}_per_second"] = round(count / runtime, 3)
    return result


def resident_bytes() -> int:
    """Memory that this process holds now."""
    try:
        with open("/proc/self/statm") as f:
            import resource

            return int(f.read().split()[1]) * resource.getpagesize()
    except OSError:
        return peak_resident_bytes()


def peak_resident_bytes() -> int:
    """The most memory that this process has held."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class MemoryTracker:
    """skip_memory_metrics=False: how far memory grew, and peaked above that, in each stage of a run."""

    def __init__(self, on: bool) -> None:
        self.on = on
        self._open: dict[str, tuple[int, int | None]] = {}

    def start(self, stage: str, backend: Any, device: Any) -> None:
        if self.on:
            backend.memory.reset_peak(device)
            self._open[stage] = (resident_bytes(), backend.memory.allocated(device))

    def stop(self, stage: str, backend: Any, device: Any, metrics: dict[str, Any] | None) -> None:
        if not self.on or stage not in self._open:
            return
        host, device_before = self._open.pop(stage)
        now, peak = resident_bytes(), peak_resident_bytes()
        found = {
            f"{stage}_mem_cpu_alloc_delta": now - host,
            f"{stage}_mem_cpu_peaked_delta": max(0, peak - max(now, host)),
        }
        used = backend.memory.allocated(device)
        if used is not None and device_before is not None:
            top = backend.memory.peak(device) or used
            found[f"{stage}_mem_gpu_alloc_delta"] = used - device_before
            found[f"{stage}_mem_gpu_peaked_delta"] = max(0, top - used)
        if metrics is not None:
            metrics.update(found)
