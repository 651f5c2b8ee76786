"""The picture and the page of a run, and of several, drawn from what they wrote into their directories."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import DataError
from . import comparison, page, page_data, picture, summary
from .history import Run
from .log_reader import Directory

__all__ = ["Run", "write_comparison", "write_page", "write_picture", "write_report"]


def write_report(
    output_dir: str | Path,
    log_history: Sequence[Mapping[str, Any]] | None = None,
    title: str | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> tuple[Path, Path]:
    """Writes `report.png` and `report.html` into `output_dir` and returns their paths.

    Without `log_history` the run is read from the directory: its log.jsonl, or else the `trainer_state.json` there or
    in its newest checkpoint. The page lists `arguments`, or those of the run that differ from the defaults.
    """
    html = write_page(output_dir, log_history, title, arguments)
    return write_picture(output_dir, log_history, title), html


def write_picture(
    output_dir: str | Path, log_history: Sequence[Mapping[str, Any]] | None = None, title: str | None = None
) -> Path:
    """Writes `report.png` alone."""
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
    """Writes `report.html` alone, which needs no further package. With `verify`, checkpoints are read through."""
    folder = Path(output_dir)
    directory = Directory(folder)
    if log_history is None:
        directory.look()
        if not directory.is_run:
            Run.read(folder)  # says what was expected
            raise DataError(f"{folder} holds no run")
    else:
        directory.take([dict(entry) for entry in log_history])
        folder.mkdir(parents=True, exist_ok=True)
    data = page_data.run_page(directory, title, verify=verify)
    if arguments is not None:
        data["arguments"] = [[str(name), summary.text(value), ""] for name, value in arguments.items()]
    return _write(folder / "report.html", page.html(data))


def write_comparison(folders: Sequence[str | Path], path: str | Path, title: str | None = None) -> Path:
    """Writes one page that lays the runs in these directories over each other."""
    return _write(Path(path), page.html(comparison.page(comparison.find(folders), title)))


def _history(folder: Path, log_history: Sequence[Mapping[str, Any]] | None) -> Run:
    """What the picture is drawn from."""
    if log_history is not None:
        return Run([dict(entry) for entry in log_history], title=folder.name)
    try:
        return Run.read(folder)
    except DataError:
        directory = Directory(folder)
        directory.look()
        if not directory.is_run:
            raise
        entries = [
            {"step": step, key: value} for key, (x, y) in directory.curves(4000).items() for step, value in zip(x, y)
        ]
        return Run(entries, title=folder.resolve().name)


def _write(path: Path, text: str) -> Path:
    """A whole file or none: somebody may be looking at the one before."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path
