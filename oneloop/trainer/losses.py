"""The losses of a run: their averages, and curve.jsonl in the output directory.

The curve is the training loss at more steps than are logged, for the page and the picture, with the learning rate, the
gradient norm and the speed. With the default logging_steps=500 a short run logs one or two losses. The losses of all
steps are read from the device at each log anyway, so their means over a few steps are written as well, to a file of
their own: the log history, callbacks and writers do not see them.
"""

import contextlib
import json
import logging
import math
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..formats import reading, schema
from ..formats.durable import append_line
from ..formats.schema import hex_number, integer, record
from .curve_figures import StepFigures
from .part import Part, RunContext

if TYPE_CHECKING:
    from ..checkpoint.resume import StoredRun

logger = logging.getLogger(__name__)

NAME = "curve.jsonl"
POINTS = 500  # of a run, and one more for each of its checkpoints
EVERY = 30.0  # seconds after which losses are read without a log


class LossCurve(Part):
    """Writes a line for every `span` steps, with the mean of their losses. A point also ends at each checkpoint, so
    that a resumed run continues exactly behind it. Only the main process writes."""

    name = "curve"

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self.is_on = False  # something is written
        self._skip_nonfinite = skips_nonfinite(context.args)
        self._step = 0  # the last step whose loss has been added
        self._losses: list[float] = []  # of the point that is not complete
        self.figures = StepFigures(context)
        self.due = math.inf  # when losses should be read, even without a log
        self._failed = False

    def begin_run(self) -> None:
        self._step = step = self.context.state.global_step
        if not self.context.state.is_world_process_zero:
            return
        path = self.context.output_dir / NAME
        if step and path.is_file():
            self._drop_later_lines(path, self.context.run_id, step)
        if is_finer_than_log(self.context, step):
            self.is_on, self.due = True, time.monotonic() + EVERY
            self.figures.begin()

    def end_update(self, step: int, loss: Any) -> None:
        if self.is_on:
            self.figures.end_step(step, step % span(self.context.plan.max_steps, step) == 0)

    def extend(self, losses: Iterable[float]) -> None:
        """Add the losses of the steps that follow the last one, and write the points that are complete."""
        if not self.is_on:
            return
        points, max_steps = [], self.context.plan.max_steps
        for loss in losses:
            self._step += 1
            self._losses.append(loss)
            if self._step % span(max_steps, self._step) == 0:
                points.append(self._point())
        self._write(points)

    def add_gap(self) -> None:
        """The step that follows the last one has no loss."""
        self._step += 1
        if self.is_on and self._step % span(self.context.plan.max_steps, self._step) == 0:
            self.end_point()

    def end_point(self) -> None:
        """Write the last point, even if it is not complete."""
        if self._losses:
            self._write([self._point()])

    def _point(self) -> dict[str, Any]:
        losses, self._losses = self._losses, []
        figures = self.figures.of_point(self._step, len(losses))
        if self._skip_nonfinite:
            losses = [loss for loss in losses if math.isfinite(loss)]
        mean = math.fsum(losses) / len(losses) if losses and all(map(math.isfinite, losses)) else math.nan
        return {"step": self._step, "loss": float(f"{mean:.7g}") if math.isfinite(mean) else "nan"} | figures

    def _write(self, points: list[dict[str, Any]]) -> None:
        self.due = time.monotonic() + EVERY
        if not self.is_on or not points:
            return
        self.figures.read_norms(points)
        points[-1]["time"] = round(time.time(), 3)  # earlier ones were not written when they were computed
        path = self.context.output_dir / NAME
        lines = [json.dumps({"run": self.context.run_id, **point}).encode() for point in points]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            append_line(path, b"\n".join(lines))
        except OSError as error:
            self._warn_once(path, error)

    def _drop_later_lines(self, path: Path, run_id: str, step: int) -> None:
        """Remove the lines of steps that the resumed run will repeat."""
        partial = path.with_name(f".{NAME}.partial")
        try:
            if all(_is_kept(line, run_id, step) for line in reading.lines(path)):
                return
            with open(partial, "wb") as kept:
                kept.writelines(_kept(reading.lines(path), run_id, step))
            os.replace(partial, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            self._warn_once(path, error)

    def _warn_once(self, path: Path, error: OSError) -> None:
        # A file for the page must not stop a run.
        if not self._failed:
            logger.warning("%s cannot be written (%s); it will be incomplete.", path, error)
        self._failed = True


class LossMeter(Part):
    """Averages the losses of updates. They stay on the device until a log or a checkpoint needs them: reading a loss is
    a host sync, which in every step would keep the device waiting."""

    name = "losses"
    schema = {
        "losses": record(
            {"total": hex_number, "since_log": hex_number, "steps": integer(), "steps_since_log": integer()},
            {"lost": integer(), "lost_since_log": integer()},
        )
    }
    required = ("losses",)

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self.skip_nonfinite = skips_nonfinite(context.args)
        self.total = 0.0  # of the whole run
        self.since_log = 0.0
        self.steps_since_log = 0
        self.steps = 0
        # Steps whose loss is not finite, if those are left out of averages: since the last log, and all of a log
        # without any finite loss.
        self.lost_since_log = 0
        self.lost = 0
        self._unread: list[Any] = []
        self.curve = context.parts.of(LossCurve)
        self._in_curve = 0  # of the unread ones

    def end_update(self, step: int, loss: Any) -> None:
        self._unread.append(loss)
        if len(self._unread) >= 512:
            self.read()
        elif time.monotonic() >= self.curve.due:
            self.extend_curve()

    def skip_step(self, step: int) -> None:
        """The losses before it are read: the curve counts the steps."""
        self.read()
        self.curve.add_gap()

    def read(self) -> None:
        """Host sync: add the losses on the device to the sums."""
        if not self._unread:
            return
        tensors, count = self.backend.tensors, len(self._unread)
        read = tensors.scalars(self._unread)
        self.curve.extend(read[self._in_curve :].tolist())
        self._unread, self._in_curve = [], 0
        if self.skip_nonfinite:
            read = read[np.isfinite(read)]
            self.lost_since_log += count - len(read)
            count = len(read)
        if count:
            values = tensors.total(read)
            self.since_log += values
            self.total += values
            self.steps_since_log += count
            self.steps += count

    def extend_curve(self) -> None:
        """Host sync: add the losses on the device to the curve only. The sums are always those of the same groups of
        losses, so that logs do not depend on how long a step takes."""
        if self.curve.is_on:
            self.curve.extend(self.backend.tensors.scalars(self._unread[self._in_curve :]).tolist())
            self._in_curve = len(self._unread)

    def pop_average(self) -> float | None:
        """The average since the last call; NaN if no loss was finite, None if there was no step."""
        self.read()
        lost, self.lost_since_log = self.lost_since_log, 0
        if self.steps_since_log == 0:
            self.lost += lost
            return math.nan if lost else None
        average = self.since_log / self.steps_since_log
        self.since_log, self.steps_since_log = 0.0, 0
        # A loss that is not finite counts as the average of its log, however often losses were read since the last one.
        self.total += lost * average
        self.steps += lost
        return average

    @property
    def logged_total(self) -> float:
        """The sum of the losses up to the last log."""
        return self.total - self.since_log

    def average(self) -> float:
        """At the end of the run: the average over all of it, across resumes; NaN if no loss was finite."""
        self.read()
        self.curve.end_point()
        if (self.lost or self.lost_since_log) and not self.steps:
            return math.nan
        lost = self.lost_since_log if self.steps_since_log else 0
        total = self.total + lost * (self.since_log / max(1, self.steps_since_log))
        return total / max(1, self.steps + lost)

    def fail_run(self) -> None:
        """Write the losses since the last log to the curve, which tell most about the error."""
        self.extend_curve()
        self.curve.end_point()

    def state(self) -> dict[str, Any]:
        self.read()
        self.curve.end_point()
        sums = {"total": self.total, "since_log": self.since_log}
        counts = {"steps_since_log": self.steps_since_log, "steps": self.steps}
        if self.lost or self.lost_since_log:
            counts |= {"lost_since_log": self.lost_since_log, "lost": self.lost}
        return {"losses": {key: float(value).hex() for key, value in sums.items()} | counts}

    def load(self, stored: dict[str, Any], source: "StoredRun") -> None:
        state = stored["losses"]
        self.total, self.since_log = float.fromhex(state["total"]), float.fromhex(state["since_log"])
        self.steps_since_log, self.steps = state["steps_since_log"], state["steps"]
        self.lost_since_log, self.lost = state.get("lost_since_log", 0), state.get("lost", 0)


def span(max_steps: int, step: int) -> int:
    """The number of steps of a point. Without a known number of steps, points become longer as the run does."""
    if max_steps > 0:
        return -(-max_steps // POINTS)
    return 1 << max(0, (step // POINTS).bit_length() - 1)


def is_finer_than_log(context: RunContext, step: int) -> bool:
    """Whether the curve has more points than the log, which the page shows otherwise."""
    plan, strategy = context.plan, context.args.logging_strategy
    if strategy == "no":
        return False
    interval = context.state.logging_steps if strategy == "steps" else plan.steps_per_epoch
    return interval is None or interval > span(plan.max_steps, step)


def skips_nonfinite(args: Any) -> bool:
    """Whether losses that are not finite are left out of means."""
    return args.logging_nan_inf_filter or args.nonfinite == "skip"


def _kept(lines: Iterable[bytes], run_id: str, step: int) -> Iterator[bytes]:
    return (line for line in lines if _is_kept(line, run_id, step))


def _is_kept(line: bytes, run_id: str, step: int) -> bool:
    """Whether it is a whole line of another run, or of this one up to the step."""
    entry = reading.log_entry(line) or {}
    if not line.endswith(b"\n") or not schema.is_finite(entry.get("step")):  # such as a line cut off by a kill
        return False
    return entry.get("run") != run_id or entry["step"] <= step
