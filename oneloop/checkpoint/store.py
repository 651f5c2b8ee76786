"""Checkpoint directories: staged under a hidden name, committed by their manifest, found and rotated by step.

`checkpoint-N/` is complete only with a valid `manifest.json`, which is written last: sizes and checksums of all files,
the step, and the id of the run that wrote it.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..converters import other_trainers
from ..errors import CheckpointError
from ..formats import structure
from ..formats.durable import files_below, make_directory, remove_tree, sync_directory, sync_tree
from ..formats.reading import open_file
from ..formats.safetensors_io import write_bytes
from ..formats.schema import shown
from ..formats.structure import MANIFEST

logger = logging.getLogger(__name__)

FORMAT = 1
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
class Checkpoint:
    """A checkpoint directory; run_id is None if another trainer wrote it."""

    path: Path
    step: int
    run_id: str | None
    written: float
    generation: int = 0  # higher in a run that began later in this directory
    reason: str | None = None  # why it was saved

    @property
    def order(self) -> tuple[int, float]:
        """By which the run that wrote last is found. Clocks may be set back; generations only grow."""
        return self.generation, self.written


def new_run_id() -> str:
    return uuid.uuid4().hex[:16]


def checksum(path: Path) -> str:
    with open_file(path) as f:
        return hashlib.file_digest(f, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _digest(f)


def _digest(f: Any) -> str:
    digest = hashlib.sha256()
    while block := f.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


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
    unsealed: bool = False,
    generation: int | None = None,
    publish: Callable[[dict[str, Any]], None] = lambda manifest: None,
) -> Path:
    """Commit a staged directory as the checkpoint of its step: write the manifest last, then rename once.

    The order matters: a process that is killed at any point leaves either no checkpoint or a complete one, and so does
    a power failure: everything is flushed before the rename, and the rename before anything is deleted. `facts` are the
    entries of files whose checksum was computed while writing; other files are read for theirs. An `unsealed` one is
    complete too, but an override may add files until seal(); it may also have written some under the final path.
    `generation` is that of the run, see next_generation(). `publish` is called with the manifest before the rename;
    there is no checkpoint if it fails.
    """
    target = folder.parent / f"{PREFIX}-{step}"
    if unsealed:
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
        "generation": next_generation(folder.parent, run_id) if generation is None else generation,
        "files": dict(sorted(files.items())),
    }
    if unsealed:
        manifest["unsealed"] = True
    write_bytes(folder / MANIFEST, [json.dumps(manifest, indent=1).encode()])
    sync_tree(folder)
    publish(manifest)
    take_place(folder, target)
    return target


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
    if not target.is_dir() or is_foreign(target):
        return
    earlier: dict[str, Any] = read_manifest(target) or {"files": {}, "written": 0.0}
    for name, path in _files(target):
        is_new = name not in earlier["files"] or path.stat().st_mtime > earlier["written"]
        if is_new and not _OWN_FILES.fullmatch(name) and not (folder / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, folder / name)


def fingerprints(path: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of each file, by which seal() recognises those that are unchanged."""
    return {name: (file.stat().st_size, file.stat().st_mtime_ns) for name, file in _files(path)}


def seal(path: Path, known: dict[str, tuple[int, int]]) -> None:
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


def unlisted(path: Path) -> list[str]:
    """Files that an override wrote into a checkpoint, and that are not verified: the run ended before seal()."""
    manifest = read_manifest(path)
    if manifest is None or not manifest.get("unsealed"):
        return []
    return [name for name, _ in _files(path) if name not in manifest["files"]]


def take_place(folder: Path, target: Path) -> None:
    """Move an existing checkpoint aside until the new one is in its place.

    One of another trainer is kept under another name, since we must not delete it.
    """
    old = kept = None
    if is_foreign(target):
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
    elif os.path.lexists(target):
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


def is_foreign(path: Path) -> bool:
    """Whether a checkpoint was written by another library's Trainer, rather than an incomplete one of ours."""
    return not (path / MANIFEST).exists() and other_trainers.library_of(path) is not None


def read_manifest(path: Path) -> dict[str, Any] | None:
    """The manifest of a checkpoint directory; None if it is missing or invalid."""
    try:
        return structure.load_manifest(path)
    except CheckpointError:
        return None


def problems(path: Path, contents: bool = True) -> list[str]:
    """Why a checkpoint is incomplete or corrupt; without `contents`, only names and sizes are compared."""
    if is_foreign(path):
        return other_trainers.problems(path, contents)
    try:
        manifest = structure.load_manifest(path)
    except CheckpointError as error:
        reason = f": {error}" if (path / MANIFEST).exists() else ""
        return [f"{MANIFEST} is missing or cannot be read{reason}"]
    if manifest["format"] != FORMAT:
        return [f"its format is {shown(manifest['format'])}; this release reads format {FORMAT}"]
    wrong = structure.wrong_step(path, manifest)
    found = [] if wrong is None else [wrong]
    for name, facts in manifest["files"].items():
        file = path / name
        try:
            if not file.is_file():
                found.append(f"{name} is missing")
            elif file.stat().st_size != facts["bytes"]:
                found.append(f"{name} has {file.stat().st_size} bytes instead of {facts['bytes']}")
            elif contents and checksum(file) != facts["sha256"]:
                found.append(f"{name} has changed since it was written (checksum)")
        except OSError as error:
            found.append(f"cannot read {name}: {error}")
    if not found and structure.STATE not in manifest["files"]:
        found.append(f"{MANIFEST} does not list {structure.STATE}")
    return found or (structure.problems(path, manifest) if contents else [])


def find(parent: Path) -> list[Checkpoint]:
    """All checkpoints in a directory, by step. Those without our manifest, or with that of another step, have no
    run."""
    found = []
    for path in parent.iterdir() if parent.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match is None or not path.is_dir():
            continue
        manifest = read_manifest(path)
        if manifest is not None and structure.wrong_step(path, manifest) is None:
            written, generation = float(manifest["written"]), _generation(manifest)
            reason = manifest.get("reason")
            found.append(Checkpoint(path, int(match[1]), manifest["run_id"], written, generation, reason))
            continue
        with contextlib.suppress(FileNotFoundError):  # another run may have deleted it
            found.append(Checkpoint(path, int(match[1]), None, path.stat().st_mtime))
    return sorted(found, key=lambda c: (c.step, c.written))


def latest(parent: Path) -> Checkpoint | None:
    """The newest checkpoint of the run that wrote last."""
    every = find(parent)
    own = [c for c in every if c.run_id is not None]
    if not own:
        return every[-1] if every else None
    newest = max(own, key=lambda c: c.order)
    return max((c for c in own if c.run_id == newest.run_id), key=lambda c: c.step)


def next_generation(parent: Path, run_id: str) -> int:
    """The generation of the checkpoints that this run is about to write: above those of all other runs."""
    return generation_after(find(parent), run_id)


def generation_after(every: list[Checkpoint], run_id: str) -> int:
    """The same, for these checkpoints."""
    newest = max((c for c in every if c.run_id is not None), key=lambda c: c.order, default=None)
    if newest is None:
        return 1
    return newest.generation if newest.run_id == run_id and newest.generation else newest.generation + 1


def _generation(manifest: dict[str, Any]) -> int:
    """0 in checkpoints of releases without it."""
    value = manifest.get("generation", 0)
    return value if type(value) is int and 0 <= value < 2**53 else 0


def newest_first(parent: Path) -> list[Checkpoint]:
    """The checkpoints of the run that wrote last, newest first; then those of others. An incomplete one that is newer
    than all of them comes first, so that a resume warns about it: the user may expect it to be used."""
    every = find(parent)
    last = latest(parent)
    if last is None:
        return []
    torn = [c for c in every if c.run_id is None and c.step > last.step and not is_foreign(c.path)]
    own = [c for c in every if c.run_id == last.run_id]
    rest = [c for c in every if c.run_id != last.run_id and c not in torn]
    return torn[::-1] + own[::-1] + sorted(rest, key=lambda c: c.order, reverse=True)


def forget_superseded(parent: Path, run_id: str, best: str | None, failed: Failed) -> None:
    """Delete checkpoints that were kept only as the best and no longer are."""
    for old in find(parent):
        if old.run_id == run_id and old.reason == "best" and not _is_among(old.path, {best} if best else set()):
            _try_to_delete(old.path, failed)


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


def _try_to_delete(path: Path, failed: Failed) -> None:
    try:
        delete(path)
    except FileNotFoundError:  # somebody else has deleted it
        pass
    except OSError as error:
        failed(path, error)


def _is_among(path: Path, kept: set[str]) -> bool:
    """Whether one of these paths, possibly in another notation, is this one."""
    return path.resolve() in {Path(other).resolve() for other in kept}


def rotate(
    parent: Path, run_id: str, limit: int | None, keep: set[str], failed: Failed = lambda path, error: None
) -> list[Path]:
    """Delete the oldest checkpoints of this run above the limit, except the newest and those in `keep`; returns their
    paths. `failed` is called for each that cannot be deleted; no newer one is deleted in its place.

    The one just written must be in `keep`: a run that resumed from an earlier checkpoint may have corrupt ones after
    it.
    """
    removed = above_limit([c for c in find(parent) if c.run_id == run_id], limit, lambda c: _is_among(c.path, keep))
    for old in removed:
        _try_to_delete(old.path, failed)
    return [old.path for old in removed]


def above_limit(own: list[Checkpoint], limit: int | None, is_kept: Callable[[Checkpoint], bool]) -> list[Checkpoint]:
    """Of the checkpoints of a run, by step: the oldest above the limit, except the newest and those that are kept."""
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
    found = next((c for c in every if not problems(c.path, contents=False)), every[0] if every else None)
    return None if found is None else str(found.path)
