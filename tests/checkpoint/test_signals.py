"""Signals that ask a run to leave: it finishes its step, saves, and says by its exit status that it can go on."""

import os
import select
import signal
import subprocess
import sys
from signal import SIGCONT, SIGINT, SIGSTOP, SIGTERM, SIGUSR1

import pytest

from oneloop.checkpoint import store
from tests.checkpoint.children import checkpoint_names, differences, environment, result, signal_at, start

SLOW = ("--no-sync", "--slow", "0.2", "--set", "save_steps=50")  # without a signal there is one save, at the end
PREEMPTED = 75


@pytest.fixture(scope="module")
def runs(forks, tmp_path_factory):
    """Options of data -> a run that nothing interrupted, made once: signals and save_async change no result."""
    made = {}

    def make(*options):
        if options not in made:
            made[options] = tmp_path_factory.mktemp("unbroken") / "run"
            assert forks.run("--no-sync", "--set", "save_steps=50", *options, output=made[options]).status == 0
        return made[options]

    return make


@pytest.fixture
def unbroken(runs):
    return runs()


def own_signals(*names):
    return ("--set", "preemption_signals=[" + ",".join(f'"{name}"' for name in names) + "]")


@pytest.mark.parametrize(
    ("number", "options", "group"),
    [
        (SIGTERM, (), False),
        (SIGTERM, ("--workers", "2"), True),  # as schedulers do: to every process of the job
        (SIGUSR1, ("--workers", "2", *own_signals("SIGUSR1")), True),
        (SIGTERM, ("--set", "save_async=false"), False),
        (SIGUSR1, own_signals("SIGTERM", "SIGUSR1"), False),
    ],
    ids=["SIGTERM", "SIGTERM-to-workers-too", "SIGUSR1-to-workers-too", "save_async=False", "SIGUSR1"],
)
def test_leaves_with_a_checkpoint_of_that_step(number, options, group, forks, runs, tmp_path):
    base, output = runs(*options[: options.index("--set")] if "--set" in options else options), tmp_path / "run"
    argv = (*SLOW, *options)
    ended = forks.run(*argv, output=output, meanwhile=signal_at(6, number, output=output, group=group))
    assert ended.status == PREEMPTED, ended.output
    saved = store.latest(output)
    assert saved.step >= 6
    assert f"interrupted ({signal.Signals(number).name}). Checkpoint saved to {saved.path}" in ended.output
    assert store.problems(saved.path) == []
    assert f"step {saved.step + 1}\n" not in ended.output, "no step was begun after it"
    ended = forks.run(*argv, "--slow", "0", "--resume", "latest", output=output)
    assert ended.status == 0, ended.output
    assert differences(result(base), result(output)) == []


def wait_for_step(child, step):
    for line in child.stdout:
        if line == f"step {step}\n":
            return
    pytest.fail(f"the child ended before step {step}")


@pytest.mark.parametrize(("number", "status"), [(SIGTERM, PREEMPTED), (SIGINT, -SIGINT)])
def test_exit_status_of_the_interpreter(number, status, forks, unbroken, tmp_path):
    """SIGINT stays what a shell knows: KeyboardInterrupt, and death by SIGINT (130)."""
    output = tmp_path / "run"
    child = start(*SLOW, "--framework", forks.framework, output=output)
    wait_for_step(child, 5)
    child.send_signal(number)
    said, _ = child.communicate(timeout=120)
    assert child.returncode == status, said
    step = store.latest(output).step
    assert step >= 5
    assert f"interrupted ({signal.Signals(number).name}). Checkpoint saved to {output}/checkpoint-{step};" in said
    assert ": finishing this step, then saving and exiting" in said
    ended = forks.run(*SLOW, "--slow", "0", "--resume", "latest", output=output)
    assert ended.status == 0, ended.output
    assert differences(result(unbroken), result(output)) == []


def test_a_second_signal_leaves_at_once(forks, tmp_path):
    output = tmp_path / "run"
    ended = forks.run(
        "--no-sync", "--slow", "100", output=output, meanwhile=signal_at(1, SIGTERM, SIGTERM, output=output)
    )
    assert ended.status == -SIGTERM, "the first alone would have let the step end, and left with another status"
    assert checkpoint_names(output) == []


def test_stopping_and_continuing_changes_nothing(forks, unbroken, tmp_path):
    output = tmp_path / "run"
    meanwhile = signal_at(5, SIGSTOP, SIGCONT, SIGSTOP, SIGCONT, output=output, pause=0.2)
    ended = forks.run(*SLOW, output=output, meanwhile=meanwhile)
    assert ended.status == 0, ended.output
    assert differences(result(unbroken), result(output)) == []


def test_without_checkpoints_nothing_is_saved_and_that_is_said(forks, tmp_path):
    output = tmp_path / "run"
    argv = (*SLOW, "--set", 'save_strategy="no"', "--set", "load_best_model_at_end=false")
    ended = forks.run(*argv, output=output, meanwhile=signal_at(5, SIGTERM, output=output))
    assert ended.status == PREEMPTED
    assert "not saved: save_strategy is 'no'" in ended.output
    assert checkpoint_names(output) == []


ORPHAN = """
import multiprocessing, os, signal, sys, time
from oneloop.distributed.preemption import ignore_job_signals

def worker():
    while multiprocessing.parent_process().is_alive():  # the main process dies before anyone looks
        time.sleep(0.01)
    ignore_job_signals()
    time.sleep(600)

if __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[1]).Process(target=worker)
    child.start()
    print(child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_worker_does_not_outlive_a_killed_run(tmp_path, method):
    """Not even one whose main process died before the worker could remember who it was."""
    script = tmp_path / "orphan.py"
    script.write_text(ORPHAN)
    command = [sys.executable, str(script), method]
    main = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(), text=True)
    worker = os.pidfd_open(int(main.stdout.readline()))
    assert main.wait(60) == -signal.SIGKILL
    assert select.select([worker], [], [], 120)[0], "the worker is still there"
    os.close(worker)


def test_a_signal_that_is_not_configured_works_as_ever(forks, tmp_path):
    output = tmp_path / "run"
    meanwhile = signal_at(5, SIGTERM, output=output)
    ended = forks.run(*SLOW, *own_signals(), output=output, meanwhile=meanwhile)
    assert ended.status == -SIGTERM
    assert "checkpoint-5" not in checkpoint_names(output)
