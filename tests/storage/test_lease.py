"""The lease of a run on its URL."""

import json
import os
import subprocess
import sys
import threading

import pytest

from oneloop.errors import CheckpointError
from oneloop.storage import lease
from oneloop.storage.lease import Lease
from oneloop.storage.remote import RemoteDirectory
from tests.storage.support import URL, At, checkpoints, wait_for


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Lives of leases in hundredths of a second."""
    for name, seconds in {"RENEWED": 0.02, "EXPIRY": 0.3, "PATIENCE": 0.05, "POLL_SECONDS": 0.01}.items():
        monkeypatch.setattr(lease, name, seconds)


@pytest.fixture
def remote(storage):
    return RemoteDirectory(URL)


def elsewhere(remote, **given):
    """A lease as a process on another machine has it."""
    found = {"token": "other", "host": "elsewhere", "pid": 17, "machine": "elsewhere", "renewed": "0"} | given
    remote.write(lease.NAME, json.dumps(found).encode())


def test_a_run_elsewhere_that_renews_its_lease_keeps_others_out(remote, make, storage, monkeypatch):
    monkeypatch.setattr(lease, "EXPIRY", 30)  # a busy machine may renew it late
    ends = threading.Event()

    def renew(count=0):
        while not ends.wait(0.01):
            count += 1
            elsewhere(remote, renewed=str(count))

    elsewhere(remote)
    other = threading.Thread(target=renew)
    other.start()
    try:
        with pytest.raises(CheckpointError, match="in use by another run, process 17 on elsewhere"):
            make(max_steps=2).train()
    finally:
        ends.set()
        other.join()
    assert [path for path in storage.store if "checkpoint" in path] == []


def test_a_lease_that_is_not_renewed_is_void(remote, make, caplog):
    elsewhere(remote, host="else\x1b[2Jwhere")
    make(max_steps=2).train()
    assert r"has died (another run, process 17 on else\x1b[2Jwhere)" in caplog.text
    assert lease.NAME not in remote.files()  # released


class Elsewhere(set):
    """No lease is one of this process: each waiting run is on a machine of its own."""

    def __contains__(self, token):
        return False


@pytest.mark.parametrize("where", ["memory", "file"])
@pytest.mark.parametrize("paused", ["before its first change", "after its claim"])
def test_of_two_machines_that_wait_for_a_dead_lease_one_gets_it(remote, where, paused, monkeypatch, tmp_path):
    """The second has found the lease dead; then the first takes it; then the second goes on."""
    monkeypatch.setattr(lease, "_held", Elsewhere())
    monkeypatch.setattr(lease, "_is_dead", lambda current: False)
    if where == "file":
        remote = RemoteDirectory(f"file://{tmp_path}/run")
    elsewhere(remote)
    first, second, is_paused, goes_on = Lease(remote), Lease(remote), threading.Event(), threading.Event()

    class Slow(RemoteDirectory):
        def _pause(self):
            if not is_paused.is_set():
                is_paused.set()
                assert goes_on.wait(30)

        def delete(self, names):
            self._pause()
            super().delete(names)

        def create(self, name, data):
            if name != lease.NAME and paused == "before its first change":
                self._pause()
            super().create(name, data)

    second.remote = Slow(remote.url)
    results = []
    waiting = threading.Thread(target=lambda: results.append(second.acquire()))
    waiting.start()
    assert is_paused.wait(30)
    taking = threading.Thread(target=lambda: results.append(first.acquire()))
    taking.start()
    if paused == "before its first change":
        taking.join(30)  # the first has it now
        assert results == [True]
    goes_on.set()
    for thread in (waiting, taking):
        thread.join(30)
    assert sorted(results) == [False, True]
    first.release()
    second.release()
    assert [name for name in remote.files() if name.startswith(lease.NAME)] == []


def test_a_claim_whose_owner_died_is_void_too(remote):
    elsewhere(remote)
    first = Lease(remote)
    first.remote = RemoteDirectory(URL)
    first.remote.delete = lambda names: exec("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):  # it dies once it has the claim
        first.acquire()
    assert len(remote.files()) == 2
    second = Lease(remote)
    assert second.acquire()
    assert list(remote.files()) == [lease.NAME]
    second.release()


def test_the_lost_answer_to_a_claim_costs_nothing(remote, storage, monkeypatch):
    original, lost = storage.pipe_file, []
    elsewhere(remote, pid=2**22 + 1, machine=lease._machine())
    monkeypatch.setattr(lease, "EXPIRY", 1e9)

    def create(self, path, value, mode="overwrite", **kwargs):
        original(self, path, value, mode=mode, **kwargs)
        if mode == "create" and "claim" in path and not lost:
            lost.append(True)
            raise ConnectionError

    monkeypatch.setattr(storage, "pipe_file", create)
    own = Lease(remote)
    assert own.acquire() and lost
    own.release()


def test_the_lease_of_a_dead_process_of_this_machine_is_void_at_once(remote, monkeypatch):
    monkeypatch.setattr(lease, "EXPIRY", 1e9)
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    elsewhere(remote, pid=child.pid, machine=lease._machine())
    own = Lease(remote)
    assert own.acquire()
    own.release()
    elsewhere(remote, pid=os.getppid(), machine=lease._machine())  # alive
    monkeypatch.setattr(lease, "EXPIRY", 0.2)
    another = Lease(remote)
    assert another.acquire()
    another.release()  # or its thread renews it in the tests that follow


def test_a_number_of_a_process_says_nothing_on_another_machine():
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    assert lease._is_dead({"pid": child.pid, "machine": lease._machine()})
    assert not lease._is_dead({"pid": child.pid, "machine": "elsewhere"})
    assert not lease._is_dead({"pid": os.getppid(), "machine": lease._machine()})


def test_two_trainers_of_one_process_share_it_and_it_is_renewed(remote):
    first, second = Lease(remote), Lease(remote)
    assert first.acquire() and second.acquire()
    before = remote.read(lease.NAME)
    for _ in range(3000):
        if remote.read(lease.NAME) != before:
            break
        threading.Event().wait(0.01)
    assert remote.read(lease.NAME) != before
    second.release()
    assert lease.NAME in remote.files()
    first.release()
    assert lease.NAME not in remote.files()


def test_a_run_whose_lease_was_taken_uploads_nothing_more(remote, make, caplog, storage):
    def take():
        wait_for(["checkpoint-2"])
        for _ in range(1000):  # the run may just be renewing its lease, and replace the other one once
            elsewhere(remote)
            if "has been taken by another run" in caplog.text:
                break
            threading.Event().wait(0.01)

    trainer = make(callbacks=[At(3, take)], max_steps=6, save_async=False)
    trainer.train()
    assert trainer.state.global_step == 6 and checkpoints() == ["checkpoint-2"]
    assert json.loads(remote.read(lease.NAME))["token"] == "other"
    assert "Not uploaded" in caplog.text


def test_an_answer_that_is_lost_does_not_lock_a_run_out(remote, storage, monkeypatch):
    """The storage has created the object, but the client only sees an error, and asks again."""
    original, lost = storage.pipe_file, []

    def create(self, path, value, mode="overwrite", **kwargs):
        original(self, path, value, mode=mode, **kwargs)
        if mode == "create" and not lost:
            lost.append(True)
            raise ConnectionError

    monkeypatch.setattr(storage, "pipe_file", create)
    own = Lease(remote)
    assert own.acquire() and lost
    own.release()


def test_a_storage_without_conditional_writes_is_warned_about(remote, monkeypatch, caplog):
    monkeypatch.setattr(RemoteDirectory, "can_create", False)
    assert Lease(remote).acquire()
    assert "cannot be locked" in caplog.text
    assert not remote.files()


def test_which_storages_have_conditional_writes(remote, tmp_path):
    from fsspec.implementations.memory import MemoryFileSystem
    from fsspec.spec import AbstractFileSystem

    assert RemoteDirectory("memory://a/b").can_create
    local = RemoteDirectory(f"file://{tmp_path}/a")
    assert local.can_create
    local.create("x", b"1")
    with pytest.raises(FileExistsError):
        local.create("x", b"2")
    assert local.read("x") == b"1"
    other = RemoteDirectory("memory://a/b")

    class Plain(MemoryFileSystem):
        pipe_file = AbstractFileSystem.pipe_file  # which looks, and then writes

    other._fs = Plain()
    assert not other.can_create
