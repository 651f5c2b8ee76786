"""save_model replaces the files of a model as a set, in a directory that has other files too."""

import errno
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from oneloop import Trainer
from oneloop.checkpoint import capture, directory_lock, saved_model
from oneloop.checkpoint.capture import Contents
from oneloop.errors import DiskError
from oneloop.formats.safetensors_io import from_numpy, read
from tests.backends.support import names, rows
from tests.checkpoint.children import ROOT, environment

if "mindspore" in names():
    import mindspore  # noqa: F401  before Paddle, whichever tests are chosen

INDEX = "model.safetensors.index.json"


def save(folder, value, shards=1, config=b"{}", more=()):
    """A model whose weights all have one value."""
    raws = {name: from_numpy(np.full(4, value, np.float32)) for name in "abc"}
    model = Contents()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture, "SHARD_BYTES", {1: 100, 2: 32, 3: 16}[shards])
        model.add_weights(raws, {})
    model.texts |= {"config.json": config, "training_args.json": str(value).encode(), **dict(more)}
    with saved_model.replacing(folder) as stage:
        model.write(stage)


def values(folder):
    """The values of the weights as a reader finds them that follows the index, or None if there is no model."""
    if (folder / INDEX).is_file():
        files = set(json.loads((folder / INDEX).read_text())["weight_map"].values())
    elif (folder / "model.safetensors").is_file():
        files = {"model.safetensors"}
    else:
        return None
    return {float(np.frombuffer(raw.data, np.float32)[0]) for file in files for raw in read(folder / file).values()}


def hidden(folder):
    return [path.name for path in folder.glob(".*")]


@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_one_model_replaces_another(tmp_path, before, after):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "model-mine.safetensors").write_text("mine")
    save(tmp_path, 1, before)
    save(tmp_path, 2, after, config=b'{"other": 1}')
    parts = [f"model-{i:05d}-of-{after:05d}.safetensors" for i in range(1, after + 1)]
    weights = ["model.safetensors"] if after == 1 else [*parts, INDEX]
    kept = ["notes.txt", "model-mine.safetensors", "config.json", "training_args.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(weights + kept)
    assert values(tmp_path) == {2.0} and (tmp_path / "training_args.json").read_text() == "2"
    assert (tmp_path / "config.json").read_text() == '{"other": 1}' and (tmp_path / "notes.txt").read_text() == "mine"


def test_files_that_do_not_change_are_left(tmp_path):
    save(tmp_path, 1)
    before = (tmp_path / "config.json").stat()
    save(tmp_path, 2)
    assert (tmp_path / "config.json").stat().st_ino == before.st_ino
    assert values(tmp_path) == {2.0}


class Interrupted(BaseException):
    pass


def interrupt_at(patch, number):
    """The N-th call that changes the directory ends the save, as a kill would: nothing is cleaned up."""
    calls = [0]

    def wrapped(function):
        def call(*args, **kwargs):
            calls[0] += 1
            if calls[0] > number:
                raise Interrupted
            return function(*args, **kwargs)

        return call

    for name in ("rename", "replace", "unlink", "rmdir", "mkdir", "fsync", "open"):
        patch.setattr(os, name, wrapped(getattr(os, name)))
    return calls


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (3, 2), (1, 3), (3, 1)])
def test_a_save_that_is_interrupted_anywhere_leaves_no_mixture(tmp_path, before, after):
    """And the next start has the old model or the new one."""
    seen, number = set(), 0
    while True:
        folder = tmp_path / str(number)
        save(folder, 1, before)
        try:
            with pytest.MonkeyPatch.context() as patch:
                calls = interrupt_at(patch, number)
                save(folder, 2, after)
        except Interrupted:
            pass
        directory_lock._held.clear()  # the process is gone
        found = values(folder)
        assert found in ({1.0}, {2.0}, None), f"interrupted at call {number}"
        saved_model.recover(folder)
        end = values(folder)
        assert end in ({1.0}, {2.0}) and hidden(folder) == [], f"interrupted at call {number}"
        assert found is None or found == end or end == {2.0}
        seen.add((str(found), str(end)))
        if calls[0] <= number:
            break
        number += 1
    assert ("{1.0}", "{1.0}") in seen and ("{2.0}", "{2.0}") in seen
    # Only a model in several files that replaces one of the same names cannot be read for a moment.
    assert (("None", "{2.0}") in seen) is (before == after == 2)


def test_an_error_of_the_disk_before_the_commit_leaves_the_old_model(tmp_path, monkeypatch):
    save(tmp_path, 1, 2)

    def fails(descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="Input/output error"):
        save(tmp_path, 2, 2)
    assert values(tmp_path) == {1.0} and hidden(tmp_path) == []


def test_an_error_of_the_disk_after_the_commit_names_where_the_model_is(tmp_path, monkeypatch, caplog):
    save(tmp_path, 1)

    def fails(source, target):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fails)
        with pytest.raises(OSError, match="Input/output error"):
            save(tmp_path, 2)
    (left,) = hidden(tmp_path)
    assert f"The model is complete in {tmp_path / left}; the next save or start moves it" in caplog.text
    assert values(tmp_path) == {1.0}
    saved_model.recover(tmp_path)
    assert values(tmp_path) == {2.0} and hidden(tmp_path) == []


def test_a_directory_with_the_name_of_a_file(tmp_path):
    save(tmp_path, 1)
    (tmp_path / "notes").mkdir()
    with pytest.raises(IsADirectoryError):
        save(tmp_path, 2, more={"notes": b""}.items())
    assert values(tmp_path) == {1.0} and hidden(tmp_path) == []


def test_files_in_directories_and_the_card(tmp_path):
    (tmp_path / "README.md").write_text("mine")
    with saved_model.replacing(tmp_path) as stage:
        assert (stage / "README.md").read_text() == "mine"
        (stage / "second").mkdir()
        (stage / "second" / "adapter_model.safetensors").write_bytes(b"1")
    assert (tmp_path / "second" / "adapter_model.safetensors").read_bytes() == b"1"
    assert (tmp_path / "README.md").read_text() == "mine" and hidden(tmp_path) == []


SAVES = """
import sys
from pathlib import Path
from oneloop.checkpoint import saved_model
with saved_model.replacing(Path(sys.argv[1])) as stage:
    (stage / "model.safetensors").write_bytes(b"theirs")
    print(stage.name, flush=True)
    sys.stdin.read()
"""


def test_a_save_of_another_process_is_left_alone(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    process = subprocess.Popen(
        [sys.executable, "-c", SAVES, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=ROOT,
    )
    name = process.stdout.readline().strip()
    saved_model.recover(tmp_path)
    assert hidden(tmp_path) == [name] and not caplog.records
    process.kill()
    process.wait()
    saved_model.recover(tmp_path)
    assert hidden(tmp_path) == [] and f"Removing {tmp_path / name}" in caplog.text


# -- through a Trainer


def test_the_next_start_completes_an_interrupted_save(backend, arguments, tmp_path, caplog):
    args = arguments(max_steps=1, per_device_train_batch_size=4)
    trainer = Trainer(backend.classifier(), args, train_dataset=rows(8))
    trainer.save_model()
    output = tmp_path / "out"
    before = (output / "model.safetensors").read_bytes()
    trainer.train()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saved_model, "_install", lambda saved, names: None)  # killed after the commit
        trainer.save_model()
    assert (output / "model.safetensors").read_bytes() == before
    weights = backend.weights(trainer.model)
    Trainer(backend.classifier(), args, train_dataset=rows(8)).train()
    assert "Completing the model in" in caplog.text and not list(output.glob(".model*"))
    stored = read(output / "model.safetensors")
    assert {name: bytes(raw.data) for name, raw in stored.items() if name in weights} == {
        name: np.asarray(value).tobytes() for name, value in weights.items() if name in stored
    }


def test_a_full_disk_is_an_error_that_says_what_to_do(backend, arguments, tmp_path, monkeypatch):
    trainer = Trainer(backend.classifier(), arguments(), train_dataset=rows(8))
    trainer.save_model()
    before = {path.name: path.read_bytes() for path in Path(tmp_path / "out").iterdir()}

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskError, match="No space left on device.*free some space"):
        trainer.save_model()
    assert {path.name: path.read_bytes() for path in Path(tmp_path / "out").iterdir()} == before
