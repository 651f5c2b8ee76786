"""run.jsonl in the output directory: the events of a run, one line each, append-only."""

import json
import logging
import math
import time
from pathlib import Path
from typing import Any

from .. import secrets
from ..formats.durable import append_line

logger = logging.getLogger(__name__)

NAME = "run.jsonl"
LONGEST = 2000  # characters of a string: an error message may contain a whole batch


class Record:
    """Each line has the run's id, the time, the step and the event.

    Each line is a single write in append mode, so a process killed in the middle, or a full disk, leaves at most one
    truncated line, which readers skip; the next one starts on a new line. If writing fails, the run warns and
    continues.
    """

    def __init__(self) -> None:
        self._failed = False

    def add(self, directory: str | Path, event: str, run: str, step: int, facts: dict[str, Any]) -> None:
        entry = {"run": run, "time": round(time.time(), 3), "step": step, "event": event, **facts}
        path = Path(directory) / NAME
        try:
            append_line(path, json.dumps(plain(secrets.clean(entry))).encode())
        except OSError as error:
            if not self._failed:
                logger.warning("Cannot write %s (%s); events of this run will be missing from it.", path, error)
            self._failed = True


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
