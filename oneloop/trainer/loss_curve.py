"""curve.jsonl in the output directory: the training loss at more steps than are logged, for the page and the picture.

With the default logging_steps=500 a short run logs one or two losses. The losses of all steps are read from the device
at each log anyway, so their means over a few steps are written as well, to a file of their own: the log history,
callbacks and writers do not see them.
"""

import contextlib
import json
import logging
import math
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..formats import reading, schema
from ..formats.durable import append_line
from .part import Part, RunContext

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
        self.due = math.inf  # when losses should be read, even without a log
        self._failed = False

    def begin_run(self) -> None:
        self._step = step = self.context.state.global_step
        if not self.context.state.is_world_process_zero:
            return
        path = self._path
        if step and path.is_file():
            self._drop_later_lines(path, self.context.run_id, step)
        if is_finer_than_log(self.context, step):
            self.is_on, self.due = True, time.monotonic() + EVERY

    @property
    def _path(self) -> Path:
        return self.context.output_dir / NAME

    def _ends_point(self) -> bool:
        return self._step % span(self.context.plan.max_steps, self._step) == 0

    def extend(self, losses: Iterable[float]) -> None:
        """Add the losses of the steps that follow the last one, and write the points that are complete."""
        if not self.is_on:
            return
        points = []
        for loss in losses:
            self._step += 1
            self._losses.append(loss)
            if self._ends_point():
                points.append(self._point())
        self._write(points)

    def add_gap(self) -> None:
        """The step that follows the last one has no loss."""
        self._step += 1
        if self.is_on and self._ends_point():
            self.end_point()

    def end_point(self) -> None:
        """Write the last point, even if it is not complete."""
        if self._losses:
            self._write([self._point()])

    def _point(self) -> dict[str, Any]:
        losses, self._losses = self._losses, []
        if self._skip_nonfinite:
            losses = [loss for loss in losses if math.isfinite(loss)]
        mean = math.fsum(losses) / len(losses) if losses and all(map(math.isfinite, losses)) else math.nan
        return {"step": self._step, "loss": float(f"{mean:.7g}") if math.isfinite(mean) else "nan"}

    def _write(self, points: list[dict[str, Any]]) -> None:
        self.due = time.monotonic() + EVERY
        if not self.is_on or not points:
            return
        points[-1]["time"] = round(time.time(), 3)  # earlier ones were not written when they were computed
        path = self._path
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
