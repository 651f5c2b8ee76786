"""Directories that runs have written into."""

from pathlib import Path

from ..callbacks.json_log import NAME as LOG
from ..trainer.event_log import NAME as EVENTS

STATE_FILE = "trainer_state.json"


def find_runs(folder: Path, depth: int = 3, most: int = 5000) -> list[Path]:
    """The directory itself if it contains a run, otherwise the directories below it that do, by name."""
    if holds_run(folder):
        return [folder]
    found: list[Path] = []
    if depth:
        try:
            below = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
        except OSError:
            return []
        for path in below:
            if len(found) < most:
                found += find_runs(path, depth - 1, most - len(found))
    return found


def trials(folder: Path) -> list[Path]:
    """The runs in the directory of a run, such as the trials of a search; its checkpoints are none."""
    below = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith((".", "checkpoint-")))
    return [path for path in below if holds_run(path)]


def runs_near(folder: Path, most: int = 5) -> str:
    """The runs where this directory was looked for, for a message: beside it, or below the next that exists."""
    place = next((each for each in folder.parents if each.is_dir()), Path())
    if place == Path(place.anchor) and place.anchor:  # the whole machine
        return ""
    near = find_runs(place, depth=2, most=most + 1)
    shown = ", ".join(str(path) for path in near[:most]) + " and others" * (len(near) > most)
    return f" Runs in {place.absolute()}: {shown}." if near else ""


def holds_run(folder: Path) -> bool:
    """Whether a Trainer has written into it."""
    if any((folder / name).is_file() for name in (LOG, EVENTS, STATE_FILE)):
        return True
    return next(folder.glob(f"checkpoint-*/{STATE_FILE}"), None) is not None
