"""The output directory of a run: resolved once, and noticed when it is deleted or replaced."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from oneloop import Trainer, TrainerCallback
from oneloop.checkpoint import directory_lock, store
from oneloop.checkpoint.directory_lock import DirectoryLock
from oneloop.errors import CheckpointError
from tests.backends.support import names, rows, same_bytes
from tests.checkpoint.children import ROOT, environment
from tests.internals import wait_for_saves

if "mindspore" in names():
    import mindspore  # noqa: F401  before Paddle, whichever tests are chosen

RUN = {"per_device_train_batch_size": 4, "save_strategy": "steps", "save_steps": 1, "logging_steps": 1}


class At(TrainerCallback):
    """Calls a function after a step."""

    def __init__(self, step, act):
        self.step, self.act = step, act

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.act()


@pytest.fixture
def make(backend, arguments, tmp_path, monkeypatch):
    """A Trainer with a relative output_dir; the working directory is tmp_path/start."""
    (tmp_path / "start").mkdir()
    (tmp_path / "later").mkdir()
    monkeypatch.chdir(tmp_path / "start")

    def make(*callbacks, **given):
        return Trainer(
            backend.classifier(),
            arguments("out", **RUN | given),
            train_dataset=rows(16),
            eval_dataset=rows(8),
            callbacks=list(callbacks),
        )

    return make


# -- a relative path


def test_a_run_that_changes_the_working_directory_stays_in_one_place(make, backend, tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    best = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 1, "save_total_limit": 2}
    trainer = make(At(2, lambda: monkeypatch.chdir(tmp_path / "later")), max_steps=4, report_to=["tensorboard"], **best)
    trainer.train()
    trainer.save_model()
    trainer.save_state()
    trainer.save_metrics("eval", trainer.evaluate())
    output = tmp_path / "start" / "out"
    assert trainer.args.output_dir == "out"
    assert list((tmp_path / "later").iterdir()) == []
    assert {c.step for c in store.find(output)} <= {1, 2, 3, 4} and len(store.find(output)) <= 3
    assert [json.loads(line)["event"] for line in (output / "run.jsonl").read_text().splitlines()][-1] == "ended"
    logged = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in logged if "loss" in entry] == [1, 2, 3, 4]
    assert {"model.safetensors", "trainer_state.json", "eval_results.json"} <= {path.name for path in output.iterdir()}
    events = EventAccumulator(str(next((output / "runs").iterdir())))
    events.Reload()
    assert [each.step for each in events.Scalars("train/loss")] == [1, 2, 3, 4]
    assert trainer._get_output_dir() == str(output)
    assert all(Path(path).is_dir() for path in trainer._sorted_checkpoints())


def test_a_resume_that_changes_the_working_directory_is_exact(make, backend, tmp_path, monkeypatch):
    class Leaves(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):  # before the first epoch reads its random streams
            monkeypatch.chdir(tmp_path / "later")

    straight = make(max_steps=4)
    straight.train()
    shutil.rmtree("out/checkpoint-4")
    shutil.rmtree("out/checkpoint-3")
    resumed = make(Leaves(), max_steps=4)
    resumed.train(resume_from_checkpoint=True)
    assert same_bytes(backend.weights(resumed.model), backend.weights(straight.model))
    assert list((tmp_path / "later").iterdir()) == []


def test_a_new_output_dir_after_the_run_is_where_the_working_directory_is_now(make, tmp_path, monkeypatch):
    trainer = make(max_steps=1)
    trainer.train()
    monkeypatch.chdir(tmp_path / "later")
    trainer.args.output_dir = "final"
    trainer.save_model()
    assert (tmp_path / "later" / "final" / "model.safetensors").is_file()


def test_without_a_working_directory_a_relative_path_is_an_error(make, tmp_path, monkeypatch):
    trainer = make(max_steps=1)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(CheckpointError, match="output_dir 'out' cannot be resolved: the working directory was deleted"):
        trainer.train()


# -- a directory that is deleted

TAKES = """
import sys
from pathlib import Path
from oneloop.checkpoint.directory_lock import DirectoryLock, holder
folder = Path(sys.argv[1])
folder.mkdir(exist_ok=True)
print(DirectoryLock().acquire(folder, 0), holder(folder))
"""
HOLDS = TAKES + "sys.stdout.flush(); sys.stdin.read()"


def another_takes(folder):
    """Whether another process gets the directory, and who has it."""
    ended = subprocess.run(
        [sys.executable, "-c", TAKES, str(folder)], capture_output=True, text=True, env=environment(), cwd=ROOT
    )
    taken, _, who = ended.stdout.strip().partition(" ")
    return taken == "True", who


@pytest.mark.skipif(sys.platform != "linux", reason="names are reserved on Linux only")
def test_a_directory_that_was_deleted_and_made_again_lets_no_other_run_in(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    with DirectoryLock() as lock:
        assert lock.acquire(folder, 0)
        folder.rmdir()
        assert not lock.covers(folder)
        folder.mkdir()
        assert not lock.covers(folder)
        assert another_takes(folder) == (False, f"another run, process {os.getpid()}")
    assert another_takes(folder)[0]


def test_a_run_notices_that_its_directory_was_deleted(make, tmp_path, caplog):
    output, seen = tmp_path / "start" / "out", []

    def replace():
        wait_for_saves(trainer)
        shutil.rmtree(output)
        output.mkdir()

    def look():
        wait_for_saves(trainer)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(directory_lock, "_name", lambda folder: None)  # the lock alone
            patch.setattr(directory_lock, "_held", {})  # as another process
            seen.append(DirectoryLock().acquire(output, 0))

    trainer = make(At(2, replace), At(4, look), max_steps=4)
    trainer.train()
    assert caplog.text.count(f"{output} was deleted or replaced during the run") == 1
    assert [c.step for c in store.find(output)] == [2, 3, 4]
    assert seen == [False], "the new directory is locked as well"
    events = [json.loads(line)["event"] for line in (output / "run.jsonl").read_text().splitlines()]
    assert "directory_replaced" in events


def test_a_run_does_not_save_into_a_directory_that_another_run_has_by_now(make, tmp_path, caplog, monkeypatch):
    """As on another machine, where the name is not known to be taken."""
    monkeypatch.setattr(directory_lock, "_name", lambda folder: None)
    output, other = tmp_path / "start" / "out", []

    def replace():
        wait_for_saves(trainer)
        shutil.rmtree(output)
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDS, str(output)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=ROOT,
        )
        other.append(process)
        assert process.stdout.readline().startswith("True")

    def end():
        other[0].communicate()

    trainer = make(At(2, replace), At(4, end), max_steps=5)
    trainer.train()
    assert [c.step for c in store.find(output)] == [4, 5] or [c.step for c in store.find(output)] == [5]
    assert "checkpoint-3 was NOT saved" in caplog.text
    assert f"the directory was deleted during the run, and another run, process {other[0].pid} uses the new one" in (
        caplog.text
    )
