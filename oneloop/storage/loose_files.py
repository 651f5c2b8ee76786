"""Files of the output directory outside of checkpoints: logs, the model of save_model, what callbacks write."""

import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from ..checkpoint import store
from ..checkpoint.saved_model import ENTRIES, WEIGHTS_NAME
from .remote import RemoteDirectory

logger = logging.getLogger(__name__)

# What a resumed run continues: its events, its logs and its curve.
RECORDS = ("run.jsonl", "log.jsonl", "curve.jsonl")
MARKS = ".reported"  # how far services have been told
_CHECKPOINT = re.compile(rf"{store.PREFIX}-[0-9]+(\..*)?")


class LooseFiles:
    """Which of them have been uploaded. Created for each run."""

    def __init__(self, remote: RemoteDirectory, folder: Path) -> None:
        self.remote = remote
        self.folder = folder
        self._sent: dict[str, tuple[int, int]] = {}  # size and time of change, by name
        self._lock = threading.Lock()  # of two uploads of a file, the earlier might arrive last

    def upload(self, is_all: bool = True) -> None:
        """Upload those that have changed, or the logs alone. Returns when they have arrived, whoever uploads them."""
        with self._lock:
            self._upload(is_all)

    def _upload(self, is_all: bool) -> None:
        changed: dict[str, tuple[Path, tuple[int, int]]] = {}
        for name, path in self._files() if is_all else self._records():
            try:
                found = path.stat()
            except FileNotFoundError:
                continue
            facts = found.st_size, found.st_mtime_ns
            if self._sent.get(name) != facts:
                changed[name] = path, facts
        sets: dict[str, list[str]] = {}  # files that readers open together, by directory
        for name in changed:
            if _is_of_model(name):
                sets.setdefault(_parent(name), []).append(name)
        self._send(changed, [name for name in changed if not _is_of_model(name)])
        for parent, names in sets.items():
            self._send_model(changed, parent, names)

    def _send(self, changed: dict[str, tuple[Path, tuple[int, int]]], names: list[str]) -> None:
        def send(name: str) -> None:
            path, facts = changed[name]
            try:
                self.remote.upload(path, name)
            except FileNotFoundError:
                if path.exists():
                    raise
                return  # deleted meanwhile
            self._sent[name] = facts

        self.remote.each(send, names)

    def _send_model(self, changed: dict[str, tuple[Path, tuple[int, int]]], parent: str, names: list[str]) -> None:
        """Weights in several files replace others: without its entry nobody reads the model meanwhile."""
        there = self.remote.files(parent)
        entries = [name for name in names if PurePosixPath(name).name in ENTRIES]
        former = {PurePosixPath(parent, name).as_posix() for name in there if _is_of_model(name)}
        gone = sorted(name for name in former if not (self.folder / name).exists())
        if len(names) > 1 or gone:
            self.remote.delete(name for name in former if PurePosixPath(name).name in ENTRIES)
        self._send(changed, [name for name in names if name not in entries])
        self._send(changed, entries)
        self.remote.delete(gone)

    def _records(self) -> Iterator[tuple[str, Path]]:
        for name in RECORDS:
            yield name, self.folder / name

    def _files(self) -> Iterator[tuple[str, Path]]:
        """All files except checkpoints and hidden files."""
        for path in store.files_below(self.folder):
            parts = path.relative_to(self.folder).parts
            is_hidden = any(part.startswith(".") for part in parts) and parts[0] != MARKS
            if path.is_file() and not is_hidden and not _CHECKPOINT.fullmatch(parts[0]):
                yield "/".join(parts), path


def _is_of_model(name: str) -> bool:
    last = PurePosixPath(name).name
    return WEIGHTS_NAME.fullmatch(last) is not None or last in ENTRIES


def _parent(name: str) -> str:
    return "" if "/" not in name else name.rpartition("/")[0]


def download_records(remote: RemoteDirectory, folder: Path, is_ahead: bool) -> None:
    """Continue the logs of the storage: those that are longer than here, or all if the run `is_ahead` there. They only
    grow."""
    there = {name: size for name, size in remote.files("").items() if name in RECORDS}
    there |= {f"{MARKS}/{name}": 0 for name in (remote.files(MARKS) if MARKS in remote.folders() else {})}
    for name, size in there.items():
        path = folder / name
        if is_ahead or not path.exists() or size > path.stat().st_size:
            stage = path.with_name(f".{path.name}.partial")
            try:
                remote.download(name, stage)
                stage.replace(path)
            finally:
                stage.unlink(missing_ok=True)
