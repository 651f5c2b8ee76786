"""Several runs on one page: their curves in the same charts, their final status, and how their arguments differ."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from os import cpu_count
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from ..arguments.evaluation import higher_is_better
from ..callbacks.json_log import NAME as LOG
from ..errors import DataError
from . import page_data, summary
from .csv_files import csv_head, csv_row, csv_text
from .downsample import downsample
from .history import TIMES
from .log_reader import Directory
from .run_folders import find_runs, runs_near, trials

PARSED = 256 << 20  # bytes of logs that are parsed completely, for all runs together
LEAST = 1 << 20  # per run
POINTS = 500_000  # on the page, for all runs and metrics together
MOST, FEWEST = 2000, 24  # points of one curve
PARALLEL_BYTES = 512 << 20  # bytes of logs above which they are read by several processes
ABSENT = summary.text(None)


def find(folders: Sequence[str | Path]) -> list[Path]:
    """The runs in these directories; raises DataError if one contains none."""
    found: list[Path] = []
    for folder in map(Path, folders):
        runs = find_runs(folder)
        if runs == [folder] and len(folders) == 1:  # a search has trained with the best values
            runs += trials(folder)
        if not runs:
            if not folder.is_dir():
                raise DataError(f"{folder}: no such directory. Pass the output_dir of a run.{runs_near(folder)}")
            raise DataError(
                f"{folder} contains no run. Pass the output_dir of a run, or a directory with several of them."
            )
        found += [run for run in runs if run not in found]
    return found


def page(folders: Sequence[Path], title: str | None = None) -> dict[str, Any]:
    """The page of several runs. Its size does not depend on the length of the runs, and hardly on their number."""
    runs = _read_all(folders)
    return {"title": title or f"{len(runs)} runs"} | assemble(runs)


def assemble(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Build the page from the data of each run."""
    shared = common(runs)
    limit, names = limit_of(runs), shared["differing"]
    rows = table_rows(runs, names)
    packed = [row | packed_points(run["curves"], run["clock"], limit) for row, run in zip(rows, runs)]
    return {"kind": "compare", "runs": packed} | shared


def table(folders: Sequence[Path]) -> str:
    """The table of the runs as CSV."""
    runs = _read_all(folders)
    shared = common(runs)
    return csv_text([shared["csv"], *(row["csv"] for row in table_rows(runs, shared["differing"]))])


def limit_of(runs: list[dict[str, Any]], count: int | None = None) -> int:
    """The points per curve for this many runs on a page."""
    curves = sum(len(run["ranges"]) for run in runs) * (count or len(runs)) // max(1, len(runs))
    return max(FEWEST, min(MOST, POINTS // max(1, curves)))


def common(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The part of the page that is common to all runs."""
    every = page_data.merge_ranges(run["ranges"] for run in runs)
    charts = []
    for chart in page_data.charts(every):  # one metric per chart, with a line for each run
        shared = len(chart["keys"]) > 1 or chart["keys"][0][0].startswith("eval_")
        for key, _ in chart["keys"]:
            title = page_data.title_of(key) if shared else chart["title"]
            single = page_data.one_chart(title, {key: key}, every, chart["zero"])
            charts.append(single | {"unit": chart["unit"]})
    metrics = metric_names([every])
    names = differing([run["arguments"] for run in runs])
    return {
        "charts": charts,
        "differing": names,
        "csv": csv_head(names, metrics),
        "metrics": [[key, higher_is_better(key)] for key in metrics],
        "written": summary.moment(summary.now()),
        "partly": sum(not run["whole"] for run in runs),
    }


def metric_names(runs: Iterable[page_data.Ranges]) -> list[str]:
    """The metrics in the table: the training loss and those of evaluations."""
    every = dict.fromkeys(key for ranges in runs for key in ranges)
    return ["loss"] * ("loss" in every) + [k for k in every if k.startswith("eval_") and not k.endswith(TIMES)]


def differing(runs: list[dict[str, str]]) -> list[str]:
    """Names of the arguments that are not the same in all runs."""
    names = dict.fromkeys(name for arguments in runs for name in arguments)
    values = {name: {arguments.get(name, ABSENT) for arguments in runs} for name in names}
    return [name for name, texts in values.items() if len(texts) > 1 and name not in summary.PLACES]


def summarise(folder: Path, name: str, budget: int, limit: int) -> dict[str, Any]:
    """The data of one run for the page, small enough to send between processes."""
    directory = Directory(folder)
    directory.read_new(budget)
    return read(directory, name, limit)


def read(directory: Directory, name: str, limit: int = MOST) -> dict[str, Any]:
    return run_data(directory, name) | {"curves": curves(directory, limit), "clock": directory.clock(64)}


def run_data(directory: Directory, name: str) -> dict[str, Any]:
    """The data of a run other than its points; cheap enough to compute every second."""
    series = directory.points.metrics
    return {
        "name": name,
        "ranges": {key: values for key, values in directory.ranges().items() if page_data.is_curve(key)},
        "arguments": {
            key: summary.text(value)
            for key, value in (
                summary.hyperparameters(directory) | summary.arguments_of(directory.folder, directory)
            ).items()
        },
        "status": summary.status(directory, summary.now()),
        "step": directory.reached(),
        "last": {key: one.last for key, one in series.items()},
        "best": {key: (one.highest if higher_is_better(key) else one.lowest) for key, one in series.items()},
        "whole": directory.is_complete,
        "generation": directory.generation,
        "entries": directory.points.entries,
    }


def curves(directory: Directory, limit: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {key: points for key, points in directory.curves(limit).items() if page_data.is_curve(key)}


def table_rows(
    runs: list[dict[str, Any]], names: list[str], chosen: Sequence[int] | None = None
) -> list[dict[str, Any]]:
    """The rows of the table of the page: of all runs, or of those chosen."""
    exact = [[run["arguments"].get(name, ABSENT) for run in runs] for name in names]
    shown = [summary.short(column) for column in exact]
    metrics = metric_names(run["ranges"] for run in runs)
    return [
        _table_row(runs[i], names, [column[i] for column in shown], [column[i] for column in exact], metrics)
        for i in (range(len(runs)) if chosen is None else chosen)
    ]


def _table_row(
    run: dict[str, Any], names: list[str], values: list[str], exact: list[str], metrics: list[str]
) -> dict[str, Any]:
    return {
        "name": run["name"],
        "label": ", ".join(f"{name} {value}" for name, value in zip(names[:4], values)) or run["name"],
        "status": run["status"],
        "step": run["step"],
        "values": values,
        "csv": csv_row(run, exact, metrics),
        "metrics": {
            key: [
                summary.figure(value),
                summary.figure(best[0]) if (best := run["best"].get(key)) else "",
                best and best[1],
                best and best[0],
            ]
            for key, value in run["last"].items()
            if key == "loss" or (key.startswith("eval_") and not key.endswith(TIMES))
        },
        "generation": run["generation"],
        "entries": run["entries"],
    }


def packed_points(
    found: dict[str, tuple[np.ndarray, np.ndarray]], clock: tuple[np.ndarray, np.ndarray], limit: int
) -> dict[str, Any]:
    thinned = {key: downsample(steps, values, limit) for key, (steps, values) in found.items()}
    return {
        "points": {key: page_data.pack(*points) for key, points in thinned.items()},
        "clock": page_data.pack(*clock),
    }


def _read_all(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Read every run, with several processes if there is much to read."""
    listed = list(folders)
    budget = max(LEAST, PARSED // max(1, len(listed)))
    limit = max(FEWEST, min(MOST, POINTS // max(1, len(listed))))
    jobs = [(folder, name, budget, limit) for folder, name in zip(listed, page_data.names_of(listed))]
    size = sum((folder / LOG).stat().st_size for folder in listed if (folder / LOG).is_file())
    workers = min(len(jobs), cpu_count() or 1)
    if size < PARALLEL_BYTES or workers < 2:
        return [summarise(*job) for job in jobs]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        found = pool.map(summarise, *zip(*jobs), chunksize=4)
        return list(tqdm(found, total=len(jobs), desc="reading logs", unit="log", disable=None))  # only in a terminal
