"""Runs in a bucket, over the S3 protocol: faults of the network, and processes that are killed."""

import json
import logging
import os
import signal
import threading
from pathlib import Path

import pytest

from oneloop.checkpoint import store
from oneloop.cli.main import main
from oneloop.storage import lease as lock
from oneloop.storage import remote_checkpoints
from oneloop.storage.multi_node_upload import new_place
from oneloop.storage.remote import RemoteDirectory
from tests.backends.support import available, same_bytes
from tests.storage.machine_pair import FILES, Pair
from tests.storage.s3.conftest import SECRET
from tests.storage.s3.proxy import CHANGES
from tests.storage.support import interrupted, made, whole

KILLED = -signal.SIGKILL


def test_a_run_in_a_bucket_resumes_on_an_empty_machine(bucket, monkeypatch, tmp_path, capsys, caplog):
    url, kit = f"s3://{bucket[0]}/some/run", available()[0]
    reference = made(str(tmp_path / "disk"), max_steps=4)
    reference.train()
    interrupted(made, url, at=3, max_steps=4)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "machine2"))
    trainer = made(url, max_steps=4)
    trainer.train(resume_from_checkpoint=True)
    trainer.save_model()
    kept = {path.split("/", 3)[3] for path in bucket[1].find(f"{bucket[0]}/some/run")}
    assert {"model.safetensors", "log.jsonl", "run.jsonl", "checkpoint-4/manifest.json"} <= kept
    assert not [name for name in kept if name.startswith((".", "checkpoint-2"))]
    for command in (["checkpoints", url, "verify"], ["report", url], ["compare", url, "-o", str(tmp_path / "c.html")]):
        assert main(command) == 0
    assert "checkpoint-4" in capsys.readouterr().out
    text = caplog.text + "".join(p.read_text(errors="replace") for p in tmp_path.rglob("*.json*"))
    assert SECRET not in text and "AKIDTESTING" not in text
    assert same_bytes(kit.weights(reference.model), kit.weights(trainer.model))


def test_the_lease_is_a_conditional_write(bucket):
    remote = RemoteDirectory(f"s3://{bucket[0]}/run")
    assert remote.can_create
    remote.create("object", b"first")
    with pytest.raises(FileExistsError):
        remote.create("object", b"second")
    assert remote.read("object") == b"first"
    other = [RemoteDirectory(f"s3://{bucket[0]}/run") for _ in range(4)]
    won = []

    def create(each):
        try:
            each.create("contested", b"mine")
            won.append(each)
        except FileExistsError:
            pass

    threads = [threading.Thread(target=create, args=(each,)) for each in other]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


@pytest.mark.parametrize("fault", ["500", "drop", "lose", "hang", "cut"])
def test_faults_of_the_network_change_nothing(fault, bucket, proxy, tmp_path, monkeypatch, caplog):
    """Every seventh request fails, those of the start and of a resume as well."""
    url, kit, count = f"s3://{bucket[0]}/run", available()[0], [0]
    reference = made(str(tmp_path / "disk"), max_steps=4)
    reference.train()

    def failing(method, path, number):
        count[0] += 1
        is_hit = count[0] % (31 if fault == "hang" else 7) == 3
        return fault if is_hit and not (fault == "cut" and method != "GET") else None

    proxy.hangs, proxy.fault = 1.5, failing
    interrupted(made, url, at=3, max_steps=4)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "machine2"))
    trainer = made(url, max_steps=4)
    trainer.train(resume_from_checkpoint=f"{url}/checkpoint-2")
    proxy.fault = None
    assert whole(tmp_path / "verified", url) == [4]
    assert trainer.state.global_step == 4
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert same_bytes(kit.weights(reference.model), kit.weights(trainer.model))


@pytest.mark.parametrize("fault", ["500", "drop", "lose", "cut"])
def test_machines_that_share_no_disk_commit_in_a_bucket(fault, bucket, proxy, tmp_path, monkeypatch):
    """Every seventh request fails, of either machine."""
    monkeypatch.setattr("oneloop.storage.remote.FIRST_PAUSE", 0.0)
    url, count = f"s3://{bucket[0]}/run", [0]
    pair = Pair(tmp_path, url)

    def failing(method, path, number):
        count[0] += 1
        return fault if count[0] % 7 == 3 and not (fault == "cut" and method != "GET") else None

    proxy.fault = failing
    pair.save(2)
    pair.save(4, value=7)
    pair.save(4, value=9, place=new_place("checkpoint-4", is_taken=True))
    proxy.fault = None
    assert whole(tmp_path / "verified", url) == [2, 4] and count[0] > 20
    kept = [path.split("/", 2)[2] for path in bucket[1].find(f"{bucket[0]}/run")]
    assert sorted(kept) == sorted(f"checkpoint-{step}/{name}" for step in (2, 4) for name in FILES)


def test_an_outage_during_the_run(bucket, proxy, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("oneloop.storage.remote.FIRST_PAUSE", 0.0)
    url, kit = f"s3://{bucket[0]}/run", available()[0]
    reference = made(str(tmp_path / "disk"))
    reference.train()
    interrupted(made, url, at=3)
    proxy.fault = lambda method, path, number: "drop" if "checkpoint-" in path and method == "PUT" else None
    trainer = made(url)
    trainer.train(resume_from_checkpoint=True)
    assert same_bytes(kit.weights(trainer.model), kit.weights(reference.model))
    assert "Not uploaded" in caplog.text and whole(tmp_path / "during", url) == [2]
    proxy.fault = None
    made(url).train(resume_from_checkpoint=True)
    assert whole(tmp_path / "after", url) == [6]


# -- processes that are killed


def changes(requests):
    """Those that change the storage, without renewals of the lease: their number depends on the time."""
    found = [each for each in requests if each[0] in CHANGES]
    lease = [i for i, (method, path) in enumerate(found) if method == "PUT" and lock.NAME in path]
    return [each for i, each in enumerate(found) if i not in lease[1:]]


class Kill:
    """Kills a process at a change that it requests: before the server sees it, or after."""

    def __init__(self, proxy, at, after, only=""):
        self.proxy, self.at, self.after, self.only = proxy, at, after, only
        self.pid, self.path, self.requests, self.started = None, None, [], threading.Event()
        self.lock = threading.Lock()

    def __call__(self, method, path, number):
        if self.only not in path:
            return None
        with self.lock:  # several files are sent at once
            self.requests.append((method, path))
            if self.path is not None or len(changes(self.requests)) != self.at:
                return None
            self.path = path
        if self.after:
            return self.kill
        self.kill()
        return "drop"

    def kill(self):
        self.started.wait(30)
        os.kill(self.pid, signal.SIGKILL)

    def start(self, pid):
        self.pid = pid
        self.started.set()


def finished(processes, url, folder, **given):
    """The result of a run to its end, in a process."""
    result = folder / "result.json"
    status = processes.run("train", folder / "output.txt", url=url, result=str(result), **given)
    assert status == 0, (folder / "output.txt").read_text()
    return json.loads(result.read_text())


def killed_and_restarted(processes, bucket, proxy, monkeypatch, folder, points, same_machine, **given):
    """Runs that are killed at changes, each followed by one to the end: what is wrong, and the exit statuses. `points`
    are their numbers, given that of all changes, and whether the storage makes it."""
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "reference"))
    proxy.requests.clear()
    expected = finished(processes, f"s3://{bucket[0]}/reference", folder, **given)
    count = len(changes(proxy.requests))
    wrong, statuses = [], []
    for number, (at, after) in enumerate(points(count)):
        url, place = f"s3://{bucket[0]}/run{number}", folder / str(number)
        place.mkdir()
        monkeypatch.setenv("XDG_CACHE_HOME", str(place / "first"))
        kill = proxy.fault = Kill(proxy, at, after, f"/run{number}/")
        proxy.requests.clear()
        first = {"url": url, "result": str(place / "first.json")}
        statuses.append(processes.run("train", place / "killed.txt", kill.start, **first, **given))
        proxy.fault = None
        done = [path for method, path in proxy.requests if method == "PUT" and (after or path != kill.path)]
        committed, before = any("/manifest.json" in path for path in done), whole(place / "verified", url)
        if not same_machine:
            monkeypatch.setenv("XDG_CACHE_HOME", str(place / "second"))
        got = finished(processes, url, place, **given)
        left = remote_checkpoints.leftovers(RemoteDirectory(url))
        steps = whole(place / "at_end", url)
        is_alive = statuses[-1] != KILLED and len(changes(kill.requests)) >= at
        if got != expected or left or steps != [6] or (committed and not before) or is_alive:
            wrong.append((at, after, got, committed, before, left, steps))
    return wrong, statuses


@pytest.mark.parametrize("same_machine", [False, True], ids=["empty machine", "same machine"])
def test_killed_runs_end_with_the_same_bytes(same_machine, processes, bucket, proxy, monkeypatch, tmp_path):
    def points(count):
        return [(2, True), (4, True), (7, False), (10, False), (12, True)]  # every run makes so many

    wrong, statuses = killed_and_restarted(processes, bucket, proxy, monkeypatch, tmp_path, points, same_machine)
    assert not wrong
    assert statuses.count(KILLED) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("same_machine", [False, True], ids=["empty machine", "same machine"])
def test_killed_at_every_change(same_machine, processes, bucket, proxy, monkeypatch, tmp_path):
    """The runs wait for each upload, so that all make the same changes, some 50. On a slow machine a request may be
    repeated; if that was in the run that counts them, the others end before the last ones."""

    def points(count):
        return [(at, at % 2 == same_machine) for at in range(1, count + 1)]

    given = {"points": points, "same_machine": same_machine, "waits": True}
    wrong, statuses = killed_and_restarted(processes, bucket, proxy, monkeypatch, tmp_path, **given)
    assert not wrong
    assert statuses.count(KILLED) >= 50


def test_killed_between_the_parts_of_a_large_file(processes, bucket, proxy, monkeypatch, tmp_path):
    """A checkpoint of more than 100 MB is sent in parts; another one is complete meanwhile."""
    url = f"s3://{bucket[0]}/large"
    trainer = made(url, max_steps=2)
    trainer.train()
    stage = store.open_stage(tmp_path, 4)
    for path in Path(trainer.args.output_dir, "checkpoint-2").iterdir():
        if path.name != store.MANIFEST:
            (stage / path.name).write_bytes(path.read_bytes())
    (stage / "large.bin").write_bytes(os.urandom(1 << 20) * 120)
    folder = store.commit(stage, 4, "run", "save", {}).path
    given = {"url": url, "folder": str(folder), "name": "checkpoint-4"}
    kill = Kill(proxy, 2, True, "partNumber")
    proxy.fault = kill
    assert processes.run("upload", tmp_path / "output.txt", kill.start, **given) == KILLED
    proxy.fault = None
    assert sorted(remote_checkpoints.manifests(RemoteDirectory(url))) == ["checkpoint-2"]
    assert remote_checkpoints.leftovers(RemoteDirectory(url)) == ["checkpoint-4"]
    dropped = []

    def drop_once(method, path, number):
        if "partNumber" in path and len(dropped) < 2:
            dropped.append(path)
            return "drop"
        return None

    proxy.fault = drop_once
    assert processes.run("upload", tmp_path / "output.txt", **given) == 0, (tmp_path / "output.txt").read_text()
    proxy.fault = None
    assert len(dropped) == 2 and "checkpoint-4" in remote_checkpoints.manifests(RemoteDirectory(url))
    sent = bucket[1].cat_file(f"{bucket[0]}/large/checkpoint-4/large.bin")
    assert sent == (folder / "large.bin").read_bytes()
