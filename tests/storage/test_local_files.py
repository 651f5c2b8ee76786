"""Files of a file:// URL are whole or absent, whenever the run that writes them is killed."""

import os
import shutil

import pytest

from oneloop.storage.remote import PARTIAL, RemoteDirectory


class Killed(BaseException):
    """Stands for a kill -9: nothing that follows is done."""


@pytest.fixture
def remote(tmp_path):
    return RemoteDirectory(f"file://{tmp_path}/run")


def test_a_kill_during_an_upload_leaves_the_file_as_it_was(remote, tmp_path, monkeypatch):
    source = tmp_path / "log.jsonl"
    source.write_text("1\n2\n")
    remote.upload(source, "log.jsonl")
    source.write_text("1\n2\n3\n")

    def half(fs, path, target, **options):
        with open(target, "w") as f:
            f.write("1\n")
        raise Killed

    monkeypatch.setattr(type(remote._fs), "put_file", half)
    with pytest.raises(Killed):
        remote.upload(source, "log.jsonl")
    assert remote.read("log.jsonl") == b"1\n2\n"
    assert remote.files() == {"log.jsonl": 4}  # what was begun is not listed
    monkeypatch.undo()
    remote.upload(source, "log.jsonl")
    assert remote.read("log.jsonl") == b"1\n2\n3\n"
    assert os.listdir(tmp_path / "run") == ["log.jsonl"]  # nor left behind


def test_a_kill_during_a_write_leaves_the_file_as_it_was(remote, monkeypatch):
    remote.write("folder/state", b"old")
    monkeypatch.setattr(os, "replace", lambda *_: exec("raise KeyboardInterrupt"))
    with pytest.raises(KeyboardInterrupt):
        remote.write("folder/state", b"newer")
    monkeypatch.undo()
    assert remote.read("folder/state") == b"old" and remote.sizes() == {"folder/state": 3}
    remote.write("folder/state", b"newer")
    assert remote.read("folder/state") == b"newer"


def test_a_folder_with_a_file_that_was_begun_can_be_removed(remote, tmp_path):
    remote.write("checkpoint-1/a", b"a")
    (tmp_path / "run" / "checkpoint-1" / f".b{PARTIAL}").write_bytes(b"b")
    remote.delete(f"checkpoint-1/{name}" for name in remote.sizes("checkpoint-1"))
    remote.remove_folder("checkpoint-1")
    assert not (tmp_path / "run" / "checkpoint-1").exists()
    shutil.rmtree(tmp_path / "run")
