"""The checkpoints in a directory: which there are, what is wrong with them, and which are not needed."""

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..converters import other_trainers
from ..errors import ArgumentError, CheckpointError
from ..formats.reading import json_object
from ..formats.schema import is_encodable
from . import store

FORMAT = 1  # of the output of --json
Problems = Callable[[Path, bool], list[str]]


@dataclass
class Entry:
    """One checkpoint directory, as it is printed."""

    name: str
    step: int
    writer: str  # oneloop, the library of another Trainer, or unknown
    # Whole (complete), damaged (incomplete or corrupt) or foreign (of another trainer, complete as far as known).
    state: str
    run: str | None
    reason: str | None  # save, best, or another reason in the manifest
    framework: str | None
    written: float
    bytes: int
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # of another trainer's: what a run that resumes from it has of it
    latest: bool = False  # resume_from_checkpoint=True would start here
    best: bool = False  # of its run, according to the metric
    path: Path = field(default_factory=Path)
    url: str | None = None  # if it is in object storage

    @property
    def may_be_pruned(self) -> bool:
        """Names that other trainers or their users give are not understood: they may mean that it should be kept."""
        return self.name.startswith(f"{store.PREFIX}-")

    def to_json(self, now: float) -> dict[str, Any]:
        plain = {key: value for key, value in vars(self).items() if key not in ("path", "url")}
        return plain | {"path": self.url or str(self.path), "age_seconds": round(max(0.0, now - self.written), 3)}


def list_checkpoints(
    directory: Path, contents: bool, problems: Problems = store.problems
) -> tuple[list[Entry], list[str]]:
    """The checkpoints in an output directory (or the checkpoint itself), by step, and the remains of interrupted saves.

    With `contents` checksums are verified, which reads every byte; without, only sizes are compared. `problems` finds
    what is wrong with one.
    """
    if not directory.is_dir() and not store.is_external(directory):
        raise CheckpointError(f"{directory} is not a directory. Pass the output_dir of a run, or a checkpoint in it.")
    if _is_checkpoint(directory):
        path = directory.resolve() if directory.is_dir() else directory
        return [_entry(_checkpoint(path), contents, problems)], []
    # Those of other trainers may have been renamed when a checkpoint of ours took their place; and what was exported.
    renamed = [p for name in (*other_trainers.WRITERS, "dcp") for p in directory.glob(f"{store.PREFIX}-*.{name}*")]
    moved = [p for p in renamed if store.is_external(p)] + other_trainers.files_in(directory)
    found = sorted(store.find(directory) + [_checkpoint(p) for p in moved], key=lambda c: (c.step, c.written))
    entries = [_entry(c, contents, problems) for c in found]
    _mark(directory, entries)
    return entries, sorted(p.name for p in directory.glob(f".{store.PREFIX}-*") if p.is_dir())


def _is_checkpoint(path: Path) -> bool:
    if store.read_manifest(path) is not None or store.is_external(path):
        return True
    return re.fullmatch(rf"{store.PREFIX}-\d+", path.resolve().name) is not None and not store.find(path)


def _checkpoint(path: Path) -> store.CheckpointInfo:
    """A checkpoint with any name."""
    manifest, number = store.read_manifest(path) or {}, re.search(r"-(\d+)", path.name)
    step = manifest.get("step", json_object(path / other_trainers.STATE).get("global_step"))
    if not isinstance(step, int) or isinstance(step, bool):
        step = int(number[1]) if number else _counted_step(path)
    return store.CheckpointInfo(
        path, step, manifest.get("run_id"), float(manifest.get("written", path.stat().st_mtime))
    )


def _counted_step(path: Path) -> int:
    """The step that a checkpoint of another trainer counts; 0 if it cannot be read."""
    with contextlib.suppress(CheckpointError):
        if store.is_external(path):
            return int(other_trainers.state(path)["global_step"])
    return 0


def _entry(checkpoint: store.CheckpointInfo, contents: bool, find_problems: Problems) -> Entry:
    path, manifest = checkpoint.path, store.read_manifest(checkpoint.path) or {}
    problems = find_problems(path, contents)
    own, other = checkpoint.run_id is not None, store.is_external(path)
    framework = json_object(path / "run.json").get("framework") if own else other_trainers.framework(path)
    return Entry(
        name=path.name,
        step=checkpoint.step,
        writer="oneloop" if own else other_trainers.writer(path) if other else "unknown",
        state="damaged" if problems else "foreign" if other else "whole",
        run=checkpoint.run_id,
        reason=manifest.get("reason") if isinstance(manifest.get("reason"), str) else None,
        framework=framework if isinstance(framework, str) and is_encodable(framework) else None,
        written=checkpoint.written,
        bytes=_size(path),
        problems=problems,
        notes=other_trainers.summary(path) if other and not problems else [],
        path=path,
    )


def _mark(parent: Path, entries: list[Entry]) -> None:
    """Mark the one that a run would resume from, and the best of each run."""
    by_name = {entry.name: entry for entry in entries if not entry.problems}
    newest = next((by_name[c.path.name] for c in store.newest_first(parent) if c.path.name in by_name), None)
    if newest is not None:
        newest.latest = True
    for run in {entry.run for entry in entries}:
        # The newest one of a run has the latest value; the path may have changed if the run was moved.
        last = next((e for e in reversed(entries) if e.run == run and not e.problems), None)
        named = json_object(last.path / other_trainers.STATE).get("best_model_checkpoint") if last else None
        best = by_name.get(Path(named).name) if isinstance(named, str) else None
        if best is not None and best.run == run:
            best.best = True


def _size(path: Path) -> int:
    total = 0
    for file in path.rglob("*") if path.is_dir() else [path]:
        with contextlib.suppress(FileNotFoundError):  # a run may be deleting it
            total += file.stat().st_size if file.is_file() else 0
    return total


# -- prune


def checkpoints_to_delete(entries: list[Entry], keep: int, damaged: bool, others: bool) -> list[Entry]:
    """What prune removes: of every run, all but the newest `keep` complete ones and the best.

    Incomplete and corrupt ones are not counted and are only removed on request; so are those of another trainer, which
    count as one run.
    """
    gone: list[Entry] = []
    for run in {entry.run for entry in entries}:
        if run is None and not others:
            continue
        whole = [e for e in entries if e.run == run and not e.problems and e.writer != "unknown" and e.may_be_pruned]
        kept = {e.name for e in whole[-keep:]} | {e.name for e in whole if e.best or e.latest}
        gone += [e for e in whole if e.name not in kept]
    if damaged:
        wrong = [e for e in entries if e.problems and e.may_be_pruned]
        gone += [e for e in wrong if e.writer == "oneloop" or others or _is_torn(e)]
    return sorted(gone, key=lambda e: (e.step, e.name))


def _is_torn(entry: Entry) -> bool:
    """Whether this remains of an interrupted save or deletion: no manifest, but files that only oneloop writes."""
    return entry.writer == "unknown" and (entry.path / "run.json").is_file()


def prune(
    directory: Path,
    keep: int | None,
    damaged: bool,
    others: bool,
    dry_run: bool,
    problems: Problems = store.problems,
    delete: Callable[[Path], None] = store.delete,
) -> tuple[list[Entry], list[Entry]]:
    """Delete; returns (what was deleted, what is left). The checksums of those to keep are verified first, so that no
    corrupt one is kept in place of a complete one."""
    if keep is None or keep < 1:
        raise ArgumentError(
            "prune needs --keep N, with N at least 1: the number of newest checkpoints to keep of each run"
        )
    if directory.is_dir() and _is_checkpoint(directory):
        raise ArgumentError(f"{directory} is a checkpoint; pass the output_dir that contains it to prune")
    entries, _ = list_checkpoints(directory, True, problems)
    gone = checkpoints_to_delete(entries, keep, damaged, others)
    if not dry_run:
        for entry in reversed(gone):  # one is deleted before the best that it names, which is older
            try:
                delete(entry.path)
            except OSError as error:
                raise CheckpointError(f"cannot delete {entry.path}: {error}. Check its permissions.") from error
    names = {entry.name for entry in gone}
    return gone, [entry for entry in entries if entry.name not in names]


# -- output


def size_text(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
