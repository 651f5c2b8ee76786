"""profile=: what is written, of which steps, and that training is none the wiser."""

import json
import os

import pytest

from oneloop import Trainer, TrainerCallback
from oneloop.arguments.packages import installed
from oneloop.backends import loading
from oneloop.errors import ArgumentError, NonFiniteError, UnsupportedError
from oneloop.trainer import profiling
from oneloop.trainer.profiling import Operator, operators, text
from tests.backends.support import rows, same_bytes

# An operator that every forward pass of the classifier calls, as the framework names it.
LINEAR = {"torch": "aten::addmm", "paddle": "matmul", "mindspore": "MatMul"}


@pytest.fixture
def profiled(backend, trained):
    def train(resume=None, **given):
        options = {"max_steps": 4, "per_device_train_batch_size": 8, "profile": "2-3"} | given
        return trained(backend.classifier(dropout=0.2), rows(24), resume=resume, **options)

    return train


def written(trainer):
    folder = os.path.join(trainer.args.output_dir, "profile")
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def summary(trainer):
    with open(os.path.join(trainer.args.output_dir, "profile", "summary.json")) as f:
        return json.load(f)["profiles"]


def files(name):
    host = [f"host-{name}.html"] if installed("pyinstrument") else []
    return sorted([*host, f"operators-{name}.txt", f"trace-{name}.json"])


def test_a_trace_and_a_table_of_the_steps_that_were_named(backend, profiled, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = profiled()
    assert written(trainer) == sorted([*files("2-3"), "summary.json"])
    assert os.listdir(tmp_path) == ["out"], "nothing in the working directory"
    (note,) = summary(trainer)
    assert (note["first_step"], note["last_step"], note["framework"]) == (2, 3, backend.name)
    folder = tmp_path / "out" / "profile"
    trace = json.loads((folder / note["trace"]).read_text())
    calls = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    assert all(isinstance(event["ts"], (int, float)) and isinstance(event["dur"], (int, float)) for event in calls)
    table = (folder / note["operators"]).read_text()
    assert table.startswith(f"Steps 2 to 3, {backend.name} on ")
    (row,) = [line.split() for line in table.splitlines() if line.split()[-1:] == [LINEAR[backend.name]]]
    # Two layers, forwards and backwards, in two steps; torch multiplies under another name going back.
    assert int(row[3]) >= 4 and int(row[3]) % 2 == 0
    assert 0 < float(row[0]) <= float(row[2])
    events = [json.loads(line) for line in (tmp_path / "out" / "run.jsonl").read_text().splitlines()]
    (event,) = [event for event in events if event["event"] == "profiled"]
    assert (event["path"], event["step"]) == ("profile/trace-2-3.json", 3), "the run's page lists it"
    assert len(note["top"]) == 10 and note["top"] == sorted(note["top"], key=lambda each: -each["own"])


def test_training_is_the_same_to_the_byte(backend, profiled):
    plain = profiled(profile="")
    assert not written(plain)
    assert same_bytes(backend.weights(profiled().model), backend.weights(plain.model))


def test_a_resumed_run_warms_up_again(backend, profiled):
    """Steps are counted from the start of train(), and named by their place in the run."""
    saves = {"save_strategy": "steps", "save_steps": 3, "lr_scheduler_type": "constant"}
    first = profiled(max_steps=3, profile=2, **saves)
    assert [note["trace"] for note in summary(first)] == ["trace-2-2.json"]
    again = profiled(max_steps=6, resume=True, profile="2-3", **saves)
    assert [note["trace"] for note in summary(again)] == ["trace-2-2.json", "trace-5-6.json"]
    whole = profiled(output_dir=os.path.join(first.args.output_dir, "whole"), max_steps=6, profile="", **saves)
    assert same_bytes(backend.weights(again.model), backend.weights(whole.model))


def test_a_run_that_fails_while_it_is_profiled(profiled, backend, arguments):
    class Breaks(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 2:
                raise KeyError("broken")

    trainer = Trainer(
        backend.classifier(), arguments(max_steps=4, profile="2-4"), train_dataset=rows(24), callbacks=[Breaks()]
    )
    with pytest.raises(KeyError, match="broken"):
        trainer.train()
    assert [note["trace"] for note in summary(trainer)] == ["trace-2-2.json"], "what was seen is kept"
    assert not any(isinstance(each, profiling.Profiling) for each in trainer.callback_handler.callbacks)
    profiled()  # the profiler can be used again


def test_a_run_that_is_too_short_is_told(profiled, caplog):
    trainer = profiled(max_steps=2, profile=True)
    assert not written(trainer)
    assert "profile='3-5': nothing was profiled, since this run had only 2 steps" in caplog.text


def test_a_profile_that_cannot_be_written_costs_the_run_nothing(profiled, backend, monkeypatch, caplog):

    def broken(handle, trace):
        raise OSError("no space left")

    module = loading.load(backend.name).profiling
    plain = module.stop
    monkeypatch.setattr(module, "stop", lambda handle, trace: (plain(handle, trace), broken(handle, trace)))
    assert profiled().state.global_step == 4
    assert "Cannot write the profile of steps 2 to 3: OSError: no space left" in caplog.text


@pytest.mark.parametrize("value", ["0-3", "5-3", "a", "1-2-3", 0, -1, 2.5])
def test_steps_that_are_none(arguments, value):
    with pytest.raises(ArgumentError, match=r'profile=.*expected True, a step such as 3, or .*"3-5"'):
        arguments(profile=value)


@pytest.mark.parametrize(("value", "stored"), [(True, "3-5"), (False, ""), (None, ""), ("4", "4-4"), ("2 - 3", "2-3")])
def test_how_steps_are_named(arguments, value, stored):
    assert arguments(profile=value).profile == stored


def test_mindtorch_refuses(arguments):
    with pytest.raises(UnsupportedError, match="profile='3-5' cannot be used on mindtorch.*does not record mindtorch"):
        arguments(profile=True).check_backend("mindtorch", "cpu")


def test_own_time_is_without_what_was_called_inside():
    def call(name, start, length, thread=1):
        return {"ph": "X", "name": name, "ts": start, "dur": length, "pid": 1, "tid": thread}

    events = [call("outer", 0, 1000), call("inner", 100, 300), call("inner", 500, 100), call("outer", 2000, 500)]
    events += [call("inner", 0, 250, thread=2), {"ph": "M", "name": "outer"}, call("left out", 0, 9)]
    found = operators(events, lambda event: None if event["name"] == "left out" else event["name"])
    assert found == [Operator("outer", 2, 1.1, 1.5), Operator("inner", 3, 0.65, 0.65)]
    assert operators([call("a", 0, 100), call("a", 10, 50)], lambda event: "a") == [Operator("a", 2, 0.1, 0.1)]
    table = text(found, "Steps 1 to 1")
    assert table.splitlines()[0] == "Steps 1 to 1: 1.750 ms in 5 calls of 2 operators."
    assert text([], "Steps 1 to 1").count("\n") == 4


def test_the_layer_that_overflowed_is_among_the_events(backend, arguments, tmp_path):
    """debug="underflow_overflow": what it found stands in the run's own record, which the page shows."""
    data = rows(8)
    data[3]["x"] = data[3]["x"] * float("inf")
    trainer = Trainer(backend.classifier(), arguments(max_steps=1, debug="underflow_overflow"), train_dataset=data)
    with pytest.raises(NonFiniteError, match="layer 'hidden'"):
        trainer.train()
    last = json.loads((tmp_path / "out" / "run.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["error"]) == ("failed", "NonFiniteError") and "layer 'hidden'" in last["message"]
