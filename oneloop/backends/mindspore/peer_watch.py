"""Detects which worker on this machine has died: MindSpore does not report it, and msrun's scheduler only after half a
minute.

Workers of one msrun write heartbeats into a directory that is derived from their launcher. A thread checks those of the
others. It can only log: the main thread is blocked in a collective until msrun kills the process.
"""

import contextlib
import logging
import os
import shutil
import tempfile
import threading
from pathlib import Path

from ...distributed.heartbeat import Heartbeat

logger = logging.getLogger(__name__)

EVERY = 1.0  # seconds


class PeerWatch:
    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.folder = _rendezvous_folder()
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.heartbeat = Heartbeat(rank, size, 10 * EVERY, self._write, self._read)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="oneloop-neighbours", daemon=True)
        self._thread.start()

    def _write(self, key: str, text: str) -> None:
        unfinished = self.folder / f".{key}.{self.rank}"
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, self.folder / key)

    def _read(self, key: str) -> str | None:
        with contextlib.suppress(OSError):
            return (self.folder / key).read_text(encoding="utf-8")
        return None

    def _run(self) -> None:
        while not self._stopped.wait(EVERY):
            name = self.heartbeat.find_lost_rank()
            if name:
                logger.error(
                    "%s. This process (%d of %d) cannot continue alone: msrun kills it as soon as its scheduler misses "
                    "the other. Saved checkpoints are complete: start all processes again with "
                    "resume_from_checkpoint=True.",
                    name,
                    self.rank,
                    self.size,
                )
                return

    def close(self) -> None:
        self._stopped.set()
        self._thread.join(2 * EVERY)
        self.heartbeat.stop()
        if all('"left"' in (self._read(str(rank)) or "") for rank in range(self.size)):  # the last one
            shutil.rmtree(self.folder, ignore_errors=True)


def _rendezvous_folder() -> Path:
    """One for each start of msrun: a reused process id has another start time."""
    launcher = os.getppid()
    began = ""
    with contextlib.suppress(OSError, IndexError):
        began = Path(f"/proc/{launcher}/stat").read_text().rpartition(")")[2].split()[19]
    return Path(tempfile.gettempdir()) / f"oneloop-{os.getuid()}-{launcher}-{began}"
