"""Reads growing JSON Lines files, completely or in part, without loading them into memory."""

import contextlib
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..formats.reading import log_entry, open_file
from .log_sampling import sections

BLOCK = 1 << 20


class Tail:
    """New complete lines of a file since the last read. A replaced or truncated file is read from its start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.generation = 0  # how often reading restarted
        self.is_complete = True  # nothing was skipped because of a budget
        self._offset = 0
        self._file = -1  # inode

    def restart(self) -> None:
        """Read the file from its start again."""
        if self._file != -1:
            self.generation += 1
        self._offset, self.is_complete = 0, True

    def read(self, budget: int | None = None) -> Iterator[list[dict[str, Any]]]:
        """The entries of the lines, a block at a time. New bytes beyond the budget are sampled."""
        with contextlib.ExitStack() as stack:
            try:
                f = stack.enter_context(open_file(self.path))
            except OSError:
                return
            facts = os.fstat(f.fileno())
            if facts.st_ino != self._file or facts.st_size < self._offset:
                if self._file != -1:
                    self.generation += 1
                self._file, self._offset, self.is_complete = facts.st_ino, 0, True
            if budget is not None and facts.st_size - self._offset > budget:
                self.is_complete = False
                found = sections(f, self._offset, budget)
                while some := list(itertools.islice(found, 100)):  # many short lines are parsed faster together
                    self._offset = some[-1][1]
                    yield parse(b"\n".join(passage for passage, _ in some))
            f.seek(self._offset)
            rest = b""  # start of a line that continues in the next block, or is still being written
            while block := f.read(BLOCK):
                whole, newline, rest = (rest + block).rpartition(b"\n")
                if newline:
                    self._offset += len(whole) + 1
                    yield parse(whole)


def parse(text: bytes) -> list[dict[str, Any]]:
    """The objects in complete lines; a line cut off when its writer died is skipped."""
    lines = [line for line in text.split(b"\n") if line]
    try:  # all at once is twice as fast
        found = json.loads((b"[" + b",".join(lines) + b"]").decode("utf-8"))
    except (ValueError, RecursionError):
        return [entry for line in lines if (entry := log_entry(line)) is not None]
    return [entry for entry in found if isinstance(entry, dict)]
