"""Uploads without a run: in which order, what is tried again, and what is deleted after them."""

import pytest

from oneloop.errors import CheckpointError
from oneloop.storage import lease, loose_files, remote_checkpoints, staging
from oneloop.storage.lease import Lease
from oneloop.storage.mirror import Mirror, Upload, _Queue
from oneloop.storage.remote import RemoteDirectory
from tests.checkpoint.test_command import write
from tests.storage.support import URL, checkpoints

RUN = "a" * 16


def test_the_newest_comes_first_and_what_has_failed_again_after_a_while():
    queue, (first, second) = _Queue(), (Upload(f"checkpoint-{step}", step, RUN) for step in (2, 4))
    queue.add(first)
    queue.add(second)
    assert queue.next(0.0) == (second, False)
    queue.fail(second)
    assert queue.next(0.0) == (first, False) and queue.left() == ["checkpoint-4"]
    assert queue.next(0.0) == (second, False)  # there was nothing else to do
    queue.fail(second)
    queue.end()
    assert queue.next(0.0) == (second, True) and queue.next(0.0) == (None, True)


def test_nothing_is_deleted_after_an_incomplete_upload_or_by_a_run_that_has_lost_its_lease(storage, tmp_path):
    for step in (2, 4):
        write(tmp_path, step)
    mirror = Mirror(URL, tmp_path)
    assert mirror._upload(Upload("checkpoint-2", 2, RUN, limit=1))
    assert mirror._upload(Upload("checkpoint-4", 4, RUN, limit=1, rotates=False))
    assert checkpoints() == ["checkpoint-2", "checkpoint-4"]
    mirror.lease.is_lost = True
    assert mirror._upload(Upload("checkpoint-4", 4, RUN, limit=1))
    assert checkpoints() == ["checkpoint-2", "checkpoint-4"]
    mirror.lease.is_lost = False
    assert mirror._upload(Upload("checkpoint-4", 4, RUN, limit=1))
    assert checkpoints() == ["checkpoint-4"]


def test_a_lease_that_could_not_be_deleted_is_taken_anew_by_the_next_run(storage, monkeypatch):
    remote = RemoteDirectory(URL)
    first, second = Lease(remote), Lease(remote)
    assert first.take()
    with monkeypatch.context() as patch:
        patch.setattr(RemoteDirectory, "delete", lambda self, names: (_ for _ in ()).throw(OSError("503")))
        first.release()
    assert lease.NAME in remote.files()
    assert second.take()
    assert second._current()["token"] == second._token
    second.release()
    assert lease.NAME not in remote.files()


def test_a_renamed_copy_is_not_downloaded_as_a_checkpoint(storage, tmp_path):
    remote, folder = RemoteDirectory(URL), tmp_path / "local"
    folder.mkdir()
    remote_checkpoints.put(remote, write(tmp_path, 2), "checkpoint-7")
    with pytest.raises(CheckpointError, match="step"):
        staging.download(remote, "checkpoint-7", folder)
    assert list(folder.iterdir()) == []
    remote_checkpoints.put(remote, tmp_path / "checkpoint-2", "checkpoint-2")
    assert staging.download(remote, "checkpoint-2", folder) == folder / "checkpoint-2"


def test_logs_of_a_run_that_is_ahead_in_the_storage_replace_longer_ones(storage, tmp_path):
    remote, log = RemoteDirectory(URL), tmp_path / "log.jsonl"
    remote.write("log.jsonl", b"there")
    for here, is_ahead, expected in (("much longer", False, "much longer"), ("much longer", True, "there")):
        log.write_text(here)
        loose_files.download_records(remote, tmp_path, is_ahead)
        assert log.read_text() == expected
    log.write_text("a")
    loose_files.download_records(remote, tmp_path, is_ahead=False)
    assert log.read_text() == "there"
