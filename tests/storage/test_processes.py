"""Runs of several processes in object storage, on one machine and on two that share no disk."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from oneloop.storage import remote_checkpoints
from oneloop.storage.remote import RemoteDirectory
from tests.distributed.launch import ROOT, free_port

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not find_spec("torch"), reason="needs PyTorch")]
JOB = Path(__file__).with_name("processes_job.py")


def run(url, folder, sharding, machines, dies_at=""):
    """Two processes, each on its own machine or both on one; their exit statuses, what they said, and the result."""
    folder.mkdir()
    port, result = free_port(), folder / "result.json"
    children = []
    for rank in range(2):
        machine = {"LOCAL_RANK": "0" if machines == 2 else str(rank), "LOCAL_WORLD_SIZE": str(2 // machines)}
        machine["XDG_CACHE_HOME"] = str(folder / f"machine{rank if machines == 2 else 0}")
        group = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | machine | group
        argv = [sys.executable, str(JOB), url, str(result), sharding, *([dies_at] if dies_at else [])]
        with open(folder / f"{rank}.txt", "w") as said:
            children.append(subprocess.Popen(argv, env=environment, stdout=said, stderr=subprocess.STDOUT))
    statuses = [child.wait(300) for child in children]
    said = "\n".join((folder / f"{rank}.txt").read_text() for rank in range(2))
    return statuses, said, json.loads(result.read_text()) if result.exists() else None


@pytest.mark.parametrize("machines", [1, 2])
@pytest.mark.parametrize("sharding", ["", "stage3"])
def test_two_processes_resume_on_other_machines(sharding, machines, tmp_path):
    statuses, said, expected = run(f"file://{tmp_path}/whole", tmp_path / "first", sharding, machines)
    assert statuses == [0, 0], said
    url = f"file://{tmp_path}/resumed"
    statuses, said, _ = run(url, tmp_path / "second", sharding, machines, dies_at="5")
    assert all(statuses) and "Dies" in said
    assert list(remote_checkpoints.manifests(RemoteDirectory(url))) == ["checkpoint-4"]
    statuses, said, result = run(url, tmp_path / "third", sharding, machines)
    assert statuses == [0, 0] and result == expected, said
    assert list(remote_checkpoints.manifests(RemoteDirectory(url))) == ["checkpoint-6"]
    kept = set(RemoteDirectory(url).files())
    assert {"model.safetensors", "log.jsonl", "run.jsonl"} <= kept
