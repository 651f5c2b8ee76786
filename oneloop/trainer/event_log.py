"""run.jsonl in the output directory: the events of a run, one line each, append-only."""

import json
import logging
import math
import os
import time
from pathlib import Path
from typing import Any

from .. import secrets

logger = logging.getLogger(__name__)

NAME = "run.jsonl"
LONGEST = 2000  # characters of a string: an error message may contain a whole batch


class Record:
    """Each line has the run's id, the time, the step and the event.

    Each line is a single write in append mode, so a process killed in the middle leaves at most one truncated line,
    which readers skip; the next writer starts a new line. If writing fails, the run warns and continues.
    """

    def __init__(self) -> None:
        self._failed = False
        self._path: Path | None = None

    def add(self, directory: str, event: str, run: str, step: int, facts: dict[str, Any]) -> None:
        entry = {"run": run, "time": round(time.time(), 3), "step": step, "event": event, **facts}
        path = Path(directory) / NAME
        line = json.dumps(secrets.clean(plain(entry))).encode() + b"\n"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
            try:
                if self._path != path and _is_torn(descriptor):
                    line = b"\n" + line
                os.write(descriptor, line)
            finally:
                os.close(descriptor)
            self._path = path
        except OSError as error:
            if not self._failed:
                logger.warning("Cannot write %s (%s); events of this run will be missing from it.", path, error)
            self._failed, self._path = True, None  # a part of the line may have been written


def _is_torn(descriptor: int) -> bool:
    """Whether the file ends in a truncated line."""
    size = os.lseek(descriptor, 0, os.SEEK_END)
    if not size:
        return False
    os.lseek(descriptor, size - 1, os.SEEK_SET)
    return os.read(descriptor, 1) != b"\n"


def plain(value: Any) -> Any:
    """The value in types that JSON supports; a number that is not finite becomes its name."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (int, float, bool, type(None))):
        return value
    text = str(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
