"""The picture of a run: one PNG and one HTML page that needs nothing beside itself, drawn from the log history."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import page, picture
from .history import Run, changed_arguments

__all__ = ["Run", "write_report"]


def write_report(
    output_dir: str | Path,
    log_history: Sequence[Mapping[str, Any]] | None = None,
    title: str | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> tuple[Path, Path]:
    """Writes `report.png` and `report.html` into `output_dir` and returns their paths.

    Without `log_history` the run is read from the directory's `trainer_state.json`, or else from that of its newest
    checkpoint. The page lists `arguments`, or those of the directory's `training_args.json` that differ from the
    defaults.
    """
    folder = Path(output_dir)
    if arguments is None:
        arguments = changed_arguments(folder)
    run = Run.read(folder) if log_history is None else Run([dict(entry) for entry in log_history], title=folder.name)
    run.title = title or run.title
    folder.mkdir(parents=True, exist_ok=True)
    return picture.write(run, folder / "report.png"), page.write(run, folder / "report.html", arguments)
