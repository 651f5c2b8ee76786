"""A checkpoint of several machines that share no disk: each process uploads the files that it has written.

Files and notes go to where the checkpoint is in the storage; the main process waits for the notes there, and puts the
manifest last.
"""

import json
import logging
import re
import uuid
from pathlib import Path
from typing import Any

from ..checkpoint import sharded, store
from ..errors import CheckpointError, StorageError
from ..formats.durable import files_below
from . import remote_checkpoints
from .mirror import Mirror
from .remote import RemoteDirectory, clean

logger = logging.getLogger(__name__)

_NOTE = re.compile(r"\.part-[0-9]{5}\.json")


def new_place(name: str, is_taken: bool) -> str:
    """Where to upload a checkpoint: a hidden name while another one is under its own."""
    return f".{name}.{uuid.uuid4().hex[:8]}.partial" if is_taken else name


class MultiNodeUpload:
    """One save, as one of its processes sees it: sharded.ShardedSave in object storage. `mirror` is that of the main
    process."""

    poll_seconds = 0.5

    def __init__(self, remote: RemoteDirectory, stage: Path, name: str, place: str, mirror: Mirror | None) -> None:
        self.remote = remote
        self.stage = stage
        self.name = name
        self.remote_name = place
        self.mirror = mirror

    def bytes_needed(self, own: int, total: int) -> int:
        return own

    def _own_files(self) -> dict[str, Path]:
        return {path.relative_to(self.stage).as_posix(): path for path in files_below(self.stage) if path.is_file()}

    def send(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Upload what this process has written, also what overrides have added to it."""
        files = self._own_files()
        facts = facts | {name: store.file_facts(path) for name, path in files.items() if name not in facts}
        self.remote.write(f"{self.remote_name}/{remote_checkpoints.MARK}", b"")
        remote_checkpoints.put_files(self.remote, files, self.remote_name)
        return facts

    # -- notes

    def _note(self, rank: int) -> str:
        return f"{self.remote_name}/.part-{rank:05d}.json"

    def write_note(self, rank: int, facts: dict[str, Any] | None, error: BaseException | None = None) -> None:
        self.remote.write(self._note(rank), sharded.note_text(facts, error).encode())

    def has_note(self, rank: int) -> bool:
        try:
            return self.read_note(rank) is not None
        except CheckpointError:
            return False

    def read_note(self, rank: int) -> dict[str, Any]:
        """Notes stay until all are there. One that is being written may be cut off, where objects are files."""
        try:
            return json.loads(self.remote.read(self._note(rank)))
        except (FileNotFoundError, ValueError) as error:
            raise CheckpointError(f"it is not there: {error}") from None

    def remove_notes(self) -> None:
        pass

    # -- the end, in the main process

    def publish(self, manifest: dict[str, Any]) -> None:
        """Upload the manifest, when everything that it lists has arrived, and what the checkpoint refers to."""
        assert self.mirror is not None
        if self.mirror.lease.is_lost:
            raise StorageError(None, f"another run has taken {self.remote.url}")
        arrived = self.remote.sizes(self.remote_name)
        files = self._own_files()
        data = files.pop(store.MANIFEST).read_bytes()
        late = {name: path for name, path in files.items() if name not in arrived}  # an override has added them
        remote_checkpoints.put_files(self.remote, late, self.remote_name)
        arrived |= {name: path.stat().st_size for name, path in late.items()}
        sizes = {name: facts["bytes"] for name, facts in manifest["files"].items()}
        remote_checkpoints.check_arrived(self.remote, self.remote_name, arrived, sizes)
        self.mirror.complete_references(self.stage, self.name)
        self.remote.delete(f"{self.remote_name}/{name}" for name in arrived if _NOTE.fullmatch(name))
        self.remote.write(f"{self.remote_name}/{store.MANIFEST}", data)
        self.remote.delete([f"{self.remote_name}/{remote_checkpoints.MARK}"])
        if self.remote_name != self.name:
            remote_checkpoints.install(self.remote, self.remote_name, self.name)
        self.mirror.mark_uploaded(self.name, data)

    def abort(self, ranks: range) -> None:
        """Delete what was uploaded, if the others have ended; otherwise the next start of the run does."""
        assert self.mirror is not None
        if self.mirror.lease.is_lost:  # what is there now may be that run's
            return
        try:
            if all(self.has_note(rank) for rank in ranks):
                remote_checkpoints.delete(self.remote, self.remote_name)
        except Exception as error:  # the storage may be the reason
            logger.debug("%s was not deleted from %s: %s", self.remote_name, self.remote.url, clean(error))

    def close(self) -> None:
        """The files of processes that do not commit are in the storage; the main process keeps its own."""
        if self.mirror is None:
            store.discard(self.stage)
