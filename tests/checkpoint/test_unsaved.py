"""A run whose last save has failed: what it says, how its page shows it, and how its process ends."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oneloop import Trainer, TrainerCallback
from oneloop.checkpoint import capture, checkpointer, unsaved
from oneloop.report import summary
from oneloop.report.log_reader import Directory
from tests.backends.support import available, rows

ROOT = Path(__file__).resolve().parents[2]
RUN = {"max_steps": 4, "per_device_train_batch_size": 4, "save_strategy": "steps", "save_steps": 2}


@pytest.fixture(autouse=True)
def of_no_interest():
    yield
    unsaved.forget()


@pytest.fixture
def breaks(monkeypatch):
    """Saves fail from a step on."""

    def begin(first, only=99):
        check = checkpointer.check_free_space

        def full(folder, size):
            if first <= int(folder.name.split("-")[1].split(".")[0]) <= only:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
            check(folder, size)

        monkeypatch.setattr(checkpointer, "check_free_space", full)

    return begin


def page_of(folder):
    directory = Directory(folder)
    directory.read_new()
    return summary.status(directory, summary.now()), [
        e["title"] for e in summary.events(directory) if e["kind"] != "save_waited"
    ]


@pytest.mark.parametrize("save_async", [True, False])
def test_what_is_said_of_the_last_save(backend, trained, breaks, tmp_path, caplog, save_async):
    breaks(4)
    trainer = trained(backend.classifier(), rows(16), **RUN, save_async=save_async)
    assert trainer.state.global_step == 4, "train() returns"
    (failed, end) = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert "checkpoint-4 was NOT saved" in failed and failed.endswith(
        "checkpoint-2 is unaffected. It was the last save."
    )
    assert "of the 4 steps of this run, those after checkpoint-2 are on no disk" in end and "will be 74" in end
    assert page_of(tmp_path / "out") == ("not saved", ["started", "save failed", "finished"])
    assert id(trainer) in unsaved._trainers


def test_a_save_in_between_is_tried_again(backend, trained, breaks, tmp_path, caplog):
    breaks(2, only=2)
    trained(backend.classifier(), rows(16), **RUN, save_async=False)
    (failed,) = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert failed.endswith("the next save tries again.")
    assert "unaffected" not in failed, "there was no checkpoint before it"
    assert page_of(tmp_path / "out")[0] == "finished" and not unsaved._trainers


def test_without_any_checkpoint(trained, breaks, tmp_path, caplog):
    breaks(1)
    trained(available()[0].classifier(), rows(16), **RUN, save_async=False)
    assert "all of them are on no disk" in caplog.text


@pytest.mark.parametrize("how", ["save_model", "another train", "in on_train_end"])
def test_something_that_saves_it_afterwards(trained, breaks, monkeypatch, tmp_path, how):
    class Saves(TrainerCallback):
        trainer = None

        def on_train_end(self, args, state, control, **kwargs):
            Saves.trainer.save_model(str(tmp_path / "model"))

    class Keeps(TrainerCallback):
        def on_train_begin(self, args, state, control, model=None, **kwargs):
            Saves.trainer = kwargs.get("trainer") or made[0]

    made = []

    class Made(Trainer):
        def train(self, *args, **kwargs):
            made.append(self)
            return super().train(*args, **kwargs)

    breaks(4)
    callbacks = [Keeps(), Saves()] if how == "in on_train_end" else []
    trainer = trained(available()[0].classifier(), rows(16), trainer_class=Made, callbacks=callbacks, **RUN)
    if how == "in on_train_end":
        assert not unsaved._trainers
        return
    assert unsaved._trainers
    if how == "save_model":
        trainer.save_model(str(tmp_path / "model"))
        assert page_of(tmp_path / "out") == ("finished", ["started", "save failed", "finished", "model saved"])
    else:
        monkeypatch.undo()
        trainer.train()
        assert page_of(tmp_path / "out")[0] == "finished"
    assert not unsaved._trainers


class Saves(TrainerCallback):
    """Asks for a checkpoint at step 2 and saves the model at another."""

    def __init__(self, step, folder):
        self.step, self.folder, self.trainer = step, folder, None

    def on_step_end(self, args, state, control, **kwargs):
        control.should_save = state.global_step == 2
        if state.global_step == self.step:
            self.trainer.save_model(self.folder)

    def make(self, *args, **kwargs):
        self.trainer = Trainer(*args, **kwargs)
        return self.trainer


@pytest.mark.parametrize(("step", "state"), [(3, "not saved"), (4, "finished")])
def test_a_save_model_during_the_run_counts_if_it_has_the_last_step(trained, breaks, tmp_path, caplog, step, state):
    breaks(2)
    saves = Saves(step, str(tmp_path / "model"))
    given = {"max_steps": 4, "per_device_train_batch_size": 4, "save_strategy": "no", "save_async": False}
    trained(available()[0].classifier(), rows(16), trainer_class=saves.make, callbacks=[saves], **given)
    assert page_of(tmp_path / "out")[0] == state
    assert bool(unsaved._trainers) == ("The last save has failed" in caplog.text) == (step == 3)


@pytest.mark.parametrize("size", [1, 5 << 20, 999_999, 2**20 * 7 - 1])
@pytest.mark.parametrize("short", [1, 2**19, 3 << 20])
def test_figures_of_a_full_disk_agree(size, short, monkeypatch, tmp_path):
    needed = size * 1.02 + (1 << 20)
    monkeypatch.setattr(capture.shutil, "disk_usage", lambda folder: (1 << 40, 0, max(0, int(needed) - short)))
    with pytest.raises(OSError, match="MB needed") as raised:
        capture.check_free_space(tmp_path, size)
    words = raised.value.strerror.split()
    assert int(words[0]) > int(words[5]) and int(words[0]) >= needed / 2**20 > int(words[5])
    monkeypatch.setattr(capture.shutil, "disk_usage", lambda folder: (1 << 40, 0, int(needed) + 1))
    capture.check_free_space(tmp_path, size)


ENDS = """
import errno, sys
from oneloop.checkpoint import checkpointer
from tests.backends.support import available, rows
from oneloop import Trainer, TrainingArguments

def full(folder, size):
    raise OSError(errno.ENOSPC, "full")

checkpointer.check_free_space = full
args = TrainingArguments(sys.argv[1], max_steps=1, report_to="none", use_cpu=True, disable_tqdm=True)
trainer = Trainer(available()[0].classifier(), args, train_dataset=rows(8))
trainer.train()
print("returned")
exec(sys.argv[2])
"""


@pytest.mark.parametrize(
    ("then", "status"),
    [
        ("pass", 74),
        ("trainer.save_model(sys.argv[1] + '/model')", 0),
        ("sys.exit(0)", 74),
        ("sys.exit(3)", 3),
        ("sys.exit(256)", 74),  # which the system would take for 0
        ("sys.exit('not good enough')", 1),
        ("raise KeyError('own')", 1),
        ("import os; pid = os.fork(); pid or sys.exit(0); assert os.waitpid(pid, 0)[1] == 0, 'child'", 74),
    ],
    ids=["nothing", "saved", "exit", "a status", "too large a status", "a message", "an exception", "a child"],
)
def test_the_status_of_the_process(tmp_path, then, status):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONUNBUFFERED", None)  # so that there is something to lose
    command = [sys.executable, "-c", ENDS, str(tmp_path / "out"), then]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120)
    assert done.returncode == status, done.stderr
    assert "returned" in done.stdout, "what was printed is not lost"


def test_arguments_that_a_resume_does_not_use(backend, trained, tmp_path, caplog):
    """The message, the page and what is done agree; also when it is resumed once more."""
    trained(backend.classifier(), rows(16), **RUN, learning_rate=0.1)
    for steps in (6, 8):
        caplog.clear()
        trainer = trained(
            backend.classifier(), rows(16), resume=True, **RUN | {"max_steps": steps}, learning_rate=0.123456789
        )
        assert "learning_rate was 0.1, is 0.123456789." in caplog.text
        assert trainer.lr_scheduler.base_lrs[0] == 0.1
        event = [json.loads(line) for line in (tmp_path / "out" / "run.jsonl").read_text().splitlines()][-2]
        assert event["event"] == "resumed" and event["not_used"] == {"learning_rate": 0.123456789}
        directory = Directory(tmp_path / "out")
        directory.read_new()
        arguments = {name: value for name, value, _ in summary.changed(summary.arguments_of(tmp_path, directory))}
        assert arguments["learning_rate"] == "0.1"
        told = summary.events(directory)[-2]["text"]
        assert told.endswith("; learning_rate stays 0.1 (0.123457 was given)")


def test_another_run_that_is_not_saved(trained, breaks, monkeypatch, tmp_path):
    """save_model has saved the model of the first run, not that of the second."""
    breaks(4)
    trainer = trained(available()[0].classifier(), rows(16), **RUN)
    trainer.save_model(str(tmp_path / "model"))
    trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert page_of(tmp_path / "out")[0] == "not saved" and unsaved._trainers
