"""Runs of several processes in object storage, on one machine and on two that share no disk."""

import json
import os
import signal
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from oneloop.storage import remote_checkpoints
from oneloop.storage.remote import RemoteDirectory
from tests.distributed.launch import ROOT, free_port

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not find_spec("torch"), reason="needs PyTorch")]
JOB = Path(__file__).with_name("processes_job.py")
# A machine sees an empty directory where the other has its disk.
APART = ["unshare", "--map-root-user", "--mount", "sh", "-c", 'mount --bind "$1" "$2" && shift 2 && exec "$@"', "sh"]


@cache
def can_be_apart(folder):
    try:
        return subprocess.run([*APART, folder, folder, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.fixture
def start(tmp_path):
    """Start two processes, each on its own machine or both on one, and wait for them: their exit statuses, what they
    said, and the result."""
    numbers = iter(range(100))

    def start(url, machines=2, **options):
        folder = tmp_path / f"run{next(numbers)}"
        places = [folder / f"machine{rank}" for rank in range(2)]
        for place in (*places, folder / "empty"):
            place.mkdir(parents=True)
        if machines == 2 and not can_be_apart(str(folder)):
            pytest.skip("mount namespaces cannot be made here (unshare)")
        port, result, children = free_port(), folder / "result.json", []
        for rank in range(2):
            machine = {"LOCAL_RANK": "0" if machines == 2 else str(rank), "LOCAL_WORLD_SIZE": str(2 // machines)}
            machine["XDG_CACHE_HOME"] = str(places[rank if machines == 2 else 0])
            group = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | machine | group
            argv = [sys.executable, str(JOB), url, str(result), json.dumps(options)]
            if machines == 2:
                argv = [*APART, str(folder / "empty"), str(places[1 - rank]), *argv]
            with open(folder / f"{rank}.txt", "w") as said:
                children.append(subprocess.Popen(argv, env=environment, stdout=said, stderr=subprocess.STDOUT))
        statuses = [child.wait(300) for child in children]
        said = "\n".join((folder / f"{rank}.txt").read_text() for rank in range(2))
        return statuses, said, json.loads(result.read_text()) if result.exists() else None

    return start


def complete(url):
    return sorted(remote_checkpoints.manifests(RemoteDirectory(url)))


def left_over(url):
    return remote_checkpoints.leftovers(RemoteDirectory(url))


def shards(url, name):
    return [file for file in RemoteDirectory(url).sizes(name) if "-of-00002" in file]


@pytest.mark.parametrize("machines", [1, 2])
@pytest.mark.parametrize("sharding", ["", "stage1", "stage3"])
def test_two_processes_resume_on_other_machines(sharding, machines, start, tmp_path):
    given = {"machines": machines, "arguments": {"sharding": sharding}}
    statuses, said, expected = start(f"file://{tmp_path}/whole", **given)
    assert statuses == [0, 0], said
    url = f"file://{tmp_path}/resumed"
    statuses, said, _ = start(url, dies_at=5, **given)
    assert all(statuses) and "Dies" in said
    assert complete(url) == ["checkpoint-4"] and bool(shards(url, "checkpoint-4")) == bool(sharding)
    assert "not visible to all" not in said
    statuses, said, result = start(url, **given)
    assert statuses == [0, 0] and result == expected, said
    assert complete(url) == ["checkpoint-6"] and left_over(url) == []
    assert {"model.safetensors", "log.jsonl", "run.jsonl"} <= set(RemoteDirectory(url).files())
    assert result["local"] == [["checkpoint-6"], ["checkpoint-6"] if machines == 1 else []]


@pytest.mark.parametrize("sharding", ["", "stage3"])
def test_the_best_model_is_loaded_on_machines_that_share_no_disk(sharding, start, tmp_path):
    """The best checkpoint is that of the second evaluation, also for a run that is resumed after it."""
    given = {"arguments": {"sharding": sharding}, "best": True}
    statuses, said, expected = start(f"file://{tmp_path}/one", machines=1, **given)
    assert statuses == [0, 0] and expected["best"] == "checkpoint-4", said
    statuses, said, result = start(f"file://{tmp_path}/two", **given)
    assert statuses == [0, 0], said
    assert complete(f"file://{tmp_path}/two") == ["checkpoint-4", "checkpoint-6"]
    assert result.pop("local") == [["checkpoint-4", "checkpoint-6"], []]
    del expected["local"]
    assert result == expected
    url = f"file://{tmp_path}/resumed"
    statuses, said, _ = start(url, dies_at=5, **given)
    assert all(statuses) and complete(url) == ["checkpoint-2", "checkpoint-4"], said
    statuses, said, result = start(url, **given)
    del result["local"]
    assert statuses == [0, 0] and result == expected, said


@pytest.mark.parametrize("rank", [0, 1], ids=["main", "other"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_machine_that_is_killed_while_it_uploads(rank, number, start, tmp_path):
    """The earlier checkpoint stays the newest, and the run goes on from there on empty machines."""
    given = {"arguments": {"sharding": "stage3", "save_steps": 2}}
    statuses, said, expected = start(f"file://{tmp_path}/whole", **given)
    assert statuses == [0, 0], said
    url = f"file://{tmp_path}/run"
    statuses, said, _ = start(url, killed=["checkpoint-4", rank, number], **given)
    assert statuses[rank] == -signal.SIGKILL and statuses[1 - rank], said
    assert complete(url) == ["checkpoint-2"] and left_over(url) == ["checkpoint-4"]
    statuses, said, result = start(url, **given)
    assert statuses == [0, 0] and result == expected, said
    assert complete(url) == ["checkpoint-6"] and left_over(url) == []
