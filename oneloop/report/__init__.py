"""The report of one or several runs, as a picture and a page, generated from the files in their directories."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..secrets import clean
from . import comparison, page, page_data, picture, summary
from .csv_files import curves_as_csv
from .history import LoggedRun
from .log_reader import Directory

__all__ = [
    "LoggedRun",
    "write_comparison",
    "write_comparison_csv",
    "write_csv",
    "write_page",
    "write_picture",
    "write_report",
]

ROWS = 1_000_000  # points of one metric in a CSV file; beyond it curves are downsampled


def write_report(
    output_dir: str | Path,
    log_history: Sequence[Mapping[str, Any]] | None = None,
    title: str | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> tuple[Path, Path]:
    """Write `report.png` and `report.html` into `output_dir` and return their paths.

    Without `log_history` the run is read from the directory: its log.jsonl, or otherwise the `trainer_state.json` there
    or in its newest checkpoint. The page lists `arguments`, or those of the run that differ from the defaults.
    """
    html = write_page(output_dir, log_history, title, arguments)
    return write_picture(output_dir, log_history, title), html


def write_picture(
    output_dir: str | Path, log_history: Sequence[Mapping[str, Any]] | None = None, title: str | None = None
) -> Path:
    """Write only `report.png`."""
    folder = Path(output_dir)
    run = _history(folder, log_history)
    run.title = title or run.title
    return picture.write(run, folder / "report.png")


def write_page(
    output_dir: str | Path,
    log_history: Sequence[Mapping[str, Any]] | None = None,
    title: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    verify: bool = False,
) -> Path:
    """Write only `report.html`, which needs no extra package. With `verify`, checkpoints are verified completely."""
    folder = Path(output_dir)
    directory = Directory(folder)
    if log_history is None:
        directory.read_new()
        if not directory.is_run:
            LoggedRun.read(folder)  # raises an error that says what was expected
            raise DataError(f"{folder} contains no run")
    else:
        directory.use_history([dict(entry) for entry in log_history])
        folder.mkdir(parents=True, exist_ok=True)
    data = page_data.run_page(directory, title, verify=verify)
    if arguments is not None:
        data["arguments"] = [[str(name), summary.text(value), ""] for name, value in clean(arguments).items()]
    return _write(folder / "report.html", page.html(data))


def write_csv(output_dir: str | Path, path: str | Path) -> Path:
    """Write every value that a run logged as CSV, with a row for each step."""
    directory = Directory(Path(output_dir))
    directory.read_new()
    if not directory.is_run:
        LoggedRun.read(Path(output_dir))  # raises an error that says what was expected
    return _write(Path(path), curves_as_csv(directory, ROWS))


def write_comparison_csv(folders: Sequence[str | Path], path: str | Path) -> Path:
    """Write the table of the runs in these directories as CSV: arguments that differ, and last and best values."""
    return _write(Path(path), comparison.table(comparison.find(folders)))


def write_comparison(folders: Sequence[str | Path], path: str | Path, title: str | None = None) -> Path:
    """Write one page that compares the runs in these directories."""
    return _write(Path(path), page.html(comparison.page(comparison.find(folders), title)))


def _history(folder: Path, log_history: Sequence[Mapping[str, Any]] | None) -> LoggedRun:
    """The history to plot."""
    if log_history is not None:
        return LoggedRun([dict(entry) for entry in log_history], title=folder.name)
    directory = Directory(folder)
    directory.read_new()
    if not directory.is_run:
        return LoggedRun.read(folder)  # raises an error that says what was expected
    entries = [
        {"step": step, key: value} for key, (x, y) in directory.curves(4000).items() for step, value in zip(x, y)
    ]
    return LoggedRun(entries, title=folder.resolve().name)


def _write(path: Path, text: str) -> Path:
    """Write the file atomically: the previous one may be open in a browser."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8", newline="")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path
