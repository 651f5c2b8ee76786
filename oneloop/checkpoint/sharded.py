"""A checkpoint that several processes write: each its own files, one of them the manifest.

A process that has written its files leaves a note with their manifest entries; the one that commits waits for the notes
of the others, removes them, and writes the manifest. Notes instead of a collective, because background threads must not
interleave collectives with those of training. Files and notes are in a directory that all of them have access to, or in
object storage (storage/multi_node_upload.py).
"""

import contextlib
import errno
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from ..distributed.collectives import ProcessGroup
from ..errors import CheckpointError, NonFiniteError
from ..formats.durable import sync_directory
from ..formats.reading import read_json
from ..formats.safetensors_io import Raw
from ..secrets import clean_text
from . import capture
from .capture import Contents, split
from .writer import Waiting

KINDS = ("model", "optimizer")
_POLL_SECONDS = 0.02  # seconds between two checks for notes
_GRACE_SECONDS = 30.0  # seconds that the others have once the run is ending with an error


def _note(stage: Path, rank: int) -> Path:
    return stage / f".part-{rank:05d}.json"


def note_text(facts: dict[str, Any] | None, error: BaseException | None = None) -> str:
    """The files of a process with their manifest entries, or the error that kept it from writing them."""
    number = getattr(error, "errno", None) or (errno.EIO if error is not None else 0)
    values = isinstance(error, NonFiniteError)
    why = "" if error is None else clean_text(str(error))
    return json.dumps({"facts": facts, "errno": number, "error": why, "values": values})


def write_note(stage: Path, rank: int, facts: dict[str, Any] | None, error: BaseException | None = None) -> None:
    """Report that the files of this process are written, or that writing failed. The note is written atomically."""
    text = note_text(facts, error)
    unfinished = stage / f".part-{rank:05d}.partial"
    unfinished.write_text(text, encoding="utf-8")
    unfinished.rename(_note(stage, rank))


class ShardedSave(Protocol):
    """Where the processes of one save put their files and notes."""

    stage: Path  # where this process writes
    poll_seconds: float  # seconds between two checks for notes

    def bytes_needed(self, own: int, total: int) -> int:
        """The bytes that `stage` must have room for, of those of this process and of all."""

    def send(self, facts: dict[str, Any]) -> dict[str, Any]:
        """This process has written its files; returns their manifest entries."""

    def write_note(self, rank: int, facts: dict[str, Any] | None, error: BaseException | None = None) -> None:
        """Report that the files of this process are in place, or that it has failed."""

    def has_note(self, rank: int) -> bool:
        """Whether the note of a process is there."""

    def read_note(self, rank: int) -> dict[str, Any]:
        """Read a note that is there; CheckpointError if that fails."""

    def remove_notes(self) -> None:
        """All notes have been taken."""

    def publish(self, manifest: dict[str, Any]) -> None:
        """Called in the process that commits, when the manifest is in its `stage` and before the checkpoint is."""

    def abort(self, ranks: range) -> None:
        """The process that commits has failed, or another one."""

    def close(self) -> None:
        """The end of a process that does not commit."""


class OnSharedDisk:
    """The parts of a checkpoint in a staged directory that all processes have access to."""

    poll_seconds = _POLL_SECONDS

    def __init__(self, stage: Path) -> None:
        self.stage = stage

    def bytes_needed(self, own: int, total: int) -> int:
        return total

    def send(self, facts: dict[str, Any]) -> dict[str, Any]:
        return facts

    def write_note(self, rank: int, facts: dict[str, Any] | None, error: BaseException | None = None) -> None:
        write_note(self.stage, rank, facts, error)

    def has_note(self, rank: int) -> bool:
        return _note(self.stage, rank).exists()

    def read_note(self, rank: int) -> dict[str, Any]:
        note = read_json(_note(self.stage, rank))
        if note["facts"] is not None:
            _note(self.stage, rank).unlink()
        return note

    def remove_notes(self) -> None:
        # Else a power failure after the manifest could leave a checkpoint that still has notes.
        sync_directory(self.stage)

    def publish(self, manifest: dict[str, Any]) -> None:
        pass

    def abort(self, ranks: range) -> None:
        pass

    def close(self) -> None:
        pass


def collect(parts: ShardedSave, ranks: range, timeout: float, waiting: Waiting) -> dict[str, Any]:
    """Wait for all processes; returns the manifest entries of their files, or raises the error of one of them."""
    found: dict[str, Any] = {}
    place = str(parts.stage)
    end, left = time.monotonic() + timeout, False
    for rank in ranks:
        while not parts.has_note(rank):
            if waiting.is_stopped.is_set() and not left:
                end, left = min(end, time.monotonic() + _GRACE_SECONDS), True
            if waiting.failed.is_set() and not parts.has_note(rank):  # it may have left its note just before
                raise OSError(errno.EIO, "a process could not write its shard", place)
            if time.monotonic() > end:
                raise OSError(errno.ETIMEDOUT, f"process {rank} has not written its shard", place)
            time.sleep(parts.poll_seconds)
        try:
            note = parts.read_note(rank)
        except CheckpointError as error:
            raise OSError(errno.EIO, f"cannot read the note of process {rank}: {error}", place) from error
        if note["facts"] is None and note["values"]:
            raise NonFiniteError(note["error"])
        if note["facts"] is None:
            raise OSError(note["errno"], f"process {rank} could not write its shard: {note['error']}", place)
        found |= note["facts"]
    parts.remove_notes()
    return found


def wait_for_failed_writers(parts: ShardedSave, ranks: range, waiting: Waiting) -> None:
    """After the process that commits has failed, give the others a moment: a file that one creates while the staged
    directory is being removed would keep it from going away."""
    end = time.monotonic() + _GRACE_SECONDS
    while not (waiting.failed.is_set() or waiting.is_stopped.is_set() or time.monotonic() > end):
        if all(parts.has_note(rank) for rank in ranks):
            return
        time.sleep(parts.poll_seconds)


def number_files(contents: Contents, processes: ProcessGroup) -> int:
    """Number the tensor files consecutively across processes, and give the main process the index of all; returns the
    total bytes of all processes."""
    for kind in KINDS:
        tensors, metadata = _take(contents, kind)
        shards = [shard for shard in split(tensors, capture.SHARD_BYTES) if shard]
        counts = [int(number) for (number,) in processes.all_gather([len(shards)])]
        count, first = sum(counts), sum(counts[: processes.rank])
        for i, shard in enumerate(shards, first):
            contents.tensors[_file(kind, i, count)] = (shard, metadata)
        # Names go to the main process only: to send them to all would take as many times as much.
        every = processes.gather_object([{name: raw.size for name, raw in shard.items()} for shard in shards])
        if count > 1 and every is not None:
            places: dict[str, str] = {}
            sizes = [shard for of_rank in every for shard in of_rank]
            for i, shard in enumerate(sizes):
                places |= dict.fromkeys(shard, _file(kind, i, count))
            total = sum(sum(shard.values()) for shard in sizes)
            index = {"metadata": {"total_size": total}, "weight_map": places}
            contents.add_json(f"{kind}.safetensors.index.json", index)
    return int(sum(size for (size,) in processes.all_gather([contents.size])))


def _file(kind: str, i: int, count: int) -> str:
    return f"{kind}.safetensors" if count == 1 else f"{kind}-{i + 1:05d}-of-{count:05d}.safetensors"


def _take(contents: Contents, kind: str) -> tuple[dict[str, Raw], dict[str, str]]:
    """Remove all tensors of a kind from the contents, and return them."""
    mine = re.compile(rf"{kind}(-\d{{5}}-of-\d{{5}})?\.safetensors")
    tensors: dict[str, Raw] = {}
    metadata: dict[str, str] = {}
    for name in [name for name in contents.tensors if mine.fullmatch(name)]:
        found, metadata = contents.tensors.pop(name)
        tensors |= found
    contents.texts.pop(f"{kind}.safetensors.index.json", None)
    return tensors, metadata


def write_part(
    parts: ShardedSave, rank: int, contents: Contents, size: int, check: Callable[[], Any] = lambda: None
) -> None:
    """What a process does that does not commit. `check` raises if the contents must not be saved."""
    try:
        check()
        capture.check_free_space(parts.stage, parts.bytes_needed(contents.size, size))
        facts = parts.send(contents.write(parts.stage))
    except BaseException as error:
        with contextlib.suppress(OSError):
            parts.write_note(rank, None, error)
        raise
    finally:
        parts.close()
    parts.write_note(rank, facts)
