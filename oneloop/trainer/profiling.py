"""profile=: run the framework's profiler for a few steps. Writes a trace and a table of the most expensive
operators."""

import json
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arguments.packages import installed
from ..callbacks import TrainerCallback
from ..formats.reading import json_object

if TYPE_CHECKING:
    from .core import Core

logger = logging.getLogger(__name__)

FOLDER = "profile"
SUMMARY = "summary.json"
ROWS = 40  # of the table
TOP = 10  # operators in the summary


@dataclass
class Operator:
    """Times in milliseconds: `own` excludes nested calls, `total` includes them."""

    name: str
    calls: int = 0
    own: float = 0.0
    total: float = 0.0


def attach(core: "Core") -> Callable[[], None]:
    """Profile this train(); the returned function ends it, also when the run fails."""
    trainer, callback = core.trainer, Profiling(core)
    trainer.callback_handler.add_callback(callback)

    def remove() -> None:
        callback.finish()
        trainer.callback_handler.remove_callback(callback)

    return remove


class Profiling(TrainerCallback):
    """Counts the steps of this train() rather than of the run, since the first steps after a resume are a warm-up
    too."""

    def __init__(self, core: "Core") -> None:
        self.trainer, self.core = core.trainer, core
        steps: str = core.trainer.args.profile
        self.first, self.last = map(int, steps.split("-"))
        self.steps = 0
        self.began: tuple[int, float] | None = None  # the step and the time
        self.handle: Any = None
        self.sampler: Any = None

    @property
    def _profiler(self) -> Any:
        """The backend's module; a backend without one rejects the argument."""
        return self.core.backend.profiling

    @property
    def folder(self) -> Path:
        return self.core.run.output_dir / FOLDER

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps += 1
        if self.steps == self.first:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.sampler = _start_sampler()
            self.handle = self._profiler.start(args.device, self.folder)
            self.began = (state.global_step + 1, time.perf_counter())

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.began is None:
            return
        self._profiler.step(self.handle)
        if self.steps >= self.last:
            self.finish()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.steps < self.first:
            logger.warning(
                "profile=%r: nothing was profiled, since this run had only %d steps. Set earlier steps.",
                args.profile,
                self.steps,
            )
        self.finish()

    def finish(self) -> None:
        """Write the profile. A failure here only warns, since the run matters more than its profile."""
        if self.began is None:
            return
        (first, started), self.began = self.began, None
        last = max(first, self.trainer.state.global_step)
        seconds = time.perf_counter() - started
        try:
            self._write(f"{first}-{last}", first, last, seconds)
        except Exception as error:
            logger.warning(
                "Cannot write the profile of steps %d to %d: %s: %s", first, last, type(error).__name__, error
            )

    def _write(self, name: str, first: int, last: int, seconds: float) -> None:
        trainer, core, folder = self.trainer, self.core, self.folder
        host = _stop_sampler(self.sampler, folder / f"host-{name}.html")
        trace = folder / f"trace-{name}.json"
        self._profiler.stop(self.handle, trace)
        self.handle = self.sampler = None
        found = operators(read(trace), self._profiler.operator)
        where = f"{core.backend.NAME} on {trainer.args.device}"
        table = folder / f"operators-{name}.txt"
        table.write_text(text(found, f"Steps {first} to {last}, {where}"), encoding="utf-8")
        note = {
            "first_step": first,
            "last_step": last,
            "seconds": round(seconds, 6),
            "framework": core.backend.NAME,
            "device": str(trainer.args.device),
            "trace": trace.name,
            "operators": table.name,
            "host": host,
            "top": [asdict(operator) for operator in found[:TOP]],
        }
        _note(folder / SUMMARY, note)
        logger.info("Profiled steps %d to %d: open %s in ui.perfetto.dev or chrome://tracing.", first, last, trace)
        core.run.events.add("profiled", path=f"{FOLDER}/{trace.name}", table=f"{FOLDER}/{table.name}")


def read(trace: Path) -> list[dict[str, Any]]:
    """The events of a trace in Chrome's format."""
    with open(trace, encoding="utf-8") as f:
        found = json.load(f)
    return found if isinstance(found, list) else found["traceEvents"]


def operators(events: Iterable[dict[str, Any]], name_of: Callable[[dict[str, Any]], str | None]) -> list[Operator]:
    """The operators, sorted by own time, the highest first. Events of a thread are nested."""
    threads: dict[Any, list[tuple[float, float, str]]] = {}
    for event in events:
        name = name_of(event) if event.get("ph") == "X" else None
        if name is not None:
            start, length = float(event["ts"]), float(event.get("dur", 0))
            threads.setdefault((event.get("pid"), event.get("tid")), []).append((start, -length, name))
    found: dict[str, Operator] = {}
    for calls in threads.values():
        around: list[tuple[float, Operator]] = []  # the calls that the next one may be nested in: end, operator
        for start, negative, name in sorted(calls):
            length = -negative / 1000
            while around and around[-1][0] <= start:
                around.pop()
            if around:
                around[-1][1].own -= length
            operator = found.setdefault(name, Operator(name))
            operator.calls += 1
            operator.own += length
            if not any(outer is operator for _, outer in around):
                operator.total += length
            around.append((start - negative, operator))
    return sorted(found.values(), key=lambda operator: -operator.own)


def text(found: list[Operator], title: str) -> str:
    """The table as text."""
    whole = sum(operator.own for operator in found)
    lines = [
        f"{title}: {whole:.3f} ms in {sum(operator.calls for operator in found)} calls of {len(found)} operators.",
        "Milliseconds; own excludes nested operators.",
        "",
        f"{'own':>12} {'share':>7} {'total':>12} {'calls':>8}  operator",
    ]
    for each in found[:ROWS]:
        share = 100 * each.own / whole if whole else 0.0
        lines.append(f"{each.own:12.3f} {share:6.1f}% {each.total:12.3f} {each.calls:8d}  {each.name}")
    if len(found) > ROWS:
        rest = sum(operator.own for operator in found[ROWS:])
        lines.append(f"{rest:12.3f} {100 * rest / whole if whole else 0.0:6.1f}%  in {len(found) - ROWS} more")
    return "\n".join(lines) + "\n"


def _note(path: Path, note: dict[str, Any]) -> None:
    """Add to the list of profiles; a profile of the same steps is replaced."""
    notes = json_object(path).get("profiles")
    notes = [each for each in notes if isinstance(each, dict)] if isinstance(notes, list) else []
    notes = [each for each in notes if each.get("trace") != note["trace"]] + [note]
    path.write_text(json.dumps({"profiles": notes}, indent=2) + "\n", encoding="utf-8")


# -- a flame graph of the time on the host, if pyinstrument is installed


def _start_sampler() -> Any:
    if not installed("pyinstrument"):
        return None
    from pyinstrument import Profiler

    sampler = Profiler(interval=0.001, async_mode="disabled")
    try:
        sampler.start()
    except RuntimeError as error:  # the script already runs pyinstrument
        logger.warning("profile: no flame graph of the host: %s", error)
        return None
    return sampler


def _stop_sampler(sampler: Any, page: Path) -> str | None:
    if sampler is None:
        return None
    sampler.stop()
    page.write_text(sampler.output_html(), encoding="utf-8")
    return page.name
