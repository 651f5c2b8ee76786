"""Uploads without a run: in which order, what is tried again, and what is deleted after them."""

import threading

import pytest

from oneloop.errors import CheckpointError, StorageError
from oneloop.storage import lease, loose_files, remote_checkpoints, staging
from oneloop.storage.lease import Lease
from oneloop.storage.mirror import Mirror, _Queue
from oneloop.storage.references import Upload
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


def test_the_upload_that_was_begun_when_the_lease_was_lost_is_named_at_the_end(storage, tmp_path, caplog):
    write(tmp_path, 2)
    mirror = Mirror(URL, tmp_path)
    mirror.lease.is_lost = True
    mirror.submit(Upload("checkpoint-2", 2, RUN))
    mirror.finish(lambda mirror, thread: thread.join(10))
    assert "Not uploaded" in caplog.text and "checkpoint-2" in caplog.text and checkpoints() == []


# -- waiting for one


@pytest.fixture
def mirror(storage, tmp_path):
    """With checkpoint-2 in its directory."""
    write(tmp_path, 2)
    found = Mirror(URL, tmp_path)
    yield found
    found.finish(lambda mirror, thread: thread.join(10))


def ensured(mirror):
    """A thread that waits for checkpoint-2, and the error that it ended with."""
    errors = []

    def wait():
        try:
            mirror.ensure("checkpoint-2")
        except StorageError as error:
            errors.append(str(error))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread, errors


def test_one_that_is_being_uploaded_is_waited_for(mirror, storage):
    gate, begun = threading.Event(), threading.Event()

    def fault(kind, path):
        if kind == "put_file" and threading.current_thread().name == "oneloop-upload":
            begun.set()
            gate.wait(10)

    storage.fault = fault
    mirror.submit(Upload("checkpoint-2", 2, RUN))
    assert begun.wait(10)
    thread, errors = ensured(mirror)
    thread.join(0.05)
    assert thread.is_alive()
    gate.set()
    thread.join(5)
    assert not thread.is_alive() and errors == [] and checkpoints() == ["checkpoint-2"]


def test_one_that_all_processes_have_uploaded_is_not_waited_for(mirror, tmp_path):
    remote_checkpoints.put(mirror.remote, tmp_path / "checkpoint-2", "checkpoint-2")
    mirror.mark_uploaded("checkpoint-2", (tmp_path / "checkpoint-2" / "manifest.json").read_bytes())
    mirror.start()
    mirror.ensure("checkpoint-2")


def test_during_a_run_one_that_was_not_uploaded_is_an_error(mirror):
    mirror.start()
    with pytest.raises(StorageError, match="checkpoint-2 could not be uploaded"):
        mirror.ensure("checkpoint-2")
    assert checkpoints() == []


def test_a_run_that_has_lost_its_lease_does_not_wait(mirror):
    mirror.lease.is_lost = True
    mirror.submit(Upload("checkpoint-2", 2, RUN))
    thread, errors = ensured(mirror)
    thread.join(5)
    assert not thread.is_alive() and "checkpoint-2 could not be uploaded" in errors[0]
    mirror.submit(Upload("checkpoint-2", 2, RUN))
    thread, errors = ensured(mirror)
    thread.join(5)
    assert not thread.is_alive() and "checkpoint-2 could not be uploaded" in errors[0]


def test_a_lease_that_could_not_be_deleted_is_taken_anew_by_the_next_run(storage, monkeypatch):
    remote = RemoteDirectory(URL)
    first, second = Lease(remote), Lease(remote)
    assert first.acquire()
    with monkeypatch.context() as patch:
        patch.setattr(RemoteDirectory, "delete", lambda self, names: (_ for _ in ()).throw(OSError("503")))
        first.release()
    assert lease.NAME in remote.files()
    assert second.acquire()
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
