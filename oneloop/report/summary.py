"""The tables of a run's page: arguments, versions, checkpoints, events and final metrics."""

import json
import statistics
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ..arguments import TrainingArguments
from ..arguments.evaluation import higher_is_better
from ..checkpoint import listing
from ..errors import OneloopError
from ..formats.reading import json_object
from ..secrets import clean
from .history import TIMES
from .log_reader import STARTS, Directory, number

ARGUMENTS_FILE = "training_args.json"
BY_PROCESS = "process_seconds/"
PLACES = {"output_dir", "logging_dir", "run_name"}  # locations do not affect training
QUIET_AFTER = 120.0  # seconds without a log line after which an unfinished run is no longer shown as running
ENDS = ("ended", "preempted", "failed")


def arguments_of(folder: Path, directory: Directory | None = None) -> dict[str, Any]:
    """The arguments that the run recorded; {} if it recorded none."""
    noted = directory.start().get("arguments") if directory is not None else None
    if isinstance(noted, dict):
        return clean(noted)
    written = [folder / ARGUMENTS_FILE, *sorted(folder.glob(f"checkpoint-*/{ARGUMENTS_FILE}"), key=_modified)[::-1]]
    for path in written:
        if given := json_object(path):
            return clean(given)  # another trainer, or an earlier release, may have written it
    return {}


def changed(given: dict[str, Any]) -> list[list[str]]:
    """[name, value, default] of the arguments that differ from the defaults."""
    usual = TrainingArguments(output_dir=".").to_dict()
    return [
        [name, *short([text(value), text(usual.get(name)) if name in usual else ""])]
        for name, value in given.items()
        if value is not None and name not in PLACES and usual.get(name) != value
    ]


def hyperparameters(directory: Directory) -> dict[str, Any]:
    """Values of a search that are not arguments, such as those that model_init draws, and of the script's own events
    `hyperparameters`."""
    found: dict[str, Any] = {}
    for event in directory.own_events():
        if event["event"] in STARTS and isinstance(event.get("hyperparameters"), dict):
            found |= event["hyperparameters"]
        elif event["event"] == "hyperparameters":
            found |= {key: value for key, value in event.items() if key not in ("run", "time", "step", "event")}
    return clean(found)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def text(value: Any) -> str:
    """A value as text."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def short(values: Sequence[str]) -> list[str]:
    """Numbers with six digits, or as many more as tell apart those that differ."""
    for digits in (6, 9, 12):
        found = [_rounded(value, digits) for value in values]
        if len(set(found)) == len(set(values)):
            return found
    return list(values)


def _rounded(value: str, digits: int) -> str:
    try:
        number_of = float(value)
    except ValueError:
        return value
    is_fraction = number_of - number_of == 0 and any(sign in value for sign in ".eE")
    rounded = f"{number_of:.{digits}g}"
    return rounded if is_fraction and len(rounded) < len(value) else value


# -- state


def status(directory: Directory, now: float) -> str:
    """The status: running, finished, stopped early, preempted, failed, silent or unknown."""
    events = directory.own_events()
    last = next((e for e in reversed(events) if e["event"] in STARTS + ENDS), None)
    if last is None:
        return "unknown"
    if last["event"] in STARTS:
        return "running" if now - _last_written(directory) < QUIET_AFTER else "silent"
    if last["event"] == "ended" and last.get("unsaved") and not _saved_since(events, last):
        return "not saved"
    return {"ended": "stopped early" if last.get("stopped") else "finished"}.get(last["event"], last["event"])


def _saved_since(events: list[dict[str, Any]], end: dict[str, Any]) -> bool:
    """Whether the model was saved after the end of the run."""
    return any(event["event"] == "model_saved" for event in events[events.index(end) :])


def summary(directory: Directory, now: float) -> list[list[str]]:
    """[label, value, note] of the overview."""
    start, found = directory.start(), []
    state = status(directory, now)
    notes = {
        "silent": f"no log line for {duration(now - _last_written(directory))}: killed, or in a long step",
        "unknown": "the run has no run.jsonl",
        "not saved": "the last save failed: the last steps are on no disk",
    }
    found.append(["state", state, notes.get(state, "")])
    step, most = directory.reached(), number(start.get("max_steps"))
    share = f"{100 * step / most:.0f}% of {most:,.0f}" if most and most > 0 else ""
    found.append(["step", f"{step:,.0f}", share])
    _, seconds = directory.clock()
    if len(seconds):
        left = ""
        if state == "running" and most and 0 < step < most:
            left = f"about {duration(float(seconds[-1]) * (most - step) / step)} remaining"
        found.append(["training time", duration(float(seconds[-1])), left])
    for key, label in (("loss", "loss"), ("eval_loss", "evaluation loss")):
        series = directory.points.metrics.get(key)
        if series is not None:
            lowest = f"lowest {figure(series.lowest[0])} at {series.lowest[1]:,.0f}" if series.lowest else ""
            found.append([label, figure(series.last), lowest])
    found += _slowest(directory)
    for key, series in directory.points.metrics.items():
        if key.startswith("eval_") and not key.endswith(("loss", *TIMES)):
            best = series.highest if higher_is_better(key) else series.lowest
            note = f"best {figure(best[0])} at {best[1]:,.0f}" if best else ""
            found.append([key.removeprefix("eval_").replace("_", " "), figure(series.last), note])
            break
    return found


def _slowest(directory: Directory) -> list[list[str]]:
    """The process that needed longest for its own part of the last steps that were timed, if there are several."""
    of_all = {key: series.last for key, series in directory.points.metrics.items() if key.startswith(BY_PROCESS)}
    median = of_all.pop(f"{BY_PROCESS}median", None)
    if len(of_all) < 2:
        return []
    slowest = max(of_all, key=lambda key: of_all[key])
    other, usual = "median", statistics.median(of_all.values()) if median is None else median
    if median is None and len(of_all) == 2:  # it would be between them
        other, usual = "other", min(of_all.values())
    ratio = f"{of_all[slowest] / usual:.2f} times the {other}" if usual else ""
    return [["slowest process", slowest.removeprefix(BY_PROCESS).removeprefix("process "), ratio]]


def _last_written(directory: Directory) -> float:
    """The time of the run's last log line."""
    moments = [number(e.get("time")) or 0.0 for e in (*directory.events[-1:], *list(directory.points.recent)[-1:])]
    return max(moments, default=0.0)


def figures(directory: Directory) -> list[list[str]]:
    """[name, last, best, step of the best] of every metric and of the values of the whole run."""
    rows = []
    for key, series in directory.points.metrics.items():
        if not key.startswith(("eval_", "test_", "train_")) and key not in ("loss", "total_flos", "skipped_steps"):
            continue
        best = series.highest if higher_is_better(key) else series.lowest
        if series.count < 2 or key.endswith(TIMES) or key == "skipped_steps":
            best = None
        rows.append([key, figure(series.last), figure(best[0]) if best else "", f"{best[1]:,.0f}" if best else ""])
    return rows


def best_points(directory: Directory) -> dict[str, list[float]]:
    """[step, value] of the best evaluation by each metric, unless all were equal."""
    found = {}
    for key, series in directory.points.metrics.items():
        low, high = series.lowest, series.highest
        if key.startswith("eval_") and not key.endswith(TIMES) and low and high and low[0] != high[0]:
            value, step = high if higher_is_better(key) else low
            found[key] = [step, value]
    return found


def environment(directory: Directory) -> list[list[str]]:
    """[name, value]: framework, device and versions."""
    start = directory.start()
    rows = [["framework", start.get("framework")], ["model", start.get("model")]]
    parameters = number(start.get("parameters"))
    rows.append(["trainable parameters", f"{parameters:,.0f}" if parameters is not None else None])
    rows += [["device", start.get("device")], ["hardware", start.get("hardware")]]
    rows.append(["processes", start.get("processes")])
    rows.append(["samples per update", start.get("samples_per_step")])
    rows += [["Python", start.get("python")], ["system", start.get("system")]]
    packages = start.get("packages")
    rows += [[name, value] for name, value in packages.items()] if isinstance(packages, dict) else []
    rows.append(["run", directory.run_id])
    return [[str(name), text(value)] for name, value in rows if value not in (None, "")]


# -- checkpoints and events


def checkpoints(folder: Path, verify: bool = False) -> list[dict[str, Any]]:
    """Each checkpoint with its status; compares sizes, or with `verify`, checksums."""
    try:
        entries, _ = listing.list_checkpoints(folder, contents=verify)
    except (OneloopError, OSError):
        return []
    return [
        {
            "name": entry.name,
            "step": entry.step,
            "state": entry.state,
            "why": "; ".join(entry.problems),
            "marks": [name for name in ("best", "latest") if getattr(entry, name)],
            "size": listing.size_text(entry.bytes),
            "written": moment(entry.written),
            "writer": entry.writer,
        }
        for entry in entries
    ]


def events(directory: Directory) -> list[dict[str, Any]]:
    """The events in order. A start that follows a start means that the process was killed in between."""
    found: list[dict[str, Any]] = []
    open_start: dict[str, Any] | None = None
    latest: dict[tuple[str, Any], int] = {}
    for event in directory.own_events():
        kind = event["event"]
        if kind in STARTS:
            if open_start is not None:
                found.append(_died(event))
            open_start = event
        elif kind in ENDS or kind == "rolled_back":  # a start follows in the same process
            open_start = None
        elif (kind, event.get("step")) in latest:  # a resumed run repeated this step
            found[latest[kind, event.get("step")]] = {}
        latest[kind, event.get("step")] = len(found)
        found.append(_event(event))
    return [event for event in found if event]


def _died(resumed: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": "died",
        "step": number(resumed.get("step")) or 0,
        "time": "",
        "title": "ended unexpectedly",
        "text": "no end was recorded: the process or the machine went down; the run was resumed later",
    }


def _event(event: dict[str, Any]) -> dict[str, Any]:
    event, kind = clean(event), event["event"]
    title, words = _describe(kind, event)
    step, when = number(event.get("step")) or 0, number(event.get("time"))
    return {"kind": kind, "step": step, "time": moment(when) if when else "", "title": title, "text": words}


def _describe(kind: str, event: dict[str, Any]) -> tuple[str, str]:
    """The event's title and description."""
    get = event.get
    if kind == "started":
        count = get("processes", 1)
        return "started", f"{get('framework', '')} on {get('device', '')}, {count} process{'es' * (count != 1)}"
    if kind == "resumed":
        words = f"from {get('from', 'a checkpoint')}, on {get('device', '')}"
        words += f", saved with {get('crossed_from')}" if get("crossed_from") else ""
        over = get("passed_over")
        words += f"; skipped {', '.join(map(str, over))}" if isinstance(over, list) and over else ""
        unused, used = get("not_used"), get("arguments")
        if isinstance(unused, dict) and isinstance(used, dict):
            pairs = [(name, *short([text(used.get(name)), text(given)])) for name, given in unused.items()]
            words += "".join(f"; {name} stays {stays} ({given} was given)" for name, stays, given in pairs)
        return ("branched off" if get("parent") else "resumed"), words
    if kind == "ended":
        return ("stopped early" if get("stopped") else "finished"), "the last save failed" if get("unsaved") else ""
    if kind == "model_saved":
        return "model saved", f"in {get('to', 'a directory')}"
    if kind == "preempted":
        saved = f"saved to {get('saved')}" if get("saved") else "not saved"
        return "preempted", f"{get('signal', 'a signal')}; {saved}"
    if kind == "failed":
        return "failed", ": ".join(str(part) for part in (get("error"), get("message")) if part)
    if kind == "nonfinite":
        stopped = "the run was stopped" if get("action") == "stop" else "the update was skipped"
        return "not finite (NaN or infinite)", f"{stopped}; samples {get('samples', 'unknown')}"
    if kind == "loss_spike":
        return "loss spike", f"{_spike(event)}; samples {get('samples', 'unknown')}"
    if kind == "rolled_back":
        return "rolled back", f"{_spike(event)}; to {get('to', 'a checkpoint')}{_left_out(event)}"
    if kind == "out_of_memory":
        return "out of memory", f"the step was retried with {get('split')} times as many micro-batches"
    if kind == "output_lost":
        return "output lost", f"{get('stream')} was closed, or its reader has exited; the run continued without it"
    if kind == "save_failed":
        return "save failed", f"{get('what', 'a checkpoint')}: {get('error', '')}"
    if kind == "upload_failed":
        return "upload failed", f"{get('what', 'a checkpoint')}: {get('error', '')}; it is repeated later"
    if kind == "save_waited":
        return "save waited", f"{get('what', 'a checkpoint')} waited {get('seconds')} s for the previous one"
    if kind == "profiled":
        return "profiled", f"trace in {get('path', '')}"
    rest = {key: value for key, value in event.items() if key not in ("run", "time", "step", "event")}
    return kind.replace("_", " "), ", ".join(f"{key} {text(value)}" for key, value in rest.items())


def _spike(event: dict[str, Any]) -> str:
    """What a spike was, and what was expected."""
    value, median, limit = (number(event.get(name)) for name in ("value", "median", "limit"))
    words = "gradient norm" if event.get("of") == "grad_norm" else "loss"
    if value is None or median is None or limit is None:
        return f"{words} far above that of the steps before"
    return f"{words} {figure(value)}, median {figure(median)}, expected at most {figure(limit)}"


def _left_out(event: dict[str, Any]) -> str:
    """The steps and positions whose samples were left out, and the samples of the spike."""
    steps, places = event.get("left_out"), event.get("positions")
    found = ""
    if isinstance(steps, list) and len(steps) == 2:
        found = f"; skipped: step {steps[0]}" if steps[0] == steps[1] else f"; skipped: steps {steps[0]} to {steps[1]}"
    if found and isinstance(places, list) and len(places) == 3 and all(isinstance(each, int) for each in places):
        found += f" (epoch {places[0]}, positions {places[1]} to {places[2] - 1})"
    return f"{found}; samples of the spike {event.get('samples', 'unknown')}"


# -- formatting of numbers


def moment(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return ""


def now() -> float:
    return time.time()


def duration(seconds: float) -> str:
    """12 s, 3 min 20 s, 5 h 02 min, 3 d 4 h."""
    seconds = max(0.0, seconds)
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def figure(value: float) -> str:
    """Four significant digits, with an exponent only for very large or small numbers."""
    if value - value != 0:
        return str(value)
    if value == round(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.1f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"
