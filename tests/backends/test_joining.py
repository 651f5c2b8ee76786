"""Joining the other processes: what is wrong with the launcher or the backend is said before anything waits."""

import re

import pytest

from oneloop import TrainingArguments
from oneloop.backends import loading
from oneloop.distributed.collectives import SINGLE_PROCESS
from oneloop.distributed.world import world
from oneloop.errors import ArgumentError
from tests.backends.support import names

OF_TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
LAUNCHERS = {"paddle": "python -m paddle.distributed.launch", "mindspore": "msrun"}
FRAMEWORKS = [name for name in names() if name in LAUNCHERS]


@pytest.fixture
def join(monkeypatch, tmp_path):
    def of(framework, variables, **given):
        args = TrainingArguments(str(tmp_path), device="cpu", **given)
        args.bind(framework)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return loading.load(framework).parallel.init_process_group(args)

    return of


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_process_alone_joins_nobody(framework, join):
    assert join(framework, {}) is SINGLE_PROCESS


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_launcher_of_another_framework(framework, join):
    with pytest.raises(ArgumentError, match=f"launcher of torch. Start them with {re.escape(LAUNCHERS[framework])}"):
        join(framework, OF_TORCHRUN)


@pytest.mark.parametrize(("framework", "known"), [("paddle", "gloo"), ("mindspore", "mccl")])
def test_a_backend_that_cannot_connect_cpus(framework, known, join):
    if framework not in FRAMEWORKS:
        pytest.skip(f"{framework} is not installed")
    with pytest.raises(ArgumentError, match=f"'nccl' does not connect processes on the device cpu.*expected {known}"):
        join(framework, OF_TORCHRUN, ddp_backend="nccl")


def test_the_switchboard_of_msrun_is_none_of_the_workers(monkeypatch):
    for name, value in {"MS_ROLE": "MS_SCHED", "MS_WORKER_NUM": "2", "RANK_ID": "0"}.items():
        monkeypatch.setenv(name, value)
    here = world()
    assert (here.size, here.is_main, here.is_local_main, here.launcher) == (2, False, False, "mindspore")


@pytest.mark.skipif("mindspore" not in FRAMEWORKS, reason="MindSpore is not installed")
def test_the_switchboard_of_one_worker_ends(join):
    """The worker is alone and never asks for it; left to itself it would train too."""
    with pytest.raises(SystemExit) as caught:
        join("mindspore", {"MS_ROLE": "MS_SCHED", "MS_WORKER_NUM": "1"})
    assert caught.value.code == 0
