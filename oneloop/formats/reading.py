"""Opens files of checkpoints and run directories: the only place where these are opened for reading.

Such a file may be damaged, or made by somebody else. Only regular files are read, since a FIFO or a device may block or
never end; sizes and the nesting of JSON are limited; and what is wrong is a CheckpointError that says so.
"""

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import CheckpointError, OneloopError

LARGEST = 1 << 30  # bytes of a JSON file; the history of a long run has some tens of millions
DEEPEST = 100  # levels of nested lists and objects in a JSON file
LONGEST_LINE = 1 << 24  # bytes of a line of a log; longer ones are skipped

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file; anything else is an OSError."""
    return os.fdopen(_descriptor(path, os.O_RDONLY), "rb")


def open_to_append(path: str | os.PathLike[str]) -> int:
    """The descriptor of a regular file to read and append to, which is created if it does not exist."""
    return _descriptor(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)


def _descriptor(path: str | os.PathLike[str], flags: int) -> int:
    # O_NONBLOCK: opening a FIFO would wait for somebody at its other end. It changes nothing for regular files.
    for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY"):
        flags |= getattr(os, name, 0)
    descriptor = os.open(path, flags, 0o666)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
            raise OSError(errno.EINVAL, f"it is {kind} and not a regular file", str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_bytes(path: Path, limit: int = LARGEST) -> bytes:
    """The contents of a file of at most `limit` bytes."""
    try:
        with open_file(path) as f:
            size = os.fstat(f.fileno()).st_size
            data = b"" if size > limit else f.read(size + 1)  # memory for as many bytes is taken, whatever there is
            if len(data) > size:  # it has grown since
                data += f.read(limit + 1 - len(data))
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CheckpointError(f"{path.name} cannot be read: {reason}") from error
    if size > limit or len(data) > limit:
        raise CheckpointError(f"{path.name} has {max(size, len(data))} bytes; at most {limit} are read")
    return data


def read_json(path: Path, limit: int = LARGEST) -> Any:
    """The value in a JSON file."""
    return parse_json(read_bytes(path, limit), path.name)


def parse_json(data: bytes, source: str) -> Any:
    """The value in the bytes of a JSON file. NaN and infinities are accepted here: some trainers write them, and rules
    decide where a number has to be finite."""
    try:
        value = json.loads(data.decode("utf-8"))
    except RecursionError:
        raise CheckpointError(f"{source} is nested more than {DEEPEST} levels deep") from None
    except ValueError as error:
        raise CheckpointError(f"{source} is not valid JSON: {error}") from error
    if not _is_flat_enough(value):
        raise CheckpointError(f"{source} is nested more than {DEEPEST} levels deep")
    return value


def _is_flat_enough(value: Any) -> bool:
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return True
    return False


def json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file, for callers that can continue without it: empty if it cannot be read."""
    try:
        value = read_json(path)
    except CheckpointError:
        return {}
    return value if isinstance(value, dict) else {}


def lines(path: Path) -> Iterator[bytes]:
    """The lines of a file one by one, with their ends. Lines that are too long for a log are left out."""
    with open_file(path) as f:
        is_skipping = False
        while line := f.readline(LONGEST_LINE):
            is_whole = line.endswith(b"\n") or len(line) < LONGEST_LINE
            if is_whole and not is_skipping:
                yield line
            is_skipping = not is_whole


def log_entry(line: bytes | str) -> dict[str, Any] | None:
    """The object in a line of a log; None if there is none, as in a line cut off when its writer died."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) and _is_flat_enough(entry) else None


@contextlib.contextmanager
def restoring(what: str, source: Any) -> Iterator[None]:
    """Turn an error of code that restores a state (of a framework, a library or a script) into one that names the part
    of the checkpoint."""
    try:
        yield
    except (OneloopError, MemoryError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise CheckpointError(
            f"{what} cannot be restored from {source}: {reason}. The checkpoint is corrupt, or was written by a run "
            "with another configuration."
        ) from error
