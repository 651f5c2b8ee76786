"""Checkpoints that several processes write: notes, numbers of files, and what becomes of a part that does not come."""

import errno
import json

import numpy as np
import pytest

from oneloop.checkpoint import capture, sharded
from oneloop.checkpoint.capture import Contents
from oneloop.checkpoint.writer import SaveWriter
from oneloop.distributed.collectives import ProcessGroup
from oneloop.formats import structure
from oneloop.formats.safetensors_io import from_numpy, read


class Pair(ProcessGroup):
    """Two processes in turn: what the other says is known beforehand."""

    size = 2

    def __init__(self, rank, others):
        self.rank = rank
        *self.shards, self.total = others

    def all_gather(self, numbers):
        other = [float(len(self.shards[0]) if self.shards else self.total)]
        return [list(numbers), other] if self.rank == 0 else [other, list(numbers)]

    def gather_object(self, value):
        other = self.shards.pop(0)
        return [value, other] if self.rank == 0 else None


def filled(**values):
    found = Contents()
    for kind in ("model", "optimizer"):
        tensors = {name: from_numpy(np.full(4, v, np.float32)) for name, v in values.items()}
        found.tensors[f"{kind}.safetensors"] = (tensors, {"format": "pt"})
    return found


def sizes(*names):
    return [dict.fromkeys(names, 16)] if names else []


def test_files_are_numbered_by_process(tmp_path):
    main, other = filled(a=1, b=2), filled(c=3)
    sharded.number_files(main, Pair(0, [sizes("c"), sizes("c"), 32]))
    total = sharded.number_files(other, Pair(1, [sizes("a", "b"), sizes("a", "b"), 1000]))
    assert total == 1032
    assert set(other.tensors) == {"model-00002-of-00002.safetensors", "optimizer-00002-of-00002.safetensors"}
    assert not other.texts
    main.write(tmp_path)
    other.write(tmp_path)
    for kind in ("model", "optimizer"):
        found = {}
        for file in structure.tensor_files(tmp_path, kind):
            found |= {name: raw.array().tolist() for name, raw in read(file).items()}
        assert found == {"a": [1] * 4, "b": [2] * 4, "c": [3] * 4}
        index = json.loads((tmp_path / f"{kind}.safetensors.index.json").read_text())
        assert index["metadata"]["total_size"] == 48


def test_a_process_with_nothing_to_write_adds_no_file():
    main = filled(a=1)
    sharded.number_files(main, Pair(0, [[], [], 0]))
    assert set(main.tensors) == {"model.safetensors", "optimizer.safetensors"} and not main.texts


def test_a_large_part_is_several_files(monkeypatch):
    monkeypatch.setattr(capture, "SHARD_BYTES", 16)
    main = filled(a=1, b=2)
    sharded.number_files(main, Pair(0, [sizes("c"), sizes("c"), 32]))
    assert [name for name in main.tensors if name.startswith("model")] == [
        "model-00001-of-00003.safetensors",
        "model-00002-of-00003.safetensors",
    ]


def test_the_facts_of_all_parts_come_together_and_the_notes_go(tmp_path):
    sharded.write_part(sharded.OnSharedDisk(tmp_path), 1, filled(a=1), 32)
    sharded.write_part(sharded.OnSharedDisk(tmp_path), 2, Contents(), 0)
    facts = sharded.collect(sharded.OnSharedDisk(tmp_path), range(1, 3), 5, sharded.Waiting())
    assert set(facts) == {"model.safetensors", "optimizer.safetensors"}
    assert not list(tmp_path.glob(".part-*"))


def test_notes_are_durably_gone_before_the_manifest_can_be_written(tmp_path, monkeypatch):
    """A power failure would otherwise leave a complete checkpoint with a note in it."""
    seen = []
    monkeypatch.setattr(sharded, "sync_directory", lambda path: seen.append([each.name for each in path.iterdir()]))
    for rank in (1, 2):
        sharded.write_note(tmp_path, rank, {f"file{rank}": {"bytes": 1, "sha256": "x"}})
    sharded.collect(sharded.OnSharedDisk(tmp_path), range(1, 3), 5, sharded.Waiting())
    assert seen == [[]]


def test_a_part_that_failed_is_an_error_of_the_whole(tmp_path, monkeypatch):
    def full(folder, size):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(capture, "check_free_space", full)
    with pytest.raises(OSError, match="no space left"):
        sharded.write_part(sharded.OnSharedDisk(tmp_path), 1, filled(a=1), 32)
    with pytest.raises(OSError, match="process 1 could not write its shard.*no space left") as caught:
        sharded.collect(sharded.OnSharedDisk(tmp_path), range(1, 2), 5, sharded.Waiting())
    assert caught.value.errno == errno.ENOSPC


def test_an_error_of_another_kind_is_one_of_the_disk_for_the_whole(tmp_path):
    def check():
        raise ValueError("odd")

    with pytest.raises(ValueError, match="odd"):
        sharded.write_part(sharded.OnSharedDisk(tmp_path), 1, filled(a=1), 32, check)
    with pytest.raises(OSError, match="process 1 could not write its shard: odd") as caught:
        sharded.collect(sharded.OnSharedDisk(tmp_path), range(1, 2), 5, sharded.Waiting())
    assert caught.value.errno == errno.EIO


def test_a_disk_that_is_shared_has_to_have_room_for_the_files_of_all(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(capture, "check_free_space", lambda folder, size: asked.append(size))
    sharded.write_part(sharded.OnSharedDisk(tmp_path), 1, filled(a=1), 10**6)
    assert asked == [10**6]


def test_a_part_that_never_comes_is_an_error_after_the_timeout(tmp_path):
    with pytest.raises(OSError, match="process 1 has not written its shard") as caught:
        sharded.collect(sharded.OnSharedDisk(tmp_path), range(1, 2), 0.05, sharded.Waiting())
    assert caught.value.errno == errno.ETIMEDOUT


def test_a_run_that_leaves_waits_for_parts_only_a_little(tmp_path, monkeypatch):
    monkeypatch.setattr(sharded, "_GRACE_SECONDS", 0.05)
    writer = SaveWriter(ProcessGroup(), writes=True, is_sharded=True)
    writer.await_shards()
    writer.stop_waiting()
    with pytest.raises(OSError, match="process 1"):
        sharded.collect(sharded.OnSharedDisk(tmp_path), range(1, 2), 3600, writer.waiting)


def test_a_process_that_cannot_even_leave_a_note_is_not_waited_for(tmp_path):
    waiting = sharded.Waiting()
    waiting.failed.set()
    with pytest.raises(OSError, match="a process could not write its shard"):
        sharded.collect(sharded.OnSharedDisk(tmp_path), range(1, 2), 3600, waiting)
    sharded.write_part(sharded.OnSharedDisk(tmp_path), 1, filled(a=1), 32)
    assert sharded.collect(sharded.OnSharedDisk(tmp_path), range(1, 2), 3600, waiting), "its note was there by then"


def test_a_note_that_cannot_be_read_is_an_error_of_the_disk(tmp_path):
    sharded._note(tmp_path, 1).write_text("{")
    with pytest.raises(OSError, match="cannot read the note of process 1"):
        sharded.collect(sharded.OnSharedDisk(tmp_path), range(1, 2), 5, sharded.Waiting())
