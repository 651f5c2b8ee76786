"""Checkpoint directories: staged under a hidden name, committed by their manifest, found and rotated by step.

`checkpoint-N/` is complete only with a valid `manifest.json`, which is written last: sizes and checksums of all files,
the step, and the id of the run that wrote it.
"""

import contextlib
import json
import logging
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from ..converters import other_trainers
from ..errors import CheckpointError
from ..formats import structure
from ..formats.durable import files_below, make_directory, remove_tree, sync_directory, sync_tree
from ..formats.safetensors_io import write_bytes
from ..formats.structure import FORMAT, MANIFEST
from .reader import Checkpoint, checksum, is_external, problems, read_manifest

logger = logging.getLogger(__name__)

_NEW_MANIFEST = f".{MANIFEST}.partial"
_OWN_FILES = re.compile(
    r"(model|optimizer)(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?|random\.safetensors|run\.json|"
    r"trainer_state\.json|training_args\.json"
)
PREFIX = "checkpoint"
_NAME = re.compile(rf"{PREFIX}-([0-9]+)")
_STAGED = f".{PREFIX}-"
_LEFTOVER = re.compile(rf"\.{PREFIX}-([0-9]+)\.[0-9a-f]{{8}}\.(partial|replaced|deleted)")


Failed = Callable[[Path, OSError], None]  # called for each checkpoint that cannot be deleted


@dataclass(frozen=True)
class CheckpointInfo:
    """A checkpoint directory among others; run_id is None if another trainer wrote it."""

    path: Path
    step: int
    run_id: str | None
    written: float
    generation: int = 0  # higher in a run that began later in this directory
    reason: str | None = None  # why it was saved
    manifest: dict[str, Any] | None = field(default=None, compare=False, repr=False)

    @property
    def order(self) -> tuple[int, float]:
        """The sort key that finds the run that wrote last. Clocks may be set back; generations only grow."""
        return self.generation, self.written

    def open(self) -> Checkpoint:
        """The checkpoint, whose manifest has been read."""
        return Checkpoint(self.path, self.manifest)


def new_run_id() -> str:
    return uuid.uuid4().hex[:16]


def open_stage(parent: Path, step: int) -> Path:
    """Create a hidden directory in which to write a checkpoint, next to its final path."""
    make_directory(parent)
    folder = _hidden(parent, step, "partial")
    folder.mkdir()
    return folder


def is_staged(path: Path) -> bool:
    """Whether this is a directory in which a checkpoint is being written."""
    found = _LEFTOVER.fullmatch(path.name)
    return found is not None and found[2] == "partial" and path.is_dir()


def _hidden(parent: Path, step: int | str, state: str) -> Path:
    """A new name for what is not, or no longer, a checkpoint; remove_leftovers recognises it."""
    return parent / f"{_STAGED}{step}.{uuid.uuid4().hex[:8]}.{state}"


def commit(
    folder: Path,
    step: int,
    run_id: str,
    reason: str,
    facts: dict[str, dict[str, Any]],
    is_open: bool = False,
    generation: int | None = None,
    publish: Callable[[dict[str, Any]], None] | None = None,
) -> Checkpoint:
    """Commit a staged directory as the checkpoint of its step: write the manifest last, then rename once.

    The order matters: a process that is killed at any point leaves either no checkpoint or a complete one, and so does
    a power failure: everything is flushed before the rename, and the rename before anything is deleted. `facts` are the
    entries of files whose checksum was computed while writing; other files are read for theirs. One that `is_open` is
    complete too, but an override may add files until finalize_manifest(); it may also have written some under the final
    path. `generation` is that of the run, see next_generation(). `publish` is called with the manifest before the
    rename; there is no checkpoint if it fails.
    """
    target = folder.parent / f"{PREFIX}-{step}"
    if is_open:
        _copy_added(target, folder)
    files = dict(facts)
    for name, path in _files(folder):
        if name not in files:
            files[name] = file_facts(path)
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "step": step,
        "run_id": run_id,
        "reason": reason,
        "written": time.time(),
        "generation": next_generation(find(folder.parent), run_id) if generation is None else generation,
        "files": dict(sorted(files.items())),
    }
    if is_open:
        manifest["unsealed"] = True
    write_bytes(folder / MANIFEST, [json.dumps(manifest, indent=1).encode()])
    sync_tree(folder)
    if publish is not None:
        publish(manifest)
    swap_in(folder, target)
    return Checkpoint(target, manifest)


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """All files of a checkpoint by name, except its manifest."""
    for path in files_below(folder):
        if path.is_file() and path not in (folder / MANIFEST, folder / _NEW_MANIFEST):
            yield path.relative_to(folder).as_posix(), path


def file_facts(path: Path) -> dict[str, Any]:
    """The entry of a file that others have written; flushes it to the disk."""
    with open(path, "rb") as f:
        os.fsync(f.fileno())
    return {"bytes": path.stat().st_size, "sha256": checksum(path)}


def _copy_added(target: Path, folder: Path) -> None:
    """Copy what an override has written to the path of a checkpoint before it is there. Files that oneloop writes, and
    those of an earlier checkpoint at that path, are left."""
    if not target.is_dir() or is_external(target):
        return
    earlier: dict[str, Any] = read_manifest(target) or {"files": {}, "written": 0.0}
    for name, path in _files(target):
        is_new = name not in earlier["files"] or path.stat().st_mtime > earlier["written"]
        if is_new and not _OWN_FILES.fullmatch(name) and not (folder / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, folder / name)


def fingerprints(path: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of each file, by which finalize_manifest() recognises those that are unchanged."""
    return {name: (file.stat().st_size, file.stat().st_mtime_ns) for name, file in _files(path)}


def finalize_manifest(path: Path, known: dict[str, tuple[int, int]]) -> None:
    """Add what an override has written into a complete checkpoint to its manifest, which is replaced atomically. Files
    that are on other machines stay in it."""
    manifest = read_manifest(path)
    if manifest is None:  # the override has removed the checkpoint
        return
    now, before = fingerprints(path), manifest["files"]
    elsewhere = {name: before[name] for name in before if known and name not in known and name not in now}
    manifest["files"] = elsewhere | {
        name: before[name]
        if name in before and known.get(name) == seen
        else file_facts(path / name) | ({} if name in before else {structure.ADDED: True})
        for name, seen in now.items()
    }
    manifest.pop("unsealed", None)
    manifest["written"] = time.time()
    write_bytes(path / _NEW_MANIFEST, [json.dumps(manifest, indent=1).encode()])
    sync_tree(path)  # the names of new files, before the manifest that lists them
    os.replace(path / _NEW_MANIFEST, path / MANIFEST)
    sync_directory(path)


def unlisted(checkpoint: Checkpoint) -> list[str]:
    """Files that an override wrote into a checkpoint, and that are not verified: the run ended with the manifest still
    open."""
    try:
        manifest = checkpoint.manifest
    except CheckpointError:
        return []
    if not manifest.get("unsealed"):
        return []
    return [name for name, _ in _files(checkpoint.path) if name not in manifest["files"]]


def swap_in(folder: Path, target: Path) -> None:
    """Move an existing checkpoint aside until the new one is in its place.

    One of another trainer is kept under another name, since we must not delete it.
    """
    old = kept = None
    is_taken = os.path.lexists(target)
    if is_taken and is_external(target):
        writer = other_trainers.writer(target)
        kept = target.with_name(f"{target.name}.{writer}")
        if kept.exists():
            kept = kept.with_name(f"{kept.name}.{uuid.uuid4().hex[:8]}")
        logger.warning(
            "%s of %s is kept as %s: this run has reached its step.",
            target.name,
            writer,
            kept.name,
        )
        target.rename(kept)
    elif is_taken:
        old = _hidden(target.parent, target.name.rsplit("-", 1)[1], "replaced")
        target.rename(old)
    try:
        folder.rename(target)
        sync_directory(target.parent)
    except OSError:  # keep the old one
        if not folder.exists():
            target.rename(folder)
        before = old or kept
        if before is not None:
            before.rename(target)
        raise
    if old is not None:
        with contextlib.suppress(OSError):  # the new one is saved; the next start removes the rest of the old one
            delete(old)


def discard(folder: Path) -> None:
    """Remove a staged directory that will not become a checkpoint. What cannot be removed now is removed at the next
    start."""
    shutil.rmtree(folder, ignore_errors=True)


def find(parent: Path, opened: Checkpoint | None = None) -> list[CheckpointInfo]:
    """All checkpoints in a directory, by step. Those without our manifest, or with that of another step, have no run.
    The manifest of one that is `opened` is not read again."""
    found = []
    for path in parent.iterdir() if parent.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match is None or not path.is_dir():
            continue
        if opened is not None and not opened.is_external and opened.path.absolute() == path.absolute():
            manifest: dict[str, Any] | None = opened.manifest
        else:
            manifest = read_manifest(path)
        if manifest is not None and structure.step_mismatch(path, manifest) is None:
            generation = manifest.get("generation", 0)  # 0 in checkpoints of releases without it
            if type(generation) is not int or not 0 <= generation < 2**53:
                generation = 0
            about = float(manifest["written"]), generation, manifest.get("reason"), manifest
            found.append(CheckpointInfo(path, int(match[1]), manifest["run_id"], *about))
            continue
        with contextlib.suppress(FileNotFoundError):  # another run may have deleted it
            found.append(CheckpointInfo(path, int(match[1]), None, path.stat().st_mtime))
    return sorted(found, key=attrgetter("step", "written"))


def latest(parent: Path) -> CheckpointInfo | None:
    """The newest checkpoint of the run that wrote last."""
    return _latest(find(parent))


def _latest(every: list[CheckpointInfo]) -> CheckpointInfo | None:
    own = [c for c in every if c.run_id is not None]
    if not own:
        return every[-1] if every else None
    newest = max(own, key=lambda c: c.order)
    return max((c for c in own if c.run_id == newest.run_id), key=lambda c: c.step)


def next_generation(every: list[CheckpointInfo], run_id: str) -> int:
    """The generation of the checkpoints that this run is about to write: above those of all other runs."""
    newest = max((c for c in every if c.run_id is not None), key=lambda c: c.order, default=None)
    if newest is None:
        return 1
    return newest.generation if newest.run_id == run_id and newest.generation else newest.generation + 1


def newest_first(parent: Path) -> list[CheckpointInfo]:
    """The checkpoints of the run that wrote last, newest first; then those of others. An incomplete one that is newer
    than all of them comes first, so that a resume warns about it: the user may expect it to be used."""
    every = find(parent)
    last = _latest(every)
    if last is None:
        return []
    torn = [c for c in every if c.run_id is None and c.step > last.step and not is_external(c.path)]
    own = [c for c in every if c.run_id == last.run_id]
    rest = [c for c in every if c.run_id != last.run_id and c not in torn]
    return torn[::-1] + own[::-1] + sorted(rest, key=lambda c: c.order, reverse=True)


def delete(path: Path) -> None:
    """Remove a checkpoint. It is renamed first and loses its manifest next, so that a partly deleted one is never taken
    for complete, and the rest of it is removed at the next start. Of a symbolic link only the link is removed."""
    if path.is_symlink():
        path.unlink()
        return
    match = _NAME.fullmatch(path.name)
    if match is not None:
        path = path.rename(_hidden(path.parent, match[1], "deleted"))
        sync_directory(path.parent)
    with contextlib.suppress(FileNotFoundError):
        (path / MANIFEST).unlink()
    remove_tree(path)


def _try_to_delete(path: Path, failed: Failed) -> bool:
    """Whether it is gone."""
    try:
        delete(path)
    except FileNotFoundError:  # somebody else has deleted it
        pass
    except OSError as error:
        failed(path, error)
        return not path.is_dir()
    return True


def _is_among(path: Path, kept: set[str]) -> bool:
    """Whether one of these paths, possibly in another notation, is this one."""
    return path.resolve() in {Path(other).resolve() for other in kept}


def rotate(
    parent: Path,
    run_id: str,
    limit: int | None,
    keep: set[str],
    failed: Failed = lambda path, error: None,
    best: str | None = None,
    opened: Checkpoint | None = None,
) -> list[Path]:
    """Delete the checkpoints of this run that were saved only as the best and no longer are; then the oldest above the
    limit, except the newest and those in `keep`, whose paths are returned. `failed` is called for each that cannot be
    deleted; no newer one is deleted in its place. `opened` is as in find().

    The one just written must be in `keep`: a run that resumed from an earlier checkpoint may have corrupt ones after
    it.
    """
    own = [c for c in find(parent, opened) if c.run_id == run_id]
    former = [c for c in own if c.reason == "best" and not _is_among(c.path, {best} if best else set())]
    gone = {c.path for c in former if _try_to_delete(c.path, failed)}
    left = [c for c in own if c.path not in gone]
    removed = above_limit(left, limit, lambda c: _is_among(c.path, keep))
    for old in removed:
        _try_to_delete(old.path, failed)
    return [old.path for old in removed]


def above_limit(
    own: list[CheckpointInfo], limit: int | None, is_kept: Callable[[CheckpointInfo], bool]
) -> list[CheckpointInfo]:
    """The oldest checkpoints of a run above the limit, except the newest and those that are kept."""
    if not limit or len(own) <= limit:
        return []
    return [c for c in own[:-1] if not is_kept(c)][: len(own) - limit]


def remove_leftovers(parent: Path) -> None:
    """Remove the remains of interrupted saves, and nothing else.

    A save may have been interrupted between its two renames: then the new checkpoint is complete but hidden, and is
    renamed now; or the one that it was to replace is restored.
    """
    named = [(p, m) for p in parent.glob(f"{_STAGED}*") if (m := _LEFTOVER.fullmatch(p.name))]
    hidden = [(p, m) for p, m in named if p.is_dir() or p.is_symlink()]
    for state in ("partial", "replaced", "deleted"):
        for path, match in hidden:
            if match[2] != state:
                continue
            target = parent / f"{PREFIX}-{match[1]}"
            if state != "deleted" and not target.exists() and not problems(path):
                logger.warning(
                    "Restoring %s: the save that wrote it was interrupted before the last rename.", target.name
                )
                path.rename(target)
            else:
                logger.warning("Removing %s, the remains of an interrupted save.", path.name)
                try:
                    delete(path)
                except OSError as error:
                    logger.warning("%s could not be removed: %s. Remove it by hand to free its space.", path, error)


def get_last_checkpoint(folder: str | os.PathLike) -> str | None:
    """Path of the newest checkpoint in a directory, or None."""
    if not Path(folder).is_dir():
        raise CheckpointError(f"{folder} is not a directory. Pass the output_dir of a run.")
    every = newest_first(Path(folder))
    # If none is complete, the newest: resuming from it raises an error, whereas None would mean to start over.
    found = next((c for c in every if not c.open().problems(contents=False)), every[0] if every else None)
    return None if found is None else str(found.path)
