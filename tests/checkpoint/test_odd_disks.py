"""File systems that report odd things, checkpoints that cannot be deleted or are links, and lines cut short."""

import errno
import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from oneloop import Trainer, TrainerCallback
from oneloop.callbacks.json_log import JsonLinesCallback
from oneloop.checkpoint import capture, store
from oneloop.formats import durable
from oneloop.state import TrainerState
from oneloop.trainer.event_log import Record
from tests.backends.support import rows

RUN = {"per_device_train_batch_size": 4, "save_strategy": "steps", "save_steps": 1}


def write(parent, step, run="run"):
    stage = store.open_stage(parent, step)
    (stage / "model.safetensors").write_bytes((8).to_bytes(8, "little") + b"{}      ")
    (stage / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
    return store.commit(stage, step, run, "save", {}).path


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# -- free space


@pytest.mark.parametrize("reported", [(0, 0, 0), OSError(errno.ENOSYS, "Function not implemented")])
def test_a_disk_of_unknown_size_is_written_to(backend, trained, tmp_path, monkeypatch, reported):
    """Mounted object stores report 0 of 0 bytes."""

    def usage(path):
        if isinstance(reported, OSError):
            raise reported
        return reported

    monkeypatch.setattr(shutil, "disk_usage", usage)
    trained(backend.classifier(), rows(8), max_steps=1, **RUN)
    assert store.problems(tmp_path / "out" / "checkpoint-1") == []


def test_a_full_disk_of_known_size_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: (10**9, 10**9, 0))
    with pytest.raises(OSError, match="only 0 MB free"):
        capture.check_free_space(tmp_path, 10)


# -- checkpoints that cannot be deleted


def test_each_that_cannot_be_deleted_is_named_once(trained, backend, tmp_path, caplog, monkeypatch):
    """The others are deleted, and no newer one in its place."""
    delete = store.delete

    def refuses(path):
        if path.name in ("checkpoint-1", "checkpoint-3"):
            raise OSError(errno.EPERM, "Operation not permitted")
        delete(path)

    monkeypatch.setattr(store, "delete", refuses)
    trained(backend.classifier(), rows(32), max_steps=7, save_total_limit=2, **RUN)
    output = tmp_path / "out"
    assert [c.step for c in store.find(output)] == [1, 3, 6, 7]
    for step in (1, 3):
        words = (
            f"{output / f'checkpoint-{step}'} could not be deleted, and still takes up space: [Errno 1] Operation not"
        )
        assert caplog.text.count(words) == 1
    assert caplog.text.count("could not be deleted") == 2


def test_one_that_is_deleted_in_part_is_named(tmp_path, monkeypatch):
    write(tmp_path, 1)
    write(tmp_path, 2)
    rmdir, failed = os.rmdir, []

    def refuses(path, **options):
        if "checkpoint-1" in str(path):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        rmdir(path, **options)

    monkeypatch.setattr(os, "rmdir", refuses)
    store.rotate(tmp_path, "run", 1, set(), lambda path, error: failed.append((path.name, error.errno)))
    assert failed == [("checkpoint-1", errno.EBUSY)]
    (left,) = tmp_path.glob(".*")
    assert left.name.endswith(".deleted") and list(left.iterdir()) == []
    monkeypatch.undo()
    store.remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]


def test_remains_that_cannot_be_removed_are_named_at_the_start(tmp_path, monkeypatch, caplog):
    stage = store.open_stage(tmp_path, 5)

    def refuses(path, **options):
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(os, "rmdir", refuses)
    store.remove_leftovers(tmp_path)
    assert f"{stage} could not be removed: [Errno 16]" in caplog.text


# -- links


@pytest.fixture
def linked(tmp_path):
    """checkpoint-1 of a run is on another disk, with a link in its place."""
    output, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    output.mkdir()
    write(output, 1).rename(elsewhere)
    (output / "checkpoint-1").symlink_to(elsewhere)
    return output, elsewhere


def test_rotation_removes_a_link_and_not_what_it_points_to(linked):
    output, elsewhere = linked
    before = files(elsewhere)
    write(output, 2)
    assert [path.name for path in store.rotate(output, "run", 1, set())] == ["checkpoint-1"]
    assert [path.name for path in output.iterdir()] == ["checkpoint-2"]
    assert files(elsewhere) == before and not store.problems(elsewhere)


def test_a_checkpoint_of_the_same_step_replaces_a_link(linked):
    output, elsewhere = linked
    before = files(elsewhere)
    write(output, 1, "another")
    assert [path.name for path in output.iterdir()] == ["checkpoint-1"] and not (output / "checkpoint-1").is_symlink()
    assert files(elsewhere) == before


def test_a_link_that_was_put_aside_is_removed_at_the_start(linked):
    output, elsewhere = linked
    before = files(elsewhere)
    (output / "checkpoint-1").rename(output / ".checkpoint-1.0123abcd.deleted")
    store.remove_leftovers(output)
    assert list(output.iterdir()) == [] and files(elsewhere) == before


# -- lines


def short_write(monkeypatch, room):
    """os.write takes so many bytes, and then there is no space left."""
    write, left = os.write, [room]

    def fills_up(descriptor, data):
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = write(descriptor, bytes(data)[: left[0]])
        left[0] -= taken
        return taken

    monkeypatch.setattr(os, "write", fills_up)


def add_to_log(folder, step):
    state = TrainerState(is_world_process_zero=True, global_step=step)
    LOG.on_log(type("Args", (), {"output_dir": str(folder)})(), state, None, logs={"loss": float(step)})


LOG, EVENTS = JsonLinesCallback(lambda: "run"), Record()


@pytest.mark.parametrize(
    ("name", "add"),
    [("log.jsonl", add_to_log), ("run.jsonl", lambda folder, step: EVENTS.add(str(folder), "event", "run", step, {}))],
)
@pytest.mark.parametrize("room", [0, 1, 20])
def test_a_line_cut_short_does_not_take_the_next_with_it(tmp_path, monkeypatch, name, add, room):
    add(tmp_path, 1)
    with monkeypatch.context() as patch:
        short_write(patch, room)
        add(tmp_path, 2)
    add(tmp_path, 3)
    add(tmp_path, 4)
    lines = (tmp_path / name).read_text().splitlines()
    assert [json.loads(line)["step"] for line in (lines[0], *lines[-2:])] == [1, 3, 4]
    assert [line.endswith("}") for line in lines] == ([True, False, True, True] if room else [True] * 3)


def test_a_line_that_the_disk_takes_in_pieces_is_whole(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, bytes(data)[:3]))
    durable.append_line(tmp_path / "log", b"0123456789")
    assert (tmp_path / "log").read_bytes() == b"0123456789\n"


# -- errors of libraries


def test_errors_of_rust_are_errors_of_the_disk():
    class SafetensorError(Exception):
        pass

    with pytest.raises(OSError, match="No space left on device") as caught, durable.native_errors():
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(SafetensorError, match="another"), durable.native_errors():
        raise SafetensorError("another")


def test_a_library_that_cannot_write_does_not_end_the_run(backend, arguments, tmp_path, caplog):
    class Tokenizer:
        def save_pretrained(self, folder):
            raise Exception("Disk quota exceeded (os error 122)")

    args = arguments(max_steps=2, **RUN)
    trainer = Trainer(backend.classifier(), args, train_dataset=rows(8), processing_class=Tokenizer())
    trainer.train()
    assert trainer.state.global_step == 2
    assert "checkpoint-1 was NOT saved: [Errno 122] Disk quota exceeded" in caplog.text
    assert list((tmp_path / "out").glob("*checkpoint*")) == []


# -- what is flushed


@pytest.fixture
def synced(monkeypatch):
    """The paths that fsync was called for, with how many names they had then, if they are directories."""
    found, fsync = [], os.fsync

    def note(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        found.append((path, sorted(os.listdir(path)) if path.is_dir() else None))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    return found


def test_directories_inside_a_checkpoint_are_flushed(tmp_path, synced):
    stage = store.open_stage(tmp_path, 1)
    (stage / "adapters" / "second").mkdir(parents=True)
    (stage / "adapters" / "second" / "weights").write_bytes(b"1")
    store.commit(stage, 1, "run", "save", {})
    flushed = [(path.relative_to(stage).as_posix(), names) for path, names in synced if stage in (path, *path.parents)]
    assert flushed[-3:] == [
        ("adapters/second", ["weights"]),
        ("adapters", ["second"]),
        (".", ["adapters", "manifest.json"]),
    ]
    assert synced[-1] == (tmp_path, ["checkpoint-1"])


def test_an_output_directory_is_flushed_into_its_parents(tmp_path, synced):
    store.open_stage(tmp_path / "a" / "b", 1)
    assert synced[:2] == [(tmp_path, ["a"]), (tmp_path / "a", ["b"])]


def test_a_file_system_that_cannot_flush_directories(tmp_path, monkeypatch):
    fsync = os.fsync

    def refuses(descriptor):
        if os.path.isdir(os.readlink(f"/proc/self/fd/{descriptor}")):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuses)
    assert store.problems(write(tmp_path / "out", 1)) == []


def test_a_rename_that_does_not_reach_the_disk_is_undone(tmp_path, monkeypatch):
    old = write(tmp_path, 1, "old")
    before, fsync = files(old), os.fsync

    def fails(descriptor):
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(tmp_path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="Input/output error"):
        write(tmp_path, 1, "new")
    assert files(tmp_path / "checkpoint-1") == before


def test_a_directory_below_a_file_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        durable.make_directory(tmp_path / "file" / "out")
    with pytest.raises(FileExistsError):
        durable.make_directory(tmp_path / "file")


def test_the_training_thread_flushes_nothing_during_a_run(backend, trained, tmp_path, monkeypatch):
    """Saves in the background do it in their thread; training would wait for the disk."""
    fsync, threads = os.fsync, []

    def note(descriptor):
        threads.append(threading.current_thread().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)

    class Starts(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            threads.clear()  # output_dir itself was flushed before

    trained(backend.classifier(), rows(8), max_steps=3, save_total_limit=1, callbacks=[Starts()], **RUN)
    assert len(threads) > 10 and set(threads) == {"oneloop-save"}
