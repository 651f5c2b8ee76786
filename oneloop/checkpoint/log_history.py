"""The log history in a checkpoint: complete up to a limit. Beyond it, a checkpoint has the last entries, and the number
and the digest of those before, which log.jsonl in the output directory has. A save costs the same at any age of a run.
"""

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

from ..formats.reading import lines, log_entry
from ..state import TrainerState, from_plain, row, to_plain
from .reader import Checkpoint

logger = logging.getLogger(__name__)

COMPLETE = 10_000  # entries that trainer_state.json has at most
TAIL = 1_000  # entries that it has of a longer history
LOG = "log.jsonl"
MARK = "omitted"  # the key of an entry that stands for those that are left out
_CONSTANT = (float, int, str, type(None))
# Keys of a line in log.jsonl that are not in the history.
ADDED = (
    *("run", "time", "memory_bytes", "device_memory_bytes", "device_peak_bytes"),
    *("steps_per_second", "samples_per_second", "tokens_per_second", "useful_tokens_per_second", "mfu", "data_wait"),
)


class LogHistory:
    """The texts of entries, and the digest of those that checkpoints leave out: each is made once. Created for each
    run."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[Any, Any, str]] = {}  # id of an entry -> entry, its values then, text
        self._count = 0
        self._digest = hashlib.sha256()
        self._last: Any = None  # the last entry in the digest, to notice when somebody has changed the history

    def to_json(self, state: TrainerState) -> str:
        """trainer_state.json of a checkpoint."""
        rows: dict[int, tuple[Any, Any, str]] = {}
        entries = self.stored(state.log_history)
        for entry in entries:
            known = self._rows.get(id(entry))
            if known is None or known[0] is not entry or not _is_as_before(entry, known[1]):
                known = (entry, _values(entry), row(entry))
            rows[id(entry)] = known
        self._rows = rows
        return state.with_rows([rows[id(entry)][2] for entry in entries])

    def stored(self, history: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What a checkpoint stores of a history."""
        if len(history) <= COMPLETE:
            return list(history)
        omitted = len(history) - TAIL
        if omitted < self._count or (self._count and history[self._count - 1] is not self._last):
            self._count, self._digest = 0, hashlib.sha256()
        for entry in history[self._count : omitted]:
            self._digest.update(_canonical(entry))
        self._count, self._last = omitted, history[omitted - 1]
        about = {"entries": omitted, "sha256": self._digest.hexdigest(), "file": LOG}
        return [{MARK: about, "step": self._last.get("step", 0)}, *history[omitted:]]


def restored(stored: list[dict[str, Any]], checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """The history of a checkpoint, with the entries that log.jsonl beside it has of its run."""
    about, folder = stored[0].get(MARK) if stored else None, checkpoint.path.parent
    if not isinstance(about, dict):
        return stored
    try:
        found = _first_entries(folder / LOG, checkpoint.manifest["run_id"], int(about["entries"]))
        digest = hashlib.sha256()
        for entry in found:
            digest.update(_canonical(entry))
        if len(found) == about["entries"] and digest.hexdigest() == about["sha256"]:
            return [*found, *stored[1:]]
        why = f"{folder / LOG} does not have them as they were logged"
    except (OSError, KeyError, TypeError, ValueError) as error:
        why = f"{folder / LOG} cannot be read ({error})"
    logger.warning(
        "The first %s entries of the log history are missing: %s. The run resumes with the last %d; training is not "
        "affected.",
        about.get("entries"),
        why,
        len(stored) - 1,
    )
    return stored[1:]


def _first_entries(path: Path, run_id: str, count: int) -> list[dict[str, Any]]:
    """The entries of the first lines of a run."""
    found: list[dict[str, Any]] = []
    for line in lines(path):
        if len(found) >= count:
            break
        entry = log_entry(line)
        if entry is not None and entry.get("run") == run_id:
            found.append(entry_of(entry))
    return found


def entry_of(line: dict[str, Any]) -> dict[str, Any]:
    """The entry of the history that a line of log.jsonl was written for."""
    return {key: from_plain(value) for key, value in line.items() if key not in ADDED}


def missing_lines(history: list[dict[str, Any]], own_lines: int) -> list[dict[str, Any]]:
    """Entries that a later checkpoint may leave out and that log.jsonl lacks: the run was branched from another one, or
    the file is gone."""
    return history if len(history) >= TAIL and own_lines == 0 else []


def _values(entry: dict[str, Any]) -> dict[str, Any] | None:
    """A copy to compare the entry with; None if it has a value that can change inside."""
    return dict(entry) if all(isinstance(value, _CONSTANT) for value in entry.values()) else None


def _is_as_before(entry: dict[str, Any], before: dict[str, Any] | None) -> bool:
    """Whether the values are those of an earlier save: callbacks may have changed them, or added some."""
    try:
        return entry == before
    except ValueError:  # of an array, which has no truth
        return False


def _canonical(entry: dict[str, Any]) -> bytes:
    return json.dumps(to_plain(entry), sort_keys=True, separators=(",", ":")).encode() + b"\n"
