"""`oneloop checkpoints`: list, verify, prune and export the checkpoints of a run."""

import argparse
import contextlib
import json
import time
from pathlib import Path
from typing import Any

from ..checkpoint import store
from ..checkpoint.listing import FORMAT, Entry, list_checkpoints, prune, size_text
from ..compat import checkpoint_export
from ..errors import ArgumentError
from ..formats import urls
from ..formats.terminal import printable
from ..storage.view import opened
from ..trainer import parts as parts  # which declare what run.json has of them


def command(options: argparse.Namespace) -> int:
    given = [name for name in ("keep", "damaged", "foreign", "dry_run") if getattr(options, name) not in (None, False)]
    if given and options.action != "prune":
        raise ArgumentError(f"--{given[0].replace('_', '-')} is an option of prune: oneloop checkpoints DIR prune ...")
    if options.action == "export":
        return export(options.directory, options.to, options.output, options.json)
    wrong = [name for name in ("to", "output") if getattr(options, name) is not None]
    if wrong:
        raise ArgumentError(f"--{wrong[0]} is an option of export: oneloop checkpoints DIR export ...")
    return run(
        options.action,
        options.directory,
        options.keep,
        options.damaged,
        options.foreign,
        options.dry_run,
        options.json,
    )


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
            entries, leftovers = list_checkpoints(folder, action == "verify", problems)
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
        print(printable(f"{verb}: {entry.name} ({size_text(entry.bytes)})", keep=""))
    if action == "prune":
        print(f"{len(gone)} {verb}, {size_text(sum(e.bytes for e in gone))}\n" if gone else "nothing to delete\n")
    lines = _text(shown, entries, leftovers, now, by_size=action == "list")
    print("\n".join(printable(line, keep="") for line in lines))
    return 1 if wrong else 0


def export(directory: str, to: Any, output: str | None, as_json: bool = False) -> int:
    """Write a checkpoint for another program, and print what it has."""
    checkpoint_export.check_format(to)
    if urls.is_url(directory):
        raise ArgumentError("export reads a directory of this machine. Copy the checkpoint from its URL first.")
    done = checkpoint_export.export(Path(directory), to, None if output is None else Path(output))
    if as_json:
        data = {"format": FORMAT, "action": "export", "to": to, "path": str(done.path), "step": done.step}
        print(json.dumps(data | {"kept": done.kept, "left": done.left}, indent=2))
        return 0
    lines = [f"{done.path}: step {done.step}, for {to}"]
    lines += [f"  has: {', '.join(done.kept)}", *(f"  has not: {left}" for left in done.left)]
    print("\n".join(printable(line, keep="") for line in lines))
    return 0


def _text(folder: str, entries: list[Entry], leftovers: list[str], now: float, by_size: bool) -> list[str]:
    wrong = [entry for entry in entries if entry.problems]
    count = f"{len(entries)} checkpoint{'s' * (len(entries) != 1)}, {size_text(sum(e.bytes for e in entries))}"
    how = "sizes compared; use verify for checksums" if by_size else "checksums verified"
    lines = [f"{folder}: {count}, {len(wrong) or 'none'} damaged ({how})"]
    if entries:
        rows: list[tuple[str, ...]] = [("NAME", "STEP", "RUN", "REASON", "SIZE", "AGE", "FRAMEWORK", "STATE", "")]
        rows += [_row(entry, now) for entry in entries]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines += ["", *("  ".join(_aligned(row, widths)).rstrip() for row in rows)]
    for entry in wrong:
        lines += ["", f"{entry.name} is incomplete or corrupt:", *(f"  {problem}" for problem in entry.problems)]
    described = [entry for entry in entries if entry.notes][-1:]  # the others of its run are like it
    for entry in described:
        lines += ["", f"{entry.name}, {entry.notes[0]}:", *(f"  {note}" for note in entry.notes[1:])]
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
    size, age = size_text(entry.bytes), _age(now - entry.written)
    cells = (entry.name, str(entry.step), run, reason, size, age, entry.framework or "-", entry.state, marks)
    return tuple(printable(cell, keep="") for cell in cells)  # before the columns are aligned


def _age(seconds: float) -> str:
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
