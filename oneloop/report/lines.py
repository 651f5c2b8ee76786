"""Files of JSON lines, read as they grow, whole or in part, without ever holding one in memory."""

import contextlib
import json
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 1 << 20
SAMPLE = 1 << 12
RARE = b'_runtime"'  # evaluations, and the end of a run, have it; the logs of steps do not


class Tail:
    """New whole lines of a file since the last look. A file that was replaced or cut is read from its beginning."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.generation = 0  # counts how often it began anew
        self._offset = 0
        self._file = -1  # inode

    def read(self) -> Iterator[list[dict[str, Any]]]:
        """The entries of the lines, a block at a time."""
        with contextlib.ExitStack() as stack:
            try:
                f = stack.enter_context(open(self.path, "rb"))
            except OSError:
                return
            facts = os.fstat(f.fileno())
            if facts.st_ino != self._file or facts.st_size < self._offset:
                if self._file != -1:
                    self.generation += 1
                self._file, self._offset = facts.st_ino, 0
            f.seek(self._offset)
            rest = b""  # of a line that goes on in the next block, or is still being written
            while block := f.read(BLOCK):
                whole, newline, rest = (rest + block).rpartition(b"\n")
                if newline:
                    self._offset += len(whole) + 1
                    yield parse(whole)


def parse(text: bytes) -> list[dict[str, Any]]:
    """The objects in whole lines; a line that was torn when its writer died is passed over."""
    lines = [line for line in text.split(b"\n") if line]
    try:  # all at once is twice as fast
        found = json.loads((b"[" + b",".join(lines) + b"]").decode("utf-8"))
    except (ValueError, RecursionError):
        found = [_parse(line) for line in lines]
    return [entry for entry in found if isinstance(entry, dict)]


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def sample(path: Path, budget: int) -> tuple[Iterator[list[dict[str, Any]]], bool]:
    """(blocks of entries, whether that is all of them): a file above the budget of bytes is read in evenly spaced
    blocks. Of the stretches between, the lines of evaluations are picked out, so that no metric is missed."""
    try:
        size = path.stat().st_size
    except OSError:
        return iter(()), True
    if size <= budget:
        return Tail(path).read(), True
    return _sample(path, size, budget), False


def _sample(path: Path, size: int, budget: int) -> Iterator[list[dict[str, Any]]]:
    count = max(2, budget // SAMPLE)
    with open(path, "rb") as f, mmap.mmap(f.fileno(), size, access=mmap.ACCESS_READ) as text:
        done = 0
        for i in range(count):
            start = max(done, (size - SAMPLE) * i // (count - 1))
            if start > done:
                start = text.find(b"\n", start) + 1 or size
                yield _rare(text, done, start)
            done = text.rfind(b"\n", start, min(size, start + SAMPLE)) + 1 or start
            yield parse(text[start:done])


def _rare(text: mmap.mmap, start: int, end: int) -> list[dict[str, Any]]:
    found = []
    while (place := text.find(RARE, start, end)) >= 0:
        line = text.rfind(b"\n", start, place) + 1 or start
        start = text.find(b"\n", place) + 1 or end
        found.append(text[line : start - 1])
    return parse(b"\n".join(found))
