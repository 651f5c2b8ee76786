"""Uploads without a run: in which order, what is tried again, and what is deleted after them."""

from oneloop.storage import lease
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
