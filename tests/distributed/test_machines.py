"""Several machines under torchrun's c10d rendezvous: a run over two, the loss of one, and a restart on what is left."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.distributed.hosts import two_hosts  # noqa: F401
from tests.distributed.launch import environment
from tests.distributed.watching import RUNNING

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("ip") is None, reason="network namespaces need the command ip (iproute2)"),
]


def launch(host, first, said, *argv):
    """torchrun on one machine, its output in a file."""
    conf = f"is_host={host is first},last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3"
    options = ["--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-id=test"]
    options += [f"--rdzv-endpoint={first.address}:29400", f"--rdzv-conf={conf}", f"--local-addr={host.address}"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, str(RUNNING), *map(str, argv)]
    return subprocess.Popen(
        host.inside(command),
        stdout=open(said, "w"),
        stderr=subprocess.STDOUT,
        env=environment(GLOO_SOCKET_IFNAME=host.card),
        start_new_session=True,
    )


def wait_for(text, path, child, seconds=180):
    deadline = time.monotonic() + seconds
    while text not in path.read_text():
        assert child.poll() is None and time.monotonic() < deadline, f"never said {text!r}:\n{path.read_text()}"
        time.sleep(0.05)


@pytest.fixture
def cluster(two_hosts, tmp_path):  # noqa: F811
    """Both machines started: (hosts, children, files with what they say, output)."""
    said = [tmp_path / f"host{i}.log" for i in range(2)]
    argv = ("--output", tmp_path / "run", "--resume", "--no-sync")
    children = []

    def start(*more):
        for host, path in zip(two_hosts, said):
            children.append(launch(host, two_hosts[0], path, *argv, *more))
        return two_hosts, children, said, tmp_path / "run"

    yield start
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait(10)
    for pid in re.findall(r"rank \d pid (\d+)", "".join(path.read_text() for path in said if path.exists())):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def test_two_machines_train_as_one(cluster):
    _, children, said, output = cluster()
    assert [child.wait(240) for child in children] == [0, 0], said[0].read_text()
    assert json.loads((output / "result.json").read_text())["last"] == "checkpoint-12"
    assert "rank 0 done" in said[0].read_text() + said[1].read_text()
    assert "rank 1 done" in said[0].read_text() + said[1].read_text()


def test_a_machine_is_lost_and_the_run_goes_on_with_the_other(cluster):
    hosts, children, said, output = cluster("--steps", 30, "--pause", 0.3)
    wait_for("step 7\n", said[1], children[1])
    hosts[1].cut_off()
    wait_for("cannot continue without it and stops", said[0], children[0])
    wait_for("The launcher's store cannot be reached", said[1], children[1])
    assert children[0].wait(240) == 0, said[0].read_text()
    text = said[0].read_text()
    assert "was written by 2 process(es), this run has 1: an update keeps its 12 samples" in text
    assert json.loads((output / "result.json").read_text())["last"] == "checkpoint-30"
    lines = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 31))
