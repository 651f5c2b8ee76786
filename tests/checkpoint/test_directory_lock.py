"""Two runs with one output directory: the second says who has it, and takes nothing from the first."""

import os
import signal
import subprocess
import sys

import pytest

from oneloop import TrainerCallback, get_last_checkpoint
from oneloop.checkpoint import directory_lock, store
from oneloop.checkpoint.directory_lock import DirectoryLock
from oneloop.errors import CheckpointError
from tests.backends.support import names, rows
from tests.checkpoint.children import ROOT, checkpoint_names, damage_of_latest, environment, signal_at

if "mindspore" in names():
    import mindspore  # noqa: F401  before Paddle, whichever tests are chosen

HOLDS = """
import sys, time
from pathlib import Path
from oneloop.checkpoint.directory_lock import DirectoryLock
assert DirectoryLock().acquire(Path(sys.argv[1]), 0)
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def other(tmp_path):
    """A process that holds tmp_path for some seconds."""
    made = []

    def start(seconds):
        made.append(
            subprocess.Popen(
                [sys.executable, "-c", HOLDS, str(tmp_path), str(seconds)],
                stdout=subprocess.PIPE,
                text=True,
                env=environment(),
                cwd=ROOT,
            )
        )
        assert made[0].stdout.readline() == "held\n"
        return made[0]

    yield start
    for process in made:
        process.kill()
        process.wait()


def test_a_second_run_is_refused_and_the_first_goes_on(forks, trainer, tmp_path, monkeypatch):
    monkeypatch.setattr(directory_lock, "PATIENCE", 0.3)
    output, met = tmp_path / "run", []
    late = trainer("--no-sync")  # ready before the first starts, which may be quicker than an import

    def second(pid):
        signal_at(4, output=output)(pid)
        unfinished = store.open_stage(output, 99)  # as if the first were writing it
        with pytest.raises(CheckpointError, match=f"in use by another run, process {pid}: two runs would delete"):
            late.train()
        met.append(unfinished.is_dir())
        unfinished.rmdir()

    ended = forks.run("--no-sync", "--slow", 0.2, output=output, meanwhile=second)
    assert ended.status == 0, ended.output
    assert met == [True]
    assert damage_of_latest(output) == [] and get_last_checkpoint(output) is not None


def test_a_run_that_was_killed_holds_nothing_through_its_workers(forks, tmp_path):
    """They were forked from it, and live a little longer."""
    output = tmp_path / "run"
    given = ("--no-sync", "--set", "dataloader_num_workers=2")
    killed = forks.run(*given, "--slow", 0.2, output=output, meanwhile=signal_at(4, signal.SIGKILL, output=output))
    assert killed.status == -signal.SIGKILL
    with DirectoryLock() as hold:
        assert hold.acquire(output, 0)  # without waiting for them to end
    assert forks.run(*given, "--resume", "latest", output=output).status == 0


def test_one_that_leaves_is_waited_for(other, backend, trained, tmp_path, caplog):
    process = other(1.0)
    trained(backend.classifier(), rows(8), output_dir=tmp_path, max_steps=2, save_strategy="steps", save_steps=1)
    assert f"is in use by another run, process {process.pid}; waiting for it to end" in caplog.text
    assert checkpoint_names(tmp_path) == ["checkpoint-1", "checkpoint-2"]


def test_a_run_without_checkpoints_needs_no_hold_and_clears_nothing_away(other, backend, trained, tmp_path):
    unfinished = store.open_stage(tmp_path, 5)
    process = other(60)
    trained(backend.classifier(), rows(8), output_dir=tmp_path, max_steps=1)
    assert unfinished.is_dir()
    process.kill()
    process.wait()
    trained(backend.classifier(), rows(8), output_dir=tmp_path, max_steps=1)
    assert not unfinished.exists()


def test_runs_of_one_process_are_its_own_affair(backend, trained, tmp_path):
    class Trains(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            trained(backend.classifier(), rows(8), output_dir=tmp_path, max_steps=1, save_strategy="epoch")

    given = {"output_dir": tmp_path, "max_steps": 1, "save_strategy": "epoch"}
    trained(backend.classifier(), rows(8), callbacks=[Trains()], **given)
    assert directory_lock._held == {}


def test_a_run_that_fails_lets_go(backend, trained, tmp_path):
    class Fails(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            raise RuntimeError("of the user")

    with pytest.raises(RuntimeError, match="of the user"):
        trained(backend.classifier(), rows(8), output_dir=tmp_path, save_strategy="epoch", callbacks=[Fails()])
    assert directory_lock._held == {}


def test_a_forked_worker_lets_go_of_nothing(tmp_path):
    with DirectoryLock() as hold:
        assert hold.acquire(tmp_path, 0)
        pid = os.fork()
        if pid == 0:
            try:
                hold.release()
                os._exit(int(directory_lock._held != {}))
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        done = subprocess.run([sys.executable, "-c", HOLDS, str(tmp_path), "0"], env=environment(), cwd=ROOT)
        assert done.returncode != 0


@pytest.mark.parametrize(
    ("module", "function", "error"),
    [
        ("os", "open", PermissionError(13, "Permission denied")),  # a directory that can be written and not read
        ("fcntl", "flock", OSError(38, "Function not implemented")),
    ],
)
def test_a_directory_that_cannot_be_locked(monkeypatch, tmp_path, module, function, error):
    def refuses(*_):
        raise error

    monkeypatch.setattr(getattr(directory_lock, module), function, refuses)
    with DirectoryLock() as hold:
        assert hold.acquire(tmp_path, 0)
    assert directory_lock._held == {}


def test_a_system_without_locks(monkeypatch, tmp_path):
    monkeypatch.setattr(directory_lock, "fcntl", None)
    with DirectoryLock() as hold:
        assert hold.acquire(tmp_path, 0)
