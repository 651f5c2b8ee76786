"""A dead or closed stdout or stderr ends no run, and keeps no signal from saving."""

import io
import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from oneloop import Trainer, TrainerCallback
from oneloop.checkpoint import store
from oneloop.trainer.output_streams import surviving
from tests.backends.support import rows

SCRIPT = """
import os, signal, sys, time
from oneloop import Trainer, TrainerCallback, TrainingArguments
from tests.backends.support import kit_module, available, rows

framework, output, ending, number, step = sys.argv[1:]
kit = next(each for each in available() if each.name == framework)

class Breaks(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        print("step", state.global_step, flush=True)  # as scripts do
        if state.global_step == int(step):
            if ending == "dead":
                print("end of pipe", flush=True)
                sys.stdin.readline()  # until the reader has gone
            elif ending == "closed":
                sys.stdout.close(), sys.stderr.close()
            if number != "none":
                os.kill(os.getpid(), getattr(signal, number))

args = TrainingArguments(output, max_steps=6, save_steps=6, logging_steps=1, report_to="none", use_cpu=True,
                         disable_tqdm="quiet" in output)
trainer = Trainer(kit.classifier(), args, train_dataset=rows(16), callbacks=[Breaks])
trainer.train()
if ending != "closed":
    print("after training")
open(os.path.join(output, "script ended"), "w").close()
"""


def run(folder, framework, ending, number, step=3):
    """The exit status of a run whose streams end at a step."""
    words = [sys.executable, "-c", SCRIPT, framework, str(folder), ending, number, str(step)]
    if ending == "none from the start":
        words = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *words]
    child = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        for line in child.stdout:
            if line == "end of pipe\n":
                child.stdout.close()
                child.stdin.write("gone\n")
                child.stdin.flush()
                break
        return child.wait(120)
    finally:
        child.kill()


def lost(folder):
    events = [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]
    return {event["stream"] for event in events if event["event"] == "output_lost"}


STATUS = {"none": 0, "SIGTERM": 75, "SIGINT": -signal.SIGINT}


# A real process costs seconds; test_signal_phases.py has signals and streams in this one.
USUAL = [("dead", "none"), ("dead", "SIGINT"), ("closed", "SIGTERM"), ("none from the start", "none")]


@pytest.mark.parametrize(
    ("ending", "number"),
    [
        pytest.param(ending, number, marks=[] if (ending, number) in USUAL else [pytest.mark.slow])
        for ending in ("dead", "closed", "none from the start", "nothing")
        for number in STATUS
    ],
)
def test_a_run_outlives_its_streams(ending, number, tmp_path):
    folder = tmp_path / ("quiet" if number == "SIGTERM" else "bar")
    assert run(folder, "torch", ending, number) == STATUS[number]
    saved = store.latest(folder)
    assert saved.step == (6 if number == "none" else 3) and store.problems(saved.path) == []
    assert (folder / "script ended").exists() == (number == "none")
    if ending in ("nothing", "none from the start"):
        assert lost(folder) == set()
    elif number == "none":
        assert "stdout" in lost(folder)


@pytest.mark.slow
@pytest.mark.parametrize("number", STATUS)
@pytest.mark.parametrize("framework", ["paddle", "mindspore"])
def test_on_the_other_frameworks(framework, number, tmp_path):
    assert run(tmp_path / "run", framework, "dead", number) == STATUS[number]
    assert store.latest(tmp_path / "run").step == (6 if number == "none" else 3)


def test_a_stream_without_a_descriptor_and_one_that_others_replace(monkeypatch):
    class Broken(io.StringIO):
        def write(self, text):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(sys, "stdout", Broken())
    found, before = [], sys.stderr
    other = io.StringIO()
    with surviving(found.append):
        print("one")
        print("two", flush=True)
        assert found == ["stdout"]
        sys.stderr = other
        print("three", file=sys.stderr)
    assert sys.stderr is other and other.getvalue() == "three\n"
    sys.stderr = before
    assert type(sys.stdout) is Broken


def test_text_that_cannot_be_encoded_stays_an_error(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    with surviving(lambda name: pytest.fail(name)), pytest.raises(UnicodeEncodeError):
        print("训练")


def test_streams_are_the_same_after_a_run(backend, arguments):
    before = sys.stdout, sys.stderr
    Trainer(backend.classifier(), arguments(max_steps=1), train_dataset=rows(8)).train()
    assert (sys.stdout, sys.stderr) == before


def test_training_in_a_thread_says_that_signals_do_not_save(backend, arguments, caplog):
    trainer = Trainer(backend.classifier(), arguments(max_steps=1), train_dataset=rows(8))
    thread = threading.Thread(target=trainer.train)
    thread.start()
    thread.join()
    assert trainer.state.global_step == 1
    assert "train() runs in a thread" in caplog.text and "SIGTERM" in caplog.text


def at(event, number=signal.SIGTERM):
    def send(self, args, state, control, **kwargs):
        os.kill(os.getpid(), number)

    return type("Sends", (TrainerCallback,), {event: send})()


def interrupted(backend, args, event):
    """The Trainer, and the exit status and message with which train() left, after a signal in this event."""
    trainer = Trainer(backend.classifier(), args, train_dataset=rows(16), callbacks=[at(event)])
    with pytest.raises(SystemExit) as left:
        trainer.train()
    return trainer, left.value.code, str(left.value)


def test_the_scripts_own_handler_is_called_after_the_save(backend, arguments, tmp_path):
    called = []

    def own(number, frame):
        called.append((number, store.latest(tmp_path / "run").step))

    before = signal.signal(signal.SIGTERM, own)
    try:
        given = {"max_steps": 4, "save_strategy": "steps", "save_steps": 100}
        _, status, _ = interrupted(backend, arguments(tmp_path / "run", **given), "on_step_end")
        assert status == 75 and called == [(signal.SIGTERM, 1)]
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_at_the_end_of_training_is_not_forgotten(backend, arguments, tmp_path):
    given = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    trainer, status, text = interrupted(backend, arguments(tmp_path / "run", **given), "on_train_end")
    assert status == 75 and "checkpoint-2" in text
    assert trainer.state.global_step == 2


def test_a_stream_that_is_kept_reports_nothing_after_the_run(monkeypatch):
    lost, stream = [], io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with surviving(lost.append):
        kept = sys.stderr
    stream.close()
    kept.write("late")
    assert lost == []
