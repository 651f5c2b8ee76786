"""A process that dies, hangs, is stopped or fails: the others leave with its name, and the run can go on."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.checkpoint.children import damage_of_latest, differences, log_lines, result
from tests.distributed import kills
from tests.distributed.launch import run, run_launched
from tests.distributed.watching import RUNNING, Launched, Watched

TIMEOUT = 8  # ddp_timeout of running.py


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    output = tmp_path_factory.mktemp("unbroken") / "run"
    run(2, "--output", output, "--no-sync", script=RUNNING)
    return output


def goes_on_to_the_same_end(output, unbroken):
    assert damage_of_latest(output) == []
    run(2, "--output", output, "--no-sync", "--resume", script=RUNNING)
    assert differences(result(output), result(unbroken)) == []
    assert log_lines(output) == log_lines(unbroken)


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_killed_process_is_named_and_the_run_goes_on(rank, tmp_path, unbroken):
    with Launched(2, tmp_path / "run", "--pause", 0.2) as run:
        run.signal(signal.SIGKILL, rank, step=5)
        pid = run.pid(rank)
        run.wait_for(
            rf"ProcessLostError: Process {rank} \(pid {pid} on .*\) has died. This process \({1 - rank} of 2\)"
        )
        assert run.end() == 1
    goes_on_to_the_same_end(tmp_path / "run", unbroken)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "rank", "place"),
    [
        ("tp2", 1, "tensor 1"),
        ("sp2", 0, "sequence 0"),
        ("ep2", 1, "expert 1"),
        ("tp2 x dp2", 3, "data 1, tensor 1"),
        ("tp2 x shard2", 2, "shard 1, tensor 0"),
        ("sp2 x shard2", 1, "shard 0, sequence 1"),
    ],
)
def test_a_killed_process_of_an_axis_is_named_with_its_place(layout, rank, place, tmp_path):
    processes = kills.LAYOUTS[layout][0]
    with Watched(processes, tmp_path / "run", "--pause", 0.3, *kills.options(12, layout=layout)) as run:
        run.signal(signal.SIGKILL, rank, step=3)
        run.wait_for(rf"ProcessLostError: Process {rank} \({place}, pid {run.pid(rank)} on .*\) has died")
        statuses = run.end()
    assert [statuses[other] for other in range(processes) if other != rank] == [1] * (processes - 1)
    assert damage_of_latest(tmp_path / "run") == []


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_stopped_process_is_named_within_the_timeout(rank, tmp_path):
    with Watched(2, tmp_path / "run", "--pause", 0.2) as run:
        run.signal(signal.SIGSTOP, rank, step=3)
        stopped = time.monotonic()
        run.wait_for(rf"ProcessLostError: Process {rank} \(pid \d+ on .*\) is stopped", seconds=TIMEOUT + 20)
        took = time.monotonic() - stopped
        os.kill(run.pid(rank), signal.SIGKILL)
        assert run.end()[1 - rank] == 1
    assert took >= TIMEOUT / 2  # it was given its time
    assert damage_of_latest(tmp_path / "run") == []


def test_a_process_that_hangs_is_named(tmp_path):
    """Its threads live, so it gives signs of life; but it does not come."""
    with Watched(2, tmp_path / "run", "--hang", "1:3") as run:
        run.wait_for(
            r"ProcessLostError: Process 1 \(pid \d+ on .*\) hangs: it is alive, but has not reached collective",
            seconds=TIMEOUT + 60,
        )
        run.wait_for(r"Process 1 is at \(most recent call last\):\n(.*\n)*?.*time.sleep\(600 if here == self.hang")
        run.wait_for(r"Process 0 waits at:\n(.*\n)*?.*oneloop/trainer/")
        os.kill(run.pid(1), signal.SIGKILL)
        assert run.end()[0] == 1


def test_a_process_that_fails_is_named_with_its_error(tmp_path):
    with Watched(2, tmp_path / "run", "--fail", "1:3") as run:
        run.wait_for(r"ProcessLostError: Process 1 \(pid \d+ on .*\) exited after an error: KeyError: 'broken'")
        assert run.end() == [1, 1]


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_signal_to_one_process_makes_all_save_the_same_step_and_leave(rank, tmp_path, unbroken):
    with Launched(2, tmp_path / "run", "--pause", 0.1) as run:
        run.signal(signal.SIGTERM, rank, step=5)
        assert run.end() == 1  # torchrun's own; those of the processes are in its report
        # torchrun ends the rest as soon as it sees that one has left, and reports only those that it has seen.
        assert run.said.count("Exit status 75.") == 2
        assert "exitcode  : 75" in run.said and "exitcode  : -" not in run.said
        assert run.said.count("Training interrupted (SIGTERM). Checkpoint saved to") == 2
    goes_on_to_the_same_end(tmp_path / "run", unbroken)


def test_every_process_ends_well():
    """Threads that outlive the interpreter abort a process at its end: the group is ended before, and they rest."""
    said = run_launched(2, script=Path(__file__).with_name("leaving.py"))
    assert all(f"rank {rank} done" in said for rank in range(2))


def killed(*argv):
    """The words of kills.py as a program, which ends with status 1 at the first difference."""
    return run(1, *argv, script=Path(__file__).with_name("kills.py"))


def test_killed_at_random():
    assert "2 kills, the same bytes" in killed("--seeds", 1, "--kills", 2, "--steps", 60)


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["", "stage1", "stage2", "stage3"])
def test_killed_at_random_again_and_again(sharding):
    assert "the same bytes" in killed("--seeds", 2, "--kills", 6, "--sharding", sharding)


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["", "stage1", "stage2", "stage3"])
def test_an_adapter_killed_at_random(sharding):
    pytest.importorskip("peft")
    assert "the same bytes" in killed("--seeds", 1, "--kills", 6, "--sharding", sharding, "--adapter")
