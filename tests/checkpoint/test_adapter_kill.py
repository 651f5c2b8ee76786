"""LoRA with dropout that is killed at any moment and started again ends with the bytes of a run that never died.

PEFT writes its files by itself, so the points of kill_points.py do not cover them; the kills come from outside.
"""

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.checkpoint.children import Forks
from tests.checkpoint.test_kill import killed_run

pytest.importorskip("peft")
pytest.importorskip("torch")

COURSE = ("--no-sync", "--adapter", "--steps", "44", "--slow", "0.02", "--set", "save_steps=1")
KILLS = 6


@pytest.fixture(scope="module")
def server():
    server = Forks("torch", "peft")
    yield server
    server.close()


@pytest.fixture(scope="module")
def unbroken(server, tmp_path_factory):
    output = tmp_path_factory.mktemp("adapter") / "run"
    ended = server.run(*COURSE, output=output)
    assert ended.status == 0, ended.output
    return output


def after_a_step(moments, output):
    """Kill the child some time after its first step: it saves after each."""

    def kill(pid):
        said, deadline = Path(f"{output}.said"), time.monotonic() + 60
        child = os.pidfd_open(pid)
        while "step " not in (said.read_text() if said.exists() else "") and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.12))
        with contextlib.suppress(ProcessLookupError):  # on a busy machine it may have ended
            signal.pidfd_send_signal(child, signal.SIGKILL)
        os.close(child)

    return kill


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_at_random_moments(seed, server, unbroken, tmp_path):
    kill = after_a_step(random.Random(seed), tmp_path / "run")
    assert killed_run(server, COURSE, unbroken, [kill] * KILLS, tmp_path / "run") >= KILLS // 2
