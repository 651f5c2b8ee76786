"""Only one run at a time may save into an output directory: another would delete its unfinished checkpoints."""

import contextlib
import logging
import os
import time
from pathlib import Path
from typing import Any

from ..errors import CheckpointError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

PATIENCE = 10.0  # seconds in which an interrupted run may write its last checkpoint
_held: dict[tuple[int, int], int] = {}  # descriptors of directories that this process has locked, by device and inode


class DirectoryLock:
    """A lock of a run on its directory, which the system releases when the process ends, however that happens.

    It is a lock (flock) on the directory itself: no file is created in it. Nothing is checked on a file system without
    locks, or within one process.
    """

    def __init__(self) -> None:
        self._key: tuple[int, int] | None = None

    def __enter__(self) -> "DirectoryLock":
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()

    def take(self, folder: Path, patience: float) -> bool:
        """Whether no other run holds the lock; if one does, wait some seconds for it to end."""
        if fcntl is None:
            return True
        try:
            descriptor = os.open(folder, os.O_RDONLY)
        except PermissionError:  # a directory that is writable but not readable
            return True
        key = _key(os.fstat(descriptor))
        deadline, told = time.monotonic() + patience, False
        while key not in _held:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(descriptor)
                    return False
                if not told:
                    logger.warning("%s is in use by %s; waiting for it to end.", folder, holder(folder))
                    told = True
                time.sleep(0.1)
            except OSError:  # a file system without locks
                break
            else:
                _held[key], self._key = descriptor, key
                return True
        os.close(descriptor)
        return True

    def release(self) -> None:
        key, self._key = self._key, None
        if key in _held:  # a forked worker no longer has it
            os.close(_held.pop(key))


def lock_for_saving(hold: DirectoryLock, folder: Path) -> None:
    """Lock the directory, or raise an error that names the process that has locked it."""
    if not hold.take(folder, PATIENCE):
        raise CheckpointError(
            f"output_dir {str(folder)!r} is in use by {holder(folder)}: two runs would delete each other's "
            "checkpoints. Wait for it to end, stop it, or choose another output_dir."
        )


def holder(folder: Path) -> str:
    """The process that has locked a directory, as far as the system reports it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        inode = str(folder.stat().st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()  # 1: FLOCK ADVISORY WRITE pid major:minor:inode start end
            if words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode and int(words[4]) > 0:
                return f"another run, process {words[4]}"
    return "another run"


def _key(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _leave_to_parent() -> None:
    """Release the lock in a forked worker, which may outlive its main process and must not keep the directory
    locked."""
    for descriptor in _held.values():
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
