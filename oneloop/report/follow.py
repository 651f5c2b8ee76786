"""The runs below a directory, followed for `oneloop watch`. They are found as they come; where there is much to read,
other processes read it, so that nobody waits for a page until the last of a thousand logs was gone through."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing import TimeoutError, get_context
from os import cpu_count
from pathlib import Path

from ..integrations.writers.json_log import NAME as LOG
from .downsample import Series
from .log_reader import RECENT, Directory, find_runs

SEARCH = 5.0  # seconds between two looks for new runs
AT_ONCE = 32 << 20  # bytes of logs that are read while somebody waits
PARSED = 64 << 20  # bytes of longer ones that are read line by line, all runs together
LEAST = 1 << 20  # of each run
KEPT = 1_000_000  # points of all runs' curves of one figure, and a tenth of that of entries


class Runs:
    """A run's number is its place among those that were found. Ask with the lock held."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.RLock()
        self.found: list[Directory] = []
        self.unread: set[int] = set()
        self._searched = 0.0
        self._readers: list[threading.Thread] = []
        self._closed = False

    def look(self) -> None:
        """Find new runs, and read what the known ones have written."""
        if time.monotonic() - self._searched >= SEARCH or not self.found:
            self._searched = time.monotonic()
            known = {directory.folder for directory in self.found}
            # Until a run is there, the directory itself is where one is expected.
            self._add([path for path in find_runs(self.folder) if path not in known])
        for _, directory in self.ready():
            directory.look(self._budget())

    def ready(self) -> Iterator[tuple[int, Directory]]:
        """Those that were read, by their numbers."""
        return ((i, directory) for i, directory in enumerate(self.found) if i not in self.unread)

    def close(self) -> None:
        self._closed = True
        for reader in self._readers:
            reader.join()

    def _budget(self) -> int:
        return max(LEAST, PARSED // max(1, len(self.found)))

    def _add(self, paths: list[Path]) -> None:
        count = len(self.found) + len(paths)
        kept = max(256, min(Series.LIMIT, KEPT // max(1, count))), max(50, min(RECENT, KEPT // 10 // max(1, count)))
        new = range(len(self.found), count)
        self.found += [Directory(path, *kept) for path in paths]
        if sum(_size(path) for path in paths) <= AT_ONCE:
            return
        self.unread |= set(new)
        reader = threading.Thread(target=self._read, args=(list(new),), daemon=True)
        self._readers.append(reader)
        reader.start()

    def _read(self, numbers: list[int]) -> None:
        """Read runs for the first time; those that wrote last come first."""
        with self.lock:
            budget = self._budget()
            numbers.sort(key=lambda i: _written(self.found[i].folder), reverse=True)
            jobs = [(i, self.found[i], budget) for i in numbers]
        with get_context("spawn").Pool(min(len(jobs), cpu_count() or 1), _leave_ctrl_c) as pool:  # ended on leaving
            results, left = pool.imap_unordered(first_look, jobs), len(jobs)
            while left and not self._closed:
                with contextlib.suppress(TimeoutError):
                    number, directory = results.next(timeout=0.2)
                    left -= 1
                    with self.lock:
                        self.found[number] = directory
                        self.unread.discard(number)


def first_look(job: tuple[int, Directory, int]) -> tuple[int, Directory]:
    """In another process: a run's number, and the run as far as it could be read."""
    number, directory, budget = job
    with contextlib.suppress(OSError):
        directory.look(budget)
    directory.compact()
    return number, directory


def _leave_ctrl_c() -> None:
    """It is for the process that watches; this one ends with it."""
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
