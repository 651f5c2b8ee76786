"""Reads a run from its directory: log.jsonl, curve.jsonl and run.jsonl, or otherwise trainer_state.json of its newest
checkpoint."""

import itertools
import math
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..callbacks.json_log import NAME as LOG
from ..errors import DataError
from ..trainer.event_log import NAME as EVENTS
from ..trainer.losses import NAME as CURVE
from .downsample import Series, downsample
from .history import LoggedRun
from .json_lines import Tail
from .run_folders import STATE_FILE

FINER = ("loss", "learning_rate", "grad_norm", "samples_per_second", "tokens_per_second")  # in curve.jsonl
NOT_CURVES = {"run", "step", "time", "epoch"}
RECENT = 5000  # entries that a page may be behind and still receive only the new ones
STARTS = ("started", "resumed")
_NUMBERS = ("step", "time", "max_steps", "parameters")  # of events

Curve = tuple[np.ndarray, np.ndarray]  # steps, values
Ranges = dict[str, tuple[float, ...]]  # for each metric some finite values, including the lowest and the highest


class Points:
    """The values that one run logged, as curves, with their times."""

    def __init__(self, limit: int = Series.LIMIT, recent: int = RECENT) -> None:
        self._limit = limit
        self.series: dict[str, Series] = {}
        self.clock = Series(limit)  # the time at each step
        self.finer: dict[str, Series] = {}  # of curve.jsonl: figures of training at more steps than were logged
        self.entries = 0
        self.recent: deque[dict[str, Any]] = deque(maxlen=recent)

    def add_finer(self, entries: list[dict[str, Any]]) -> None:
        """Add lines of curve.jsonl."""
        wanted: tuple[str, ...] = ("step", *FINER, "time")
        kept = [{key: entry[key] for key in wanted if key in entry} for entry in entries]
        kept = [entry for entry in kept if _is_finite(entry.get("step")) and number(entry.get("loss")) is not None]
        for key in FINER:
            steps, values = _column(kept, key)
            if len(steps):
                self.finer.setdefault(key, Series(self._limit)).extend(steps, values)
        if kept:
            self._add_times(kept)

    @property
    def metrics(self) -> dict[str, Series]:
        """What was logged; before the first log, the figures of the curve."""
        return {key: series for key, series in self.finer.items() if key not in self.series} | self.series

    def curve(self, key: str, limit: int, upto: float | None = None) -> Curve:
        """(steps, values). Those of the curve have its points, and what was logged before and after them."""
        series = self.metrics[key]
        steps, values = series.points(limit, upto)
        if self.finer.get(key, series) is series:
            return steps, values
        finer = self.finer[key].points(limit, upto)
        if not len(finer[0]):
            return steps, values
        before, after = steps < finer[0][0], steps > finer[0][-1]
        return downsample(
            np.concatenate((steps[before], finer[0], steps[after])),
            np.concatenate((values[before], finer[1], values[after])),
            limit,
        )

    def add(self, entries: list[dict[str, Any]]) -> None:
        entries = [entry for entry in entries if _is_finite(entry.get("step"))]
        for key in dict.fromkeys(key for entry in entries for key in entry):
            if key not in NOT_CURVES:
                steps, values = _column(entries, key)
                if len(steps):
                    self.series.setdefault(key, Series(self._limit)).extend(steps, values)
        self._add_times(entries)

    def _add_times(self, entries: list[dict[str, Any]]) -> None:
        timed = [(entry["step"], entry["time"]) for entry in entries if _is_finite(entry.get("time"))]
        if timed:
            self.clock.extend(*np.array(timed, dtype=float).T)
        self.entries += len(entries)
        self.recent.extend(entries)


def _column(entries: list[dict[str, Any]], key: str) -> tuple[np.ndarray, np.ndarray]:
    """(steps, values) of one figure; values that are neither a number nor the name of one are dropped."""
    found = [(entry["step"], entry[key]) for entry in entries if key in entry]
    if not {type(value) for _, value in found} <= {int, float}:
        found = [(step, number(value)) for step, value in found if number(value) is not None]
    try:
        pairs = np.array(found, dtype=float).reshape(-1, 2)
    except OverflowError:  # an integer too large for a float
        pairs = np.array([(step, number(value)) for step, value in found], dtype=float).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


class Directory:
    """An output directory, followed as it grows. `look` reads what is new; the other methods use what was read."""

    def __init__(self, folder: Path, limit: int = Series.LIMIT, recent: int = RECENT) -> None:
        self.folder = folder
        self._kept = (limit, recent)  # limits: points per curve, and logged entries
        self._log, self._record, self._curve = Tail(folder / LOG), Tail(folder / EVENTS), Tail(folder / CURVE)
        self._generation = 0
        self._named: str | None = None
        self._state_seen: tuple[Any, ...] | None = None
        self.state: dict[str, Any] = {}
        self.runs: dict[str, Points] = {}
        self.events: list[dict[str, Any]] = []
        self.run_id: str | None = None

    @property
    def generation(self) -> int:
        """Changes when data read before is no longer valid: a resumed run has removed lines."""
        return self._log.generation + self._record.generation + self._curve.generation + self._generation

    @property
    def is_complete(self) -> bool:
        """Whether the log was read completely."""
        return self._log.is_complete

    def read_new(self, budget: int | None = None) -> None:
        """Read what was written since the last call; a sample if that is more than the budget."""
        events, lines = self._record.generation, self._log.generation
        news = _events(self._record.read())
        self.events = news if self._record.generation != events else self.events + news
        for entries in self._log.read(budget):
            if self._log.generation != lines:
                self.runs, lines = {}, self._log.generation
                self._curve.restart()
            self._add_entries(entries)
        self._look_at_curve()  # after the log: it has the steps of every line of it
        self._select_run()

    def _look_at_curve(self) -> None:
        lines = self._curve.generation
        for entries in self._curve.read():
            if self._curve.generation != lines:
                lines = self._curve.generation
                for points in self.runs.values():
                    points.finer = {}
            for run, own in itertools.groupby(entries, key=lambda entry: str(entry.get("run", ""))):
                self.run_id = self.run_id or run
                self.runs.setdefault(run, Points(*self._kept)).add_finer(list(own))

    def use_history(self, entries: list[dict[str, Any]]) -> None:
        """Use this history instead of the files."""
        self.runs, self.run_id = {"": Points()}, ""
        self.runs[""].add(entries)

    def _add_entries(self, entries: list[dict[str, Any]]) -> None:
        for run, own in itertools.groupby(entries, key=lambda entry: str(entry.get("run", ""))):
            self.run_id = run
            self.runs.setdefault(run, Points(*self._kept)).add(list(own))

    def _select_run(self) -> None:
        """Select the run that wrote last, in either file; without these, the state in a checkpoint."""
        if self.events:
            self.run_id = str(self.events[-1].get("run", ""))
        if self.run_id != self._named:
            self._generation += self._named is not None
            self._named = self.run_id
        if not self.runs.get(self.run_id or "", Points()).entries and not self._branch():
            self._read_state()

    def _read_state(self) -> None:
        files = [self.folder / STATE_FILE, *sorted(self.folder.glob(f"checkpoint-*/{STATE_FILE}"))]
        seen = tuple((path, facts.st_mtime_ns, facts.st_size) for path in files if (facts := _stat(path)))
        if seen == self._state_seen or not seen:
            return
        self._state_seen = seen
        try:
            run = LoggedRun.read(self.folder)
        except DataError:  # may be one of many, or being written; a report of this run alone reports the problem
            return
        self.state, points = run.state, Points(*self._kept)
        points.add([entry for entry in run.log_history if isinstance(entry, dict)])
        self.run_id = self.run_id or ""
        self.runs[self.run_id] = points
        self._generation += 1

    # -- queries

    @property
    def is_run(self) -> bool:
        return bool(self.runs or self.events)

    @property
    def points(self) -> Points:
        return self.runs.get(self.run_id or "", Points())

    def own_events(self) -> list[dict[str, Any]]:
        """Events of the run, and of the run it branched off from, up to that step."""
        parent = self._branch()
        found = [e for e in self.events if e.get("run") == self.run_id]
        if parent:
            start = found[0].get("time", 0)
            before = [e for e in self.events if e.get("run") == parent[0] and _at(e) <= parent[1]]
            found = [e for e in before if e.get("time", 0) <= start] + found
        return found

    def start(self) -> dict[str, Any]:
        """The last start or resume event of the run."""
        return next((e for e in reversed(self.own_events()) if e["event"] in STARTS), {})

    def _branch(self) -> tuple[str, float] | None:
        """(run, step) that this run branched off from, by resuming from an earlier checkpoint."""
        for event in self.events:
            if event.get("run") == self.run_id and event["event"] == "resumed":
                parent = event.get("parent")
                return (parent, _at(event)) if isinstance(parent, str) and parent in self.runs else None
        return None

    def curves(self, limit: int) -> dict[str, Curve]:
        """Every metric; a run that branched off includes the other run's values before that."""
        parent, keys = self._branch(), dict.fromkeys(self.points.metrics)
        if parent is not None:
            keys |= dict.fromkeys(self.runs[parent[0]].metrics)
        found = {key: self.curve(key, limit) for key in keys}
        return {key: curve for key, curve in found.items() if len(curve[0]) or key in self.points.metrics}

    def curve(self, key: str, limit: int) -> Curve:
        """One of them."""
        parent, points = self._branch(), self.points
        found = [points.curve(key, limit)] if key in points.metrics else []
        if parent is not None and key in self.runs[parent[0]].metrics:
            found.insert(0, self.runs[parent[0]].curve(key, limit, upto=parent[1]))
        if len(found) == 1:
            return found[0]
        return np.concatenate([steps for steps, _ in found]), np.concatenate([values for _, values in found])

    def ranges(self) -> Ranges:
        """The lowest and the highest finite value of every metric in `curves`."""
        parent = self._branch()
        runs = [self.points] if parent is None else [self.points, self.runs[parent[0]]]
        found: Ranges = {}
        for key, series in ((key, series) for run in runs for key, series in run.metrics.items()):
            ends = (series.lowest[0], series.highest[0]) if series.lowest and series.highest else ()
            found[key] = found.get(key, ()) + ends
        return found

    def compact(self) -> None:
        """Drop points that will not be shown."""
        for points in self.runs.values():
            for series in (points.clock, *points.finer.values(), *points.series.values()):
                series.compact()

    def clock(self, limit: int = 512) -> tuple[np.ndarray, np.ndarray]:
        """(steps, seconds of training up to them); pauses between the end of a run and its resume do not count."""
        steps, moments = self.points.clock.points(limit)
        parent = self._branch()
        if parent is not None:
            earlier = self.runs[parent[0]].clock.points(limit, upto=parent[1])
            steps, moments = np.concatenate((earlier[0], steps)), np.concatenate((earlier[1], moments))
        if not len(steps):
            return steps, moments
        seconds = np.array(moments)
        own = self.own_events()
        starts = [float(e["time"]) for e in own if e["event"] in STARTS and number(e.get("time")) is not None]
        begin = min([*starts, float(moments.min())])
        seconds -= begin
        known = np.sort(np.concatenate((moments, [float(e["time"]) for e in own if number(e.get("time")) is not None])))
        for start in starts[1:]:
            before = known[known < start]
            pause = start - (before[-1] if len(before) else begin)
            seconds[moments >= start] -= pause
        return steps, np.maximum.accumulate(np.maximum(seconds, 0.0))

    def reached(self) -> float:
        """The last known step."""
        steps = [series.reached for series in (*self.points.metrics.values(), *self.points.finer.values())]
        steps += [_at(e) for e in self.own_events()[-1:]]
        return max(steps, default=0.0)


def number(value: Any) -> float | None:
    """A logged value as a number; non-finite values are logged by name."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if value in ("nan", "inf", "-inf"):
        return float(value)
    return None


def _events(blocks: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [_cleaned(entry) for entries in blocks for entry in entries if isinstance(entry.get("event"), str)]


def _cleaned(event: dict[str, Any]) -> dict[str, Any]:
    """Without numbers that cannot be those of a run: another program may have written the line."""
    if isinstance(event.get("run", ""), str) and all(_is_finite(event.get(name, 0)) for name in _NUMBERS):
        return event
    kept = {key: value for key, value in event.items() if key not in _NUMBERS or _is_finite(value)}
    return kept | {"run": str(kept.get("run", ""))}


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and abs(value) < 1e300


def _at(event: dict[str, Any]) -> float:
    return number(event.get("step")) or 0.0


def _stat(path: Path) -> Any:
    try:
        return path.stat()
    except OSError:
        return None
