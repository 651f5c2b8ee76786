"""Writing that a power failure, a full disk or a kill cannot leave half done: the old content is there, or the new.

A file is durable after fsync of the file, and its name after fsync of the directory that contains it.
"""

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from .reading import open_to_append

# What file systems answer that cannot flush a directory, such as some network file systems.
_CANNOT_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EISDIR}
_NATIVE_ERROR = re.compile(r"\(os error (\d+)\)")


def sync_directory(path: Path) -> None:
    """Flush the names in a directory to the disk, where the file system can do that."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:  # writable but not readable, or Windows
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Flush the names in a directory and in all directories below it; files have been flushed when they were
    written."""
    for path, _, _ in os.walk(folder, topdown=False, onerror=_raise):
        sync_directory(Path(path))


def files_below(folder: Path) -> list[Path]:
    """All files below a directory, sorted. Raises OSError if a directory cannot be read, rather than leave its files
    out."""
    found = [Path(place, name) for place, _, names in os.walk(folder, onerror=_raise) for name in names]
    return sorted(found)


def _raise(error: OSError) -> None:
    raise error


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents, durably."""
    if path.is_dir():
        return
    missing = [path]
    while not os.path.lexists(missing[-1].parent):
        missing.append(missing[-1].parent)
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync_directory(folder.parent)


def remove_tree(path: Path) -> None:
    """Remove as much of a directory as possible; raise the first error if something is left."""
    try:
        shutil.rmtree(path)
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
        if os.path.lexists(path):
            raise


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically and durably. A failure leaves the old one."""
    unfinished = path.with_name(f".{path.name}.partial")
    try:
        with open(unfinished, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def append_line(path: Path, line: bytes) -> None:
    """Append a line to a file in one write. Raises OSError if not all of it is written: a full disk takes a part. The
    next line does not continue a truncated one."""
    descriptor = open_to_append(path)
    try:
        is_torn = False
        if size := os.lseek(descriptor, 0, os.SEEK_END):
            os.lseek(descriptor, size - 1, os.SEEK_SET)
            is_torn = os.read(descriptor, 1) != b"\n"
        rest = memoryview((b"\n" if is_torn else b"") + line + b"\n")
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def native_errors() -> Iterator[None]:
    """Turn errors of the disk into OSError that libraries written in Rust (safetensors, tokenizers) raise as exceptions
    of their own."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        found = _NATIVE_ERROR.search(str(error))
        if found is None:
            raise
        number = int(found[1])
        raise OSError(number, os.strerror(number)) from error
