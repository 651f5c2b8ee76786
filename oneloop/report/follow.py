"""Follows the runs below a directory for `oneloop watch`. New runs are detected; if there is much to read, other
processes read it, so that a page does not have to wait for the last of a thousand logs."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing import TimeoutError, get_context
from os import cpu_count
from pathlib import Path

from ..callbacks.json_log import NAME as LOG
from .downsample import Series
from .log_reader import RECENT, Directory
from .run_folders import find_runs

SEARCH = 5.0  # seconds between searches for new runs
AT_ONCE = 32 << 20  # bytes of logs that are read before the page is served
PARSED = 64 << 20  # bytes of longer logs that are parsed completely, for all runs together
LEAST = 1 << 20  # per run
KEPT = 1_000_000  # points of one metric's curves over all runs; a tenth of that for entries


class Runs:
    """Runs are numbered in the order in which they were found. Hold the lock when calling methods."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.RLock()
        self.directories: list[Directory] = []
        self.unread: set[int] = set()
        self._searched = 0.0
        self._readers: list[threading.Thread] = []
        self._closed = False

    def refresh(self) -> None:
        """Find new runs, and read what is new in the known ones."""
        if time.monotonic() - self._searched >= SEARCH or not self.directories:
            self._searched = time.monotonic()
            known = {directory.folder for directory in self.directories}
            # Until there is a run, the directory itself is expected to become one.
            self._add([path for path in find_runs(self.folder) if path not in known])
        for _, directory in self.ready():
            directory.read_new(self._budget())

    def ready(self) -> Iterator[tuple[int, Directory]]:
        """The runs that have been read, with their numbers."""
        return ((i, directory) for i, directory in enumerate(self.directories) if i not in self.unread)

    def close(self) -> None:
        self._closed = True
        for reader in self._readers:
            reader.join()

    def _budget(self) -> int:
        return max(LEAST, PARSED // max(1, len(self.directories)))

    def _add(self, paths: list[Path]) -> None:
        count = len(self.directories) + len(paths)
        kept = max(256, min(Series.LIMIT, KEPT // max(1, count))), max(50, min(RECENT, KEPT // 10 // max(1, count)))
        new = range(len(self.directories), count)
        self.directories += [Directory(path, *kept) for path in paths]
        if sum(_size(path) for path in paths) <= AT_ONCE:
            return
        self.unread |= set(new)
        reader = threading.Thread(target=self._read, args=(list(new),), daemon=True)
        self._readers.append(reader)
        reader.start()

    def _read(self, numbers: list[int]) -> None:
        """Read runs for the first time; the most recently written first."""
        with self.lock:
            budget = self._budget()
            numbers.sort(key=lambda i: _written(self.directories[i].folder), reverse=True)
            jobs = [(i, self.directories[i], budget) for i in numbers]
        with get_context("spawn").Pool(min(len(jobs), cpu_count() or 1), _ignore_ctrl_c) as pool:  # terminated on exit
            results, left = pool.imap_unordered(read_run, jobs), len(jobs)
            while left and not self._closed:
                with contextlib.suppress(TimeoutError):
                    number, directory = results.next(timeout=0.2)
                    left -= 1
                    with self.lock:
                        self.directories[number] = directory
                        self.unread.discard(number)


def read_run(job: tuple[int, Directory, int]) -> tuple[int, Directory]:
    """In another process: read a run, as far as possible; returns its number and the run."""
    number, directory, budget = job
    with contextlib.suppress(OSError):
        directory.read_new(budget)
    directory.compact()
    return number, directory


def _ignore_ctrl_c() -> None:
    """Ctrl-C is handled by the parent process, which stops this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _size(folder: Path) -> int:
    try:
        return (folder / LOG).stat().st_size
    except OSError:
        return 0


def _written(folder: Path) -> float:
    try:
        return (folder / LOG).stat().st_mtime
    except OSError:
        return 0.0
