"""Only one run at a time may save into an output directory: another would delete its unfinished checkpoints."""

import contextlib
import errno
import hashlib
import logging
import os
import socket
import struct
import sys
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
_DAY = 86400.0
Key = tuple[int, int]
_held: dict[Key, int] = {}  # descriptors of directories that this process has locked, by device and inode
_names: dict[str, socket.socket] = {}  # their names, which this process has reserved


class DirectoryLock:
    """A lock of a run on its directory, which the system releases when the process ends, however that happens.

    It is a lock (flock) on the directory itself: no file is created in it. Nothing is checked on a file system without
    locks, or within one process. The lock is lost with the directory, so the name is reserved too on Linux, by a socket
    in the abstract namespace: a directory that was deleted and created again lets no other run of this machine in.
    """

    def __init__(self) -> None:
        self._key: Key | None = None
        self._name: str | None = None
        self.is_taken = False  # until release(), also if the directory has been replaced and locked by another run

    def __enter__(self) -> "DirectoryLock":
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()

    def acquire(self, folder: Path, patience: float) -> bool:
        """Whether no other run holds the lock; if one does, wait some seconds for it to end."""
        if fcntl is None:
            return True
        deadline, told = time.monotonic() + patience, False
        while not (self._reserve(folder) and self._lock(folder)):
            if time.monotonic() >= deadline:
                self.release()
                return False
            if not told:
                logger.warning("%s is in use by %s; waiting for it to end.", folder, holder(folder))
                told = True
            time.sleep(0.1)
        return True

    def covers(self, folder: Path) -> bool:
        """Whether this is the directory that was locked, rather than another in its place."""
        try:
            return self._key == _key(os.stat(folder))
        except FileNotFoundError:
            return False

    def move_to(self, folder: Path) -> bool:
        """Lock the directory that is now in the place of the locked one; whether no other run has done so."""
        self._unlock()
        return self._lock(folder)

    def _lock(self, folder: Path) -> bool:
        """Whether the directory is locked by this process, or cannot be locked by any."""
        try:
            descriptor = os.open(folder, os.O_RDONLY)
        except PermissionError:  # a directory that is writable but not readable
            return True
        key = _key(os.fstat(descriptor))
        if key not in _held:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            except OSError:  # a file system without locks
                pass
            else:
                _held[key], self._key, self.is_taken = descriptor, key, True
                return True
        os.close(descriptor)
        return True

    def _reserve(self, folder: Path) -> bool:
        """Whether the name is reserved by this process, or cannot be reserved by any."""
        name = _name(folder)
        if name is None or name in _names:
            return True
        taken = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            taken.bind(name)
            taken.listen(1)  # so that others can ask for the process
        except OSError as error:
            taken.close()
            return error.errno != errno.EADDRINUSE or not _is_of_this_user(name)
        _names[name], self._name = taken, name
        return True

    def _unlock(self) -> None:
        key, self._key = self._key, None
        if key in _held:  # a forked worker no longer has it
            os.close(_held.pop(key))

    def release(self) -> None:
        self._unlock()
        self.is_taken = False
        name, self._name = self._name, None
        if name in _names:
            _names.pop(name).close()


def hold(folder: Path) -> DirectoryLock:
    """A lock on a temporary directory, which tells is_in_use() in other processes that it is no leftover."""
    lock = DirectoryLock()
    lock._lock(folder)
    return lock


def is_in_use(folder: Path) -> bool:
    """Whether a process holds a temporary directory. Where that is unknown, one of the last day is taken for held."""
    try:
        found = os.stat(folder)
        if _key(found) in _held:
            return True
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (OSError, AttributeError):  # a file system, or an operating system, without these locks
        return time.time() - found.st_mtime < _DAY
    finally:
        os.close(descriptor)
    return False


def lock_for_saving(hold: DirectoryLock, folder: Path) -> None:
    """Lock the directory, or raise an error that names the process that has locked it."""
    if not hold.acquire(folder, PATIENCE):
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
    with contextlib.suppress(OSError):
        name = _name(folder)
        if name is not None:
            return f"another run, process {_peer(name)[0]}"
    return "another run"


def _key(found: os.stat_result) -> Key:
    return found.st_dev, found.st_ino


def _name(folder: Path) -> str | None:
    """The abstract address of a directory: its name, and the device and inode of its parent. Containers with a common
    network but disks of their own have different ones."""
    if sys.platform != "linux":
        return None
    place = Path(os.path.realpath(folder))
    try:
        device, inode = _key(os.stat(place.parent))
    except OSError:
        return None
    return "\0oneloop-" + hashlib.sha256(f"{device} {inode} {place.name}".encode(errors="replace")).hexdigest()


def _peer(name: str) -> tuple[int, int]:
    """The process that has reserved a name, and its user."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(1.0)
        asking.connect(name)
        pid, user, _ = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return pid, user


def _is_of_this_user(name: str) -> bool:
    """Whether a run of the same user has reserved the name: others could block it at will."""
    try:
        return _peer(name)[1] == os.getuid()
    except OSError:  # it is just ending, or being asked by others
        return True


def _release_in_forked_child() -> None:
    """Release the lock in a forked worker, which may outlive its main process and must not keep the directory
    locked."""
    for descriptor in _held.values():
        with contextlib.suppress(OSError):
            os.close(descriptor)
    for taken in _names.values():
        taken.close()
    _held.clear()
    _names.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_forked_child)
