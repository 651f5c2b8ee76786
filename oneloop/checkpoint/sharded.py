"""A checkpoint that several processes write: each its own files, one of them the manifest.

All of them have access to the staged directory. A process that has written its files writes a note there with their
manifest entries; the one that commits waits for the notes of the others, removes them, and writes the manifest. Notes
instead of a collective, because background threads must not interleave collectives with those of training.
"""

import contextlib
import errno
import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..distributed.collectives import ProcessGroup
from ..errors import CheckpointError, NonFiniteError
from . import contents as whole
from .contents import Contents, split
from .durable import sync_directory
from .reading import read_json
from .safetensors_io import Raw

KINDS = ("model", "optimizer")
_LOOK = 0.02  # seconds between two checks for notes
_GRACE = 30.0  # seconds that the others have once the run is ending with an error


def _note(stage: Path, rank: int) -> Path:
    return stage / f".part-{rank:05d}.json"


def leave_note(stage: Path, rank: int, facts: dict[str, Any] | None, error: BaseException | None = None) -> None:
    """Report that the files of this process are written, or that writing failed. The note is written atomically."""
    number = getattr(error, "errno", None) or (errno.EIO if error is not None else 0)
    values = isinstance(error, NonFiniteError)
    text = json.dumps({"facts": facts, "errno": number, "error": "" if error is None else str(error), "values": values})
    unfinished = stage / f".part-{rank:05d}.partial"
    unfinished.write_text(text, encoding="utf-8")
    unfinished.rename(_note(stage, rank))


class Waiting:
    """What the process that commits learns while it waits for the others, apart from their notes."""

    def __init__(self) -> None:
        self.leaving = threading.Event()  # the run is ending with an error
        self.failed = threading.Event()  # a process could not write its files, and perhaps no note either

    def leave(self) -> None:
        self.leaving.set()

    def fail(self) -> None:
        self.failed.set()

    def share(self, processes: ProcessGroup) -> None:
        """Let the process that commits know that another one has failed. A collective."""
        if any(failed for (failed,) in processes.all_gather([self.failed.is_set()])) and processes.is_main:
            self.failed.set()
        elif not processes.is_main:
            self.failed.clear()


def collect(stage: Path, ranks: range, timeout: float, waiting: Waiting) -> dict[str, Any]:
    """Wait for all processes; returns the manifest entries of their files, or raises the error of one of them."""
    found: dict[str, Any] = {}
    end, left = time.monotonic() + timeout, False
    for rank in ranks:
        path = _note(stage, rank)
        while not path.exists():
            if waiting.leaving.is_set() and not left:
                end, left = min(end, time.monotonic() + _GRACE), True
            if waiting.failed.is_set() and not path.exists():  # it may have left its note just before
                raise OSError(errno.EIO, "a process could not write its shard", str(stage))
            if time.monotonic() > end:
                raise OSError(errno.ETIMEDOUT, f"process {rank} has not written its shard", str(stage))
            time.sleep(_LOOK)
        try:
            note = read_json(path)
        except CheckpointError as error:
            raise OSError(errno.EIO, f"cannot read the note of process {rank}: {error}", str(stage)) from error
        if note["facts"] is None and note["values"]:
            raise NonFiniteError(note["error"])
        if note["facts"] is None:
            raise OSError(note["errno"], f"process {rank} could not write its shard: {note['error']}", str(stage))
        found |= note["facts"]
        path.unlink()
    sync_directory(stage)  # else a power failure after the manifest could leave a checkpoint that still has notes
    return found


def let_finish(stage: Path, ranks: range, waiting: Waiting) -> None:
    """After the process that commits has failed, give the others a moment: a file that one creates while the staged
    directory is being removed would keep it from going away."""
    end = time.monotonic() + _GRACE
    while not (waiting.failed.is_set() or waiting.leaving.is_set() or time.monotonic() > end):
        if all(_note(stage, rank).exists() for rank in ranks):
            return
        time.sleep(_LOOK)


def number_files(contents: Contents, processes: ProcessGroup) -> int:
    """Number the tensor files consecutively across processes, and give the main process the index of all; returns the
    total bytes of all processes."""
    for kind in KINDS:
        tensors, metadata = _take(contents, kind)
        shards = [shard for shard in split(tensors, whole.SHARD_BYTES) if shard]
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


def write_part(stage: Path, rank: int, contents: Contents, size: int, check: Callable[[], Any] = lambda: None) -> None:
    """What a process does that does not commit. `check` raises if the contents must not be saved."""
    try:
        check()
        whole.room_for(stage, size)
        facts = contents.write(stage)
    except BaseException as error:
        with contextlib.suppress(OSError):
            leave_note(stage, rank, None, error)
        raise
    leave_note(stage, rank, facts)
