"""What curve.jsonl has of a step beside its loss: learning rate, gradient norm and speed, as far as the log has them.

They are taken on the host at the end of an update; a norm that is on the device is read when points are written.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .part import RunContext


@dataclass
class _Work:
    """What has been done up to a moment."""

    seconds: float  # of training, without evaluations
    tokens: int  # of the run, in this process


@dataclass
class _End:
    """The end of a step."""

    work: _Work
    rate: float
    norm: Any  # a number, a scalar on the device, or None


class StepFigures:
    """The figures of points; a point ends with a step, and its speed is that since the end of the point before it."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self._tokens: Callable[[], int] = int
        self._excluded = 0.0  # seconds of evaluations
        self._before = self._work()  # at the end of the last point
        self._last: _End | None = None  # of the last step, if it is in no point yet
        self._ends: dict[int, _End] = {}  # of the points that are not written

    def count_tokens_by(self, tokens: Callable[[], int]) -> None:
        self._tokens = tokens

    def begin(self) -> None:
        self._before = self._work()

    def exclude_time(self, seconds: float) -> None:
        self._excluded += seconds

    def end_step(self, step: int, ends_point: bool) -> None:
        self._last = _End(self._work(), self.context.learning_rate, self.context.engine.norm)
        if ends_point:
            self._ends[step] = self._last

    def _work(self) -> _Work:
        return _Work(time.perf_counter() - self._excluded, self._tokens())

    def of_point(self, step: int, steps: int) -> dict[str, Any]:
        """Of a point that ends with this step and has the losses of so many."""
        end = self._ends.pop(step, None) or self._last
        if end is None:
            return {}
        if end is self._last:
            self._last = None
        before, self._before = self._before, end.work
        seconds, tokens = end.work.seconds - before.seconds, end.work.tokens - before.tokens
        figures: dict[str, Any] = {"learning_rate": end.rate}
        if end.norm is not None:
            figures["grad_norm"] = end.norm
        if seconds > 0 and steps:
            figures["samples_per_second"] = round(steps * self.context.plan.rows_per_step / seconds, 3)
        if seconds > 0 and tokens > 0:
            figures["tokens_per_second"] = round(tokens / seconds, 1)
        return figures

    def read_norms(self, points: list[dict[str, Any]]) -> None:
        """Norms as numbers: those on the device are read in one host sync."""
        tensors = self.context.backend.tensors
        on_device = [point for point in points if tensors.is_tensor(point.get("grad_norm"))]
        read = tensors.scalars([point["grad_norm"] for point in on_device]).tolist() if on_device else []
        for point, norm in zip(on_device, read):
            point["grad_norm"] = norm
        for point in points:
            if "grad_norm" in point:
                norm = float(point["grad_norm"])
                point["grad_norm"] = float(f"{norm:.7g}") if math.isfinite(norm) else str(norm)
