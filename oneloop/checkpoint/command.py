"""`oneloop checkpoints DIR`: list, verify and prune the checkpoints in a directory."""

import contextlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..cli.terminal import printable
from ..errors import ArgumentError, CheckpointError
from ..storage import urls
from ..storage.view import opened
from . import store
from .convert import other_trainers
from .reading import json_object
from .schema import is_encodable

FORMAT = 1  # of the output of --json
Problems = Callable[[Path, bool], list[str]]


@dataclass
class Entry:
    """One checkpoint directory, as it is printed."""

    name: str
    step: int
    writer: str  # oneloop, transformers, paddlenlp, paddleformers, or unknown
    # Whole (complete), damaged (incomplete or corrupt) or foreign (of another trainer, complete as far as known).
    state: str
    run: str | None
    reason: str | None  # save, best, or another reason in the manifest
    framework: str | None
    written: float
    bytes: int
    problems: list[str] = field(default_factory=list)
    latest: bool = False  # resume_from_checkpoint=True would start here
    best: bool = False  # of its run, according to the metric
    path: Path = field(default_factory=Path)
    url: str | None = None  # if it is in object storage

    def to_json(self, now: float) -> dict[str, Any]:
        plain = {key: value for key, value in vars(self).items() if key not in ("path", "url")}
        return plain | {"path": self.url or str(self.path), "age_seconds": round(max(0.0, now - self.written), 3)}


def look(directory: Path, contents: bool, problems: Problems = store.problems) -> tuple[list[Entry], list[str]]:
    """The checkpoints in an output directory (or the checkpoint itself), by step, and the remains of interrupted saves.

    With `contents` checksums are verified, which reads every byte; without, only sizes are compared. `problems` finds
    what is wrong with one.
    """
    if not directory.is_dir():
        raise CheckpointError(f"{directory} is not a directory. Pass the output_dir of a run, or a checkpoint in it.")
    if _is_checkpoint(directory):
        return [_entry(_checkpoint(directory.resolve()), contents, problems)], []
    # Those of other trainers may have been renamed when a checkpoint of ours took their place.
    renamed = [p for name in other_trainers.WRITERS for p in directory.glob(f"{store.PREFIX}-*.{name}*")]
    moved = [p for p in renamed if store.is_foreign(p)]
    found = sorted(store.find(directory) + [_checkpoint(p) for p in moved], key=lambda c: (c.step, c.written))
    entries = [_entry(c, contents, problems) for c in found]
    _mark(directory, entries)
    return entries, sorted(p.name for p in directory.glob(f".{store.PREFIX}-*") if p.is_dir())


def _is_checkpoint(path: Path) -> bool:
    if store.read_manifest(path) is not None or store.is_foreign(path):
        return True
    return re.fullmatch(rf"{store.PREFIX}-\d+", path.resolve().name) is not None and not store.find(path)


def _checkpoint(path: Path) -> store.Checkpoint:
    """A checkpoint with any name."""
    manifest, number = store.read_manifest(path) or {}, re.search(r"-(\d+)", path.name)
    step = manifest.get("step", json_object(path / other_trainers.STATE).get("global_step"))
    if not isinstance(step, int) or isinstance(step, bool):
        step = int(number[1]) if number else 0
    return store.Checkpoint(path, step, manifest.get("run_id"), float(manifest.get("written", path.stat().st_mtime)))


def _entry(checkpoint: store.Checkpoint, contents: bool, find_problems: Problems) -> Entry:
    path, manifest = checkpoint.path, store.read_manifest(checkpoint.path) or {}
    problems = find_problems(path, contents)
    own, other = checkpoint.run_id is not None, store.is_foreign(path)
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
    for file in path.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a run may be deleting it
            total += file.stat().st_size if file.is_file() else 0
    return total


# -- prune


def to_delete(entries: list[Entry], keep: int, damaged: bool, others: bool) -> list[Entry]:
    """What prune removes: of every run, all but the newest `keep` complete ones and the best.

    Incomplete and corrupt ones are not counted and are only removed on request; so are those of another trainer, which
    count as one run.
    """
    gone: list[Entry] = []
    for run in {entry.run for entry in entries}:
        if run is None and not others:
            continue
        whole = [e for e in entries if e.run == run and not e.problems and e.writer != "unknown"]
        kept = {e.name for e in whole[-keep:]} | {e.name for e in whole if e.best or e.latest}
        gone += [e for e in whole if e.name not in kept]
    if damaged:
        gone += [e for e in entries if e.problems and (e.writer == "oneloop" or others or _is_torn(e))]
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
    entries, _ = look(directory, True, problems)
    gone = to_delete(entries, keep, damaged, others)
    if not dry_run:
        for entry in reversed(gone):  # one is deleted before the best that it names, which is older
            try:
                delete(entry.path)
            except OSError as error:
                raise CheckpointError(f"cannot delete {entry.path}: {error}. Check its permissions.") from error
    names = {entry.name for entry in gone}
    return gone, [entry for entry in entries if entry.name not in names]


# -- output


def run(
    action: str,
    directory: str,
    keep: int | None = None,
    damaged: bool = False,
    others: bool = False,
    dry_run: bool = False,
    as_json: bool = False,
) -> int:
    """Run list, verify or prune, and print the result; returns 1 if a checkpoint is incomplete or corrupt."""
    gone: list[Entry] = []
    leftovers: list[str] = []
    with contextlib.ExitStack() as stack:
        folder, problems, delete, view = Path(directory), store.problems, store.delete, None
        if urls.is_url(directory):
            view = stack.enter_context(opened(directory))
            folder, problems, delete = view.folder, view.problems, view.delete
        if action == "prune":
            gone, entries = prune(folder, keep, damaged, others, dry_run, problems, delete)
        else:
            entries, leftovers = look(folder, action == "verify", problems)
            leftovers += [] if view is None else view.leftovers()
        if view is not None:
            for entry in (*gone, *entries):
                entry.url = view.url if entry.name == folder.name else urls.join(view.url, entry.name)
    shown = directory if view is not None else str(folder)
    now, wrong = time.time(), sum(bool(entry.problems) for entry in entries)
    if as_json:
        data: dict[str, Any] = {
            "format": FORMAT,
            "action": action,
            "directory": shown,
            "checked": "sizes" if action == "list" else "contents",
            "damaged": wrong,
            "checkpoints": [entry.to_json(now) for entry in entries],
            "leftovers": leftovers,
        }
        if action == "prune":
            data |= {"dry_run": dry_run, "deleted": [entry.to_json(now) for entry in gone]}
        print(json.dumps(data, indent=2))
        return 1 if wrong else 0
    verb = "would be deleted" if dry_run else "deleted"
    for entry in gone:
        print(printable(f"{verb}: {entry.name} ({_amount(entry.bytes)})", keep=""))
    if action == "prune":
        print(f"{len(gone)} {verb}, {_amount(sum(e.bytes for e in gone))}\n" if gone else "nothing to delete\n")
    lines = _text(shown, entries, leftovers, now, by_size=action == "list")
    print("\n".join(printable(line, keep="") for line in lines))
    return 1 if wrong else 0


def _text(folder: str, entries: list[Entry], leftovers: list[str], now: float, by_size: bool) -> list[str]:
    wrong = [entry for entry in entries if entry.problems]
    count = f"{len(entries)} checkpoint{'s' * (len(entries) != 1)}, {_amount(sum(e.bytes for e in entries))}"
    how = "sizes compared; use verify for checksums" if by_size else "checksums verified"
    lines = [f"{folder}: {count}, {len(wrong) or 'none'} damaged ({how})"]
    if entries:
        rows: list[tuple[str, ...]] = [("NAME", "STEP", "RUN", "REASON", "SIZE", "AGE", "FRAMEWORK", "STATE", "")]
        rows += [_row(entry, now) for entry in entries]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines += ["", *("  ".join(_aligned(row, widths)).rstrip() for row in rows)]
    for entry in wrong:
        lines += ["", f"{entry.name} is incomplete or corrupt:", *(f"  {problem}" for problem in entry.problems)]
    if leftovers:
        lines += ["", "Saves in progress, or remains of interrupted ones (removed at the next start):"]
        lines += [f"  {name}" for name in leftovers]
    return lines


def _aligned(row: tuple[str, ...], widths: list[int]) -> list[str]:
    numbers = (1, 4, 5)
    return [c.rjust(w) if i in numbers else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths))]


def _row(entry: Entry, now: float) -> tuple[str, ...]:
    marks = ", ".join(name for name, true in (("latest", entry.latest), ("best", entry.best)) if true)
    run, reason = (entry.run or "-")[:8], entry.reason or "-"
    size, age = _amount(entry.bytes), _age(now - entry.written)
    cells = (entry.name, str(entry.step), run, reason, size, age, entry.framework or "-", entry.state, marks)
    return tuple(printable(cell, keep="") for cell in cells)  # before the columns are aligned


def _amount(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _age(seconds: float) -> str:
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
