"""The content of a page as plain data: the curves of one or several runs, and their properties."""

import base64
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import summary
from .history import TIMES
from .log_reader import Directory, Ranges

# (title, values and their labels, whether the axis starts at zero); evaluation metrics are added as found.
CHARTS: tuple[tuple[str, dict[str, str], bool], ...] = (
    ("learning rate", {"learning_rate": "learning rate"}, True),
    ("gradient norm", {"grad_norm": "gradient norm"}, True),
    ("samples per second", {"samples_per_second": "samples per second"}, True),
    (
        "tokens per second",
        {"tokens_per_second": "tokens per second", "useful_tokens_per_second": "without padding"},
        True,
    ),
    ("waiting for data", {"data_wait": "share of the time"}, True),
    ("MFU", {"mfu": "model FLOPs utilization"}, True),
    (
        "memory",
        {"memory_bytes": "process", "device_memory_bytes": "device", "device_peak_bytes": "device, peak"},
        True,
    ),
    ("loss scale", {"loss_scale": "loss scale"}, True),
)
# (title, prefix of the values, whether the axis starts at zero) of what is logged of each dataset of a mixture, and of
# each process.
BY_SOURCE = (
    ("training loss by dataset", "loss/", False),
    ("tokens by dataset", "num_tokens/", True),
    ("samples by dataset", "num_samples/", True),
    ("own seconds of a step by process", "process_seconds/", True),
)
KNOWN = {"loss", "steps_per_second", "skipped_steps", "total_flos", "num_input_tokens_seen"}
KNOWN |= {key for _, keys, _ in CHARTS for key in keys}


def run_page(directory: Directory, title: str | None = None, limit: int = 4000, verify: bool = False) -> dict[str, Any]:
    """The page of one run."""
    return {
        "kind": "run",
        "title": title or directory.folder.resolve().name,
        "runs": [packed(directory, directory.folder.resolve().name, limit)],
        **run_facts(directory, summary.checkpoints(directory.folder, verify)),
    }


def run_facts(directory: Directory, checkpoints: list[dict[str, Any]]) -> dict[str, Any]:
    """The data that changes during a run, other than its points."""
    now = summary.now()
    return {
        "charts": charts(directory.ranges()),
        "summary": summary.summary(directory, now),
        "figures": summary.figures(directory),
        "best": summary.best_points(directory),
        "arguments": _arguments(directory),
        "environment": summary.environment(directory),
        "checkpoints": checkpoints,
        "events": summary.events(directory),
        "written": summary.moment(now),
        "partly": not directory.is_complete,
    }


def _arguments(directory: Directory) -> list[list[str]]:
    """[name, value, default]: first what the script or a search has of its own."""
    given = summary.arguments_of(directory.folder, directory)
    own = {name: value for name, value in summary.hyperparameters(directory).items() if name not in given}
    return [[name, *summary.short([summary.text(value)]), ""] for name, value in own.items()] + summary.changed(given)


def packed(directory: Directory, name: str, limit: int) -> dict[str, Any]:
    """A run's points, encoded for the page, and the position to continue from."""
    steps, seconds = directory.clock()
    return {
        "name": name,
        "points": {key: pack(*points) for key, points in directory.curves(limit).items() if is_curve(key)},
        "clock": pack(steps, seconds),
        "generation": directory.generation,
        "entries": directory.points.entries,
    }


def is_curve(key: str) -> bool:
    """Whether it is a curve: values of the whole run are logged only once, at its end."""
    return not key.startswith(("train_", "test_")) and not key.endswith(("_runtime", "_flos"))


def pack(steps: np.ndarray, values: np.ndarray) -> list[str]:
    """Two arrays as text: four bytes per number, a third of decimal digits. Steps above 2**32 stay exact."""
    whole = not len(steps) or (steps.min() >= 0 and steps.max() < 2**32 and bool((steps == np.round(steps)).all()))
    kind = "u4" if whole else "f8"
    return [
        ("u" if whole else "d") + base64.b64encode(steps.astype(f"<{kind}").tobytes()).decode(),
        base64.b64encode(_single(values).tobytes()).decode(),
    ]


def _single(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return values.astype("<f4")


def charts(curves: Ranges) -> list[dict[str, Any]]:
    """The charts that there are values for, the most important ones first."""
    metrics = [key for key in curves if key.startswith("eval_") and not key.endswith(TIMES)]
    losses = [key for key in metrics if key.endswith("_loss")]
    others = [key for key in metrics if key not in losses]
    rates = [key for key in others if _is_rate(curves[key])]
    found = [one_chart("loss", {"loss": "training"} | {key: _loss_name(key) for key in losses}, curves)]
    found += [one_chart(title, of_sources(prefix, curves), curves, zero) for title, prefix, zero in BY_SOURCE]
    alone = [key for key in others if key not in rates or len(rates) == 1]  # then the title names it
    found.append(one_chart("evaluation", {key: _short(key) for key in rates if key not in alone}, curves))
    found += [one_chart(title_of(key), {key: _short(key)}, curves) for key in alone]
    found += [one_chart(title, keys, curves, zero) for title, keys, zero in CHARTS]
    own = [key for key in curves if is_own(key)]
    found += [one_chart(key.replace("_", " "), {key: key}, curves) for key in own]
    return [chart for chart in found if chart["keys"]]


def of_sources(prefix: str, curves: Iterable[str]) -> dict[str, str]:
    """The values of the datasets of a mixture, or of processes, and their names."""
    return {key: key.removeprefix(prefix) for key in curves if key.startswith(prefix)}


def title_of(key: str) -> str:
    """The title of a chart with only this metric."""
    return key.removesuffix("_bytes").removeprefix("eval_").replace("_", " ") + (
        " (evaluation)" if key.startswith("eval_") else ""
    )


def is_own(key: str) -> bool:
    """Whether this value was logged by the user's code."""
    known = ("eval_", "test_", "train_", *(prefix for _, prefix, _ in BY_SOURCE))
    return key not in KNOWN and not key.startswith(known) and not key.endswith(TIMES)


def one_chart(title: str, keys: dict[str, str], curves: Ranges, zero: bool = False) -> dict[str, Any]:
    """A chart of the given metrics that exist."""
    unit = "bytes" if title == "memory" else ""
    there = [[key, label] for key, label in keys.items() if key in curves]
    return {"title": title, "keys": there, "zero": zero, "unit": unit}


def _is_rate(values: tuple[float, ...]) -> bool:
    return len(values) > 0 and all(0 <= value <= 1 for value in values)


def _loss_name(key: str) -> str:
    return f"evaluation {key.removeprefix('eval_').removesuffix('loss').strip('_')}".strip()


def _short(key: str) -> str:
    return key.removeprefix("eval_").replace("_", " ")


def merge_ranges(runs: Iterable[Ranges]) -> Ranges:
    """All metrics of all runs."""
    found: Ranges = {}
    for ranges in runs:
        for key, values in ranges.items():
            ends = found.get(key, ()) + values
            found[key] = (min(ends), max(ends)) if ends else ()
    return found


def names_of(folders: Sequence[Path]) -> list[str]:
    """For each path its shortest unique suffix."""
    parts = [folder.resolve().parts for folder in folders]
    lengths = [1] * len(parts)
    for _ in range(max(map(len, parts), default=0)):
        ends = Counter(own[-length:] for own, length in zip(parts, lengths))
        lengths = [length + (ends[own[-length:]] > 1) for own, length in zip(parts, lengths)]
    return ["/".join(own[-length:]) for own, length in zip(parts, lengths)]
