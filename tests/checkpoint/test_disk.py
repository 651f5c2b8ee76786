"""A disk that is full, read-only or gone: the run goes on and says so, and what was saved before stays whole."""

import errno
import os
import shutil
import subprocess

import pytest

from oneloop import TrainerCallback
from oneloop.checkpoint import capture, checkpointer, store
from oneloop.errors import CheckpointError
from oneloop.formats import safetensors_io
from tests.checkpoint.children import differences
from tests.checkpoint.job import contents as contents_of
from tests.internals import wait_for_saves

SAVES = ("--set", "save_steps=3", "--set", "save_total_limit=null")
TROUBLE = range(7, 14)  # the steps at which the disk is in trouble: saves of 8 (the best, perhaps), 9 and 12


class During(TrainerCallback):
    """Calls one function before the first step of the trouble, and another after the last."""

    def __init__(self, begin, end):
        self.begin = begin
        self.end = end

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step + 1 == TROUBLE.start:
            self.begin()

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step + 1 == TROUBLE.stop:
            self.end()


def check_survived(trained, output, caplog, finished, before=(3, 6)):
    """The run went on to its end as if nothing had been; saves of the bad time are missing, and nothing else."""
    assert trained.state.global_step == 22
    told = [r for r in caplog.records if "was NOT saved" in r.getMessage()]
    assert told
    assert all(record.levelname == "ERROR" for record in told)
    assert "checkpoint-9 was NOT saved" in " ".join(record.getMessage() for record in told)
    steps = [checkpoint.step for checkpoint in store.find(output)]
    assert not {9, 12} & set(steps)
    assert {*before, 15, 18, 21, 22} <= set(steps)
    for checkpoint in store.find(output):
        assert store.problems(checkpoint.path) == []
    assert [path.name for path in output.glob(".*")] == [], "no part of a save is left"
    left, right = contents_of(output / "checkpoint-22"), contents_of(finished / "checkpoint-22")
    names = ("model.safetensors", "optimizer.safetensors", "random.safetensors")
    assert differences({n: left[n] for n in names}, {n: right[n] for n in names}) == []


def always(error):
    def fail(*args, **kwargs):
        raise OSError(error, os.strerror(error))

    return fail


PLACES = {
    "stage": [(store, "open_stage")],
    "room": [(checkpointer, "check_free_space")],
    "files": [(safetensors_io, "write_bytes"), (capture, "write_bytes"), (store, "write_bytes")],
    "manifest": [(store, "write_bytes")],
    "sync": [(os, "fsync")],
    "rename": [(os, "rename")],
}


# Every place in the background and at once, and with both errors; the other combinations are slow.
TROUBLES = [
    pytest.param(
        *(place, getattr(errno, error), mode),
        id=f"{place}-{error}-{name}",
        marks=[] if (i + j + k) % 2 == 0 else pytest.mark.slow,
    )
    for i, place in enumerate(PLACES)
    for j, error in enumerate(("ENOSPC", "EROFS"))
    for k, (name, mode) in enumerate({"background": "true", "at-once": "false"}.items())
]


@pytest.mark.parametrize(("place", "error", "mode"), TROUBLES)
def test_an_error_anywhere_in_a_save(place, error, mode, trainer, finished, tmp_path, caplog, monkeypatch):
    def begin():
        wait_for_saves(trained)  # what was asked for before the trouble
        for owner, name in PLACES[place]:
            monkeypatch.setattr(owner, name, always(error))

    def end():
        wait_for_saves(trained)
        monkeypatch.undo()

    trained = trainer(*SAVES, "--set", f"save_async={mode}", callbacks=[During(begin, end)])
    trained.train()
    check_survived(trained, tmp_path / "run", caplog, finished)


@pytest.mark.parametrize("error", [errno.EIO, errno.EDQUOT, errno.ENOTCONN, errno.ESTALE])
def test_other_troubles_of_disks(error, trainer, finished, tmp_path, caplog, monkeypatch):
    def begin():
        monkeypatch.setattr(capture, "write_bytes", always(error))

    trained = trainer(*SAVES, "--set", "save_async=false", callbacks=[During(begin, monkeypatch.undo)])
    trained.train()
    check_survived(trained, tmp_path / "run", caplog, finished)


def test_the_old_checkpoint_comes_back_when_its_successor_cannot_take_its_place(trainer, tmp_path, caplog, monkeypatch):
    """Of the two renames of a replacement the second fails."""
    output = tmp_path / "run"
    trained = trainer("--steps", "3", "--set", "save_steps=3")
    trained.train()
    before = contents_of(output / "checkpoint-3")
    rename = os.rename

    def fail(source, target):
        if str(target).endswith("checkpoint-3") and str(source).endswith(".partial"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(source, target)

    monkeypatch.setattr(os, "rename", fail)
    trainer("--steps", "3", "--set", "save_steps=3", "--set", "seed=12").train()
    assert "checkpoint-3 was NOT saved" in caplog.text
    assert store.problems(output / "checkpoint-3") == []
    assert contents_of(output / "checkpoint-3") == before
    assert list(output.glob(".*")) == []


def test_old_checkpoints_that_cannot_be_deleted_do_not_undo_a_save(trainer, tmp_path, caplog, monkeypatch):
    saved = []

    class Listener(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            saved.append(state.global_step)

    monkeypatch.setattr(store, "delete", always(errno.EACCES))
    trainer("--steps", "9", "--set", "save_total_limit=1", callbacks=[Listener()]).train()
    assert {3, 6, 9} <= set(saved)
    assert "was NOT saved" not in caplog.text
    assert "checkpoint-3 could not be deleted" in caplog.text


def test_a_vanished_directory(trainer, finished, tmp_path, caplog):
    """It is made anew, and the saves that follow are in it."""
    output = tmp_path / "run"

    def begin():
        wait_for_saves(trained)
        shutil.rmtree(output)

    trained = trainer(*SAVES, callbacks=[During(begin, lambda: None)])
    trained.train()
    assert {9, 12, 15, 18, 21, 22} <= {c.step for c in store.find(output)}
    assert (
        contents_of(output / "checkpoint-22")["model.safetensors"]
        == (contents_of(finished / "checkpoint-22")["model.safetensors"])
    )


def test_a_file_in_the_place_of_the_directory(trainer, finished, tmp_path, caplog):
    output = tmp_path / "run"

    def begin():
        wait_for_saves(trained)
        output.rename(tmp_path / "away")
        output.write_text("in the way")

    def end():
        wait_for_saves(trained)
        output.unlink()
        (tmp_path / "away").rename(output)

    trained = trainer(*SAVES, callbacks=[During(begin, end)])
    trained.train()
    check_survived(trained, output, caplog, finished)


def test_gone_while_it_is_being_written(trainer, finished, tmp_path, caplog, monkeypatch):
    output, write = tmp_path / "run", capture.Contents.write

    def vanish(self, folder):
        facts = write(self, folder)
        if folder.name.startswith(".checkpoint-9."):
            shutil.rmtree(folder)
        return facts

    monkeypatch.setattr(capture.Contents, "write", vanish)
    trained = trainer(*SAVES)
    trained.train()
    assert "checkpoint-9 was NOT saved" in caplog.text
    assert {3, 6, 12, 22} <= {c.step for c in store.find(output)}


def test_an_unwritable_directory_is_an_error_before_the_first_step(trainer, tmp_path):
    (tmp_path / "run").write_text("in the way")
    trained = trainer()
    with pytest.raises(CheckpointError, match="cannot write to "):
        trained.train()
    assert trained.state.global_step == 0


# -- a real small disk


def mount(*options):
    return subprocess.run(["mount", *map(str, options)], capture_output=True, text=True)


@pytest.fixture
def small_disk(tmp_path):
    """Two megabytes of tmpfs."""
    place = tmp_path / "disk"
    place.mkdir()
    done = mount("-t", "tmpfs", "-o", "size=2m", "tmpfs", place)
    if done.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(filler, spare=0):
    """Leave so many bytes of the disk free."""
    with pytest.raises(OSError, match="No space"), open(filler, "wb", buffering=0) as f:
        while True:
            f.write(bytes(4096))
    os.truncate(filler, filler.stat().st_size - spare)


@pytest.mark.parametrize("seen", [True, False], ids=["seen-before-writing", "while-writing"])
def test_a_disk_that_is_full_for_a_while(seen, small_disk, trainer, finished, caplog, monkeypatch):
    output, filler = small_disk / "run", small_disk / "filler"
    if not seen:  # as if another program took the room in between; the first files find some
        monkeypatch.setattr(checkpointer, "check_free_space", lambda folder, size: None)

    def begin():
        wait_for_saves(trained)
        fill(filler, 0 if seen else 12288)

    def end():
        wait_for_saves(trained)
        filler.unlink()

    trained = trainer(*SAVES, callbacks=[During(begin, end)], output=output)
    trained.train()
    check_survived(trained, output, caplog, finished)
    assert ("MB needed, but only 0 MB free" in caplog.text) is seen


def test_a_run_goes_on_from_a_checkpoint_on_a_full_disk(small_disk, trainer, finished, caplog):
    output, filler = small_disk / "run", small_disk / "filler"
    shutil.copytree(finished / "checkpoint-9", output / "checkpoint-9")
    shutil.copy(finished / "log.jsonl", output)
    fill(filler)

    def end():
        wait_for_saves(trained)  # what is under way should still meet the full disk
        filler.unlink()

    trained = trainer(*SAVES, callbacks=[During(lambda: None, end)], output=output)
    trained.train(resume_from_checkpoint=True)
    assert "checkpoint-12 was NOT saved" in caplog.text
    assert "log.jsonl cannot be written" in caplog.text
    assert {9, 15, 18, 21, 22} <= {c.step for c in store.find(output)}
    left, right = contents_of(output / "checkpoint-22"), contents_of(finished / "checkpoint-22")
    assert left["model.safetensors"] == right["model.safetensors"]
    assert left["random.safetensors"] == right["random.safetensors"]


def test_a_disk_that_is_read_only_for_a_while(small_disk, trainer, finished, caplog):
    output = small_disk / "run"

    def begin():
        wait_for_saves(trained)
        assert mount("-o", "remount,ro", small_disk).returncode == 0

    def end():
        wait_for_saves(trained)
        assert mount("-o", "remount,rw", small_disk).returncode == 0

    trained = trainer(*SAVES, callbacks=[During(begin, end)], output=output)
    trained.train()
    check_survived(trained, output, caplog, finished)
    assert "log.jsonl cannot be written" in caplog.text
