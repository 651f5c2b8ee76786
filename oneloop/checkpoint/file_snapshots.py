"""Copies of files for uploads, which do not change when the originals are replaced or deleted."""

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .directory_lock import DirectoryLock, hold, is_in_use

STAGE = ".pushes"
# Files that are replaced, never modified in place, and may be large: a hard link is as good as a copy.
LINKED = (".safetensors", ".bin", ".pdparams", ".ckpt")
_staged: dict[Path, DirectoryLock] = {}  # snapshots of this process, which others must not take for leftovers


def snapshot(output_dir: Any, files: Iterable[tuple[Path, str]], is_linked: bool = False) -> Path:
    """A folder with these files under these names, which does not change when checkpoints are deleted. If it has to be
    `is_linked`, no large file is copied; OSError if the file system has no hard links."""
    stage = Path(output_dir) / STAGE / uuid.uuid4().hex[:8]
    stage.mkdir(parents=True)
    _staged[stage] = hold(stage)
    try:
        for source, name in files:
            target = stage / name
            target.parent.mkdir(parents=True, exist_ok=True)
            _link_or_copy(source, target, is_linked)
    except BaseException:
        discard(stage)
        raise
    return stage


def _link_or_copy(source: Path, target: Path, is_linked: bool) -> None:
    if source.suffix in LINKED:
        try:
            os.link(source, target)
            return
        except OSError:  # the file system has no hard links
            if is_linked:
                raise
    shutil.copy2(source, target)


def discard(stage: Path) -> None:
    """Remove a snapshot."""
    shutil.rmtree(stage, ignore_errors=True)
    lock = _staged.pop(stage, None)
    if lock is not None:
        lock.release()


def clear(output_dir: Any) -> None:
    """Remove leftovers of the uploads of a run that died. Those of live processes, this one included, are left."""
    folder = Path(output_dir) / STAGE
    for stage in folder.iterdir() if folder.is_dir() else ():
        if not is_in_use(stage):
            shutil.rmtree(stage, ignore_errors=True)
    with contextlib.suppress(OSError):  # not empty, or not there
        folder.rmdir()
