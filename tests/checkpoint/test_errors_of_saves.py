"""Errors in the middle of a save, disks that take a file in pieces, and deletions."""

import errno
import hashlib
import io
import json
import logging
import os
import shutil
import threading

import pytest

from oneloop import TrainerCallback
from oneloop.checkpoint import capture, saved_model, store
from oneloop.formats import safetensors_io
from tests.backends.support import rows

RUN = {"per_device_train_batch_size": 4, "max_steps": 4, "save_strategy": "steps", "save_steps": 2}


@pytest.fixture
def failing(monkeypatch):
    """failing(error, step, gate): writing the files of that step raises it, once the gate is open."""

    def fail(error, step=2, gate=None):
        write = capture.Contents.write

        def broken(self, folder):
            if folder.name.startswith(f".checkpoint-{step}."):
                assert gate is None or gate.wait(60)
                raise error
            return write(self, folder)

        monkeypatch.setattr(capture.Contents, "write", broken)

    return fail


@pytest.mark.parametrize("background", [True, False], ids=["in the background", "at once"])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.EUCLEAN, None])
def test_an_error_of_the_disk_does_not_end_the_run_whatever_its_number(
    backend, trained, tmp_path, failing, background, number, caplog
):
    failing(OSError(number, os.strerror(number)) if number else OSError("an error without a number"))
    trainer = trained(backend.classifier(), rows(16), save_async=background, **RUN)
    assert trainer.state.global_step == RUN["max_steps"]
    assert "checkpoint-2 was NOT saved" in caplog.text
    assert list((tmp_path / "out").glob("*checkpoint-2*")) == []
    assert store.problems(tmp_path / "out" / f"checkpoint-{RUN['max_steps']}") == []


def test_an_error_of_the_run_and_one_of_the_save_under_way(backend, trained, failing, caplog):
    """The first is the one that is raised; the other is not lost."""
    gate = threading.Event()
    failing(ZeroDivisionError("a bug in the writer"), gate=gate)

    class Breaks(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 2:
                gate.set()
                raise KeyError("a bug in a callback")

    with pytest.raises(KeyError, match="a bug in a callback"), caplog.at_level(logging.ERROR):
        trained(backend.classifier(), rows(16), callbacks=[Breaks()], **RUN)
    assert "cannot write a checkpoint: a bug in the writer" in caplog.text


class InPieces(io.FileIO):
    """A file that takes a few bytes of what it is given, as a nearly full disk does."""

    def __init__(self, path, mode, buffering):
        super().__init__(path, mode)

    def write(self, block):
        return super().write(block[:3])


@pytest.mark.parametrize("parts", [[], [b""], [b"ab"], [b"abcdefgh", b"", b"ijklm"], [bytes(range(256)) * 5]])
def test_a_disk_that_takes_a_file_in_pieces_has_all_of_it(tmp_path, monkeypatch, parts):
    monkeypatch.setattr(safetensors_io, "open", InPieces, raising=False)
    facts = safetensors_io.write_bytes(tmp_path / "file", parts)
    whole = b"".join(parts)
    assert (tmp_path / "file").read_bytes() == whole
    assert facts == {"bytes": len(whole), "sha256": hashlib.sha256(whole).hexdigest()}


# -- deletions and replacements


def write(parent, step, run="run"):
    stage = store.open_stage(parent, step)
    (stage / "model.safetensors").write_bytes((8).to_bytes(8, "little") + b"{}      ")
    (stage / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
    return store.commit(stage, step, run, "save", {}).path


def test_a_deletion_that_gets_stuck_leaves_nothing_that_looks_whole(tmp_path, monkeypatch):
    """The name goes first, then the manifest; the files may take their time."""
    checkpoint = write(tmp_path, 2)
    monkeypatch.setattr(shutil, "rmtree", lambda path, ignore_errors=False: None)
    store.delete(checkpoint)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".checkpoint-2.") and left.name.endswith(".deleted")
    assert sorted(path.name for path in left.iterdir()) == ["model.safetensors", "trainer_state.json"]
    assert store.find(tmp_path) == [] and store.read_manifest(left) is None


def test_checkpoints_of_another_trainer_are_kept_as_often_as_a_run_comes_by(tmp_path):
    """Each under a name of its own: they are not oneloop's to delete."""
    for number in range(3):
        theirs = tmp_path / "checkpoint-2"
        shutil.rmtree(theirs, ignore_errors=True)
        theirs.mkdir()
        (theirs / "trainer_state.json").write_text(json.dumps({"global_step": 2}))
        (theirs / "optimizer.pt").write_text(f"theirs, {number}")
        write(tmp_path, 2)
    kept = [path for path in tmp_path.iterdir() if path.name != "checkpoint-2"]
    assert sorted((path / "optimizer.pt").read_text() for path in kept) == [f"theirs, {n}" for n in range(3)]
    assert all(path.name.startswith("checkpoint-2.transformers") for path in kept)
    assert [c.run_id for c in store.find(tmp_path)] == ["run"]


def test_of_a_model_that_was_saved_in_many_files_none_is_left_beside_the_next(tmp_path, monkeypatch):
    """A reader would follow the old index."""
    raws = {name: safetensors_io.Raw("U8", (100,), bytes([value]) * 100) for value, name in enumerate("abc")}

    def save(limit):
        monkeypatch.setattr(capture, "SHARD_BYTES", limit)
        model = capture.Contents()
        model.add_weights(raws, {})
        with saved_model.replacing(tmp_path) as stage:
            model.write(stage)
        return sorted(path.name for path in tmp_path.iterdir())

    (tmp_path / "model-of-mine.safetensors").write_text("not one of them")
    many = [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    assert save(100) == [*many, "model-of-mine.safetensors", "model.safetensors.index.json"]
    assert save(200) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model-of-mine.safetensors",
        "model.safetensors.index.json",
    ]
    assert save(300) == ["model-of-mine.safetensors", "model.safetensors"]
