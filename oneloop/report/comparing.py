"""Several runs on one page: their curves over each other, how they ended, and in what their arguments differ."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from os import cpu_count
from pathlib import Path
from typing import Any

from ..arguments.evaluation import higher_is_better
from ..errors import DataError
from ..writers.jsonlines import NAME as LOG
from . import contents, facts
from .history import TIMES
from .reading import Directory, find_runs
from .thinning import thin

PARSED = 256 << 20  # bytes of logs that are read line by line, all runs together
LEAST = 1 << 20  # of each run
POINTS = 500_000  # on the page, all runs and figures together
MOST, FEWEST = 2000, 24  # points of one curve
TOGETHER = 512 << 20  # bytes of logs above which several processes read them


def find(folders: Sequence[str | Path]) -> list[Path]:
    """The runs in these directories; an error for one that holds none."""
    found: list[Path] = []
    for folder in map(Path, folders):
        runs = find_runs(folder)
        if not runs:
            raise DataError(
                f"{folder} holds no run. Name the output_dir of a run, or a directory with several of them."
            )
        found += [run for run in runs if run not in found]
    return found


def page(folders: Sequence[Path], title: str | None = None) -> dict[str, Any]:
    """The page of several runs. Its size does not grow with the length of the runs, and hardly with their number."""
    runs = _read_all(folders)
    return {"title": title or f"{len(runs)} runs"} | assemble(runs)


def assemble(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The page from what was read of each run."""
    every = contents.keys_of(run["curves"] for run in runs)
    each = max(1, sum(len(run["curves"]) for run in runs))
    limit = max(FEWEST, min(MOST, POINTS // each))
    names = differing([run["arguments"] for run in runs])
    charts = []
    for chart in contents.charts(every):  # one figure a chart, with a line for each run
        shared = len(chart["keys"]) > 1 or chart["keys"][0][0].startswith("eval_")
        for key, _ in chart["keys"]:
            single = contents.one_chart(_title(key) if shared else chart["title"], {key: key}, every, chart["zero"])
            charts.append(single | {"unit": chart["unit"]})
    metrics = [key for key in every if key.startswith("eval_") and not key.endswith(TIMES)]
    metrics = ["loss"] * ("loss" in every) + metrics
    return {
        "kind": "compare",
        "runs": [_packed(run, limit, names) for run in runs],
        "charts": charts,
        "differing": names,
        "metrics": [[key, higher_is_better(key)] for key in metrics],
        "written": facts.moment(facts.now()),
        "partly": sum(not run["whole"] for run in runs),
    }


def _title(key: str) -> str:
    return key.removesuffix("_bytes").removeprefix("eval_").replace("_", " ") + (
        " (evaluation)" if key.startswith("eval_") else ""
    )


def differing(runs: list[dict[str, Any]]) -> list[str]:
    """Names of the arguments that are not the same in all runs."""
    names = dict.fromkeys(name for arguments in runs for name in arguments)
    values = {name: {facts.text(arguments.get(name)) for arguments in runs} for name in names}
    return [name for name, texts in values.items() if len(texts) > 1 and name not in facts.PLACES]


def summarise(folder: Path, name: str, budget: int, limit: int) -> dict[str, Any]:
    """What the page needs of one run, small enough to hand between processes."""
    directory = Directory(folder)
    directory.look(budget)
    return read(directory, name, limit)


def read(directory: Directory, name: str, limit: int = MOST) -> dict[str, Any]:
    curves = {key: points for key, points in directory.curves(limit).items() if contents.is_curve(key)}
    return {
        "name": name,
        "curves": curves,
        "clock": directory.clock(64),
        "arguments": facts.arguments_of(directory.folder, directory),
        "status": facts.status(directory, facts.now()),
        "step": directory.reached(),
        "framework": str(directory.start().get("framework", "")),
        "last": {key: series.last for key, series in directory.points.series.items()},
        "best": {
            key: (series.highest if higher_is_better(key) else series.lowest)
            for key, series in directory.points.series.items()
        },
        "whole": directory.whole,
        "generation": directory.generation,
        "entries": directory.points.entries,
    }


def _packed(run: dict[str, Any], limit: int, names: list[str]) -> dict[str, Any]:
    curves = {key: thin(steps, values, limit) for key, (steps, values) in run["curves"].items()}
    label = ", ".join(f"{name} {facts.text(run['arguments'].get(name))}" for name in names[:4])
    return {
        "name": run["name"],
        "label": label or run["name"],
        "points": {key: contents.pack(*points) for key, points in curves.items()},
        "clock": contents.pack(*run["clock"]),
        "status": run["status"],
        "step": run["step"],
        "values": [facts.text(run["arguments"].get(name)) for name in names],
        "metrics": {
            key: [
                facts.figure(value),
                facts.figure(best[0]) if (best := run["best"].get(key)) else "",
                best and best[1],
            ]
            for key, value in run["last"].items()
            if key == "loss" or (key.startswith("eval_") and not key.endswith(TIMES))
        },
        "generation": run["generation"],
        "entries": run["entries"],
    }


def _read_all(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Every run, by several processes where there is much to read."""
    listed = list(folders)
    budget = max(LEAST, PARSED // max(1, len(listed)))
    limit = max(FEWEST, min(MOST, POINTS // max(1, len(listed))))
    jobs = [(folder, name, budget, limit) for folder, name in zip(listed, contents.names_of(listed))]
    size = sum((folder / LOG).stat().st_size for folder in listed if (folder / LOG).is_file())
    workers = min(len(jobs), cpu_count() or 1)
    if size < TOGETHER or workers < 2:
        return [summarise(*job) for job in jobs]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(summarise, *zip(*jobs), chunksize=4))
