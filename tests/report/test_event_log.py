"""What a run notes down for its page, on every framework: run.jsonl, and figures in log.jsonl."""

import errno
import json
import os
import signal

import pytest

from oneloop import Trainer, TrainerCallback
from oneloop.checkpoint import store
from oneloop.distributed.preemption import Preempted
from oneloop.errors import NonFiniteError
from oneloop.report import page_data, summary
from oneloop.report.log_reader import Directory
from oneloop.trainer.event_log import LONGEST, NAME, Record
from tests.backends.support import rows, tagged
from tests.internals import run_id

RUN = {"learning_rate": 0.1, "optim": "sgd", "per_device_train_batch_size": 4, "max_steps": 6, "logging_steps": 2}


def noted(folder):
    return [json.loads(line) for line in (folder / NAME).read_text().splitlines()]


def logged(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


class At(TrainerCallback):
    """Does something at the end of a step."""

    def __init__(self, step, act):
        self.step, self.act = step, act

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.act()


def test_a_run_notes_where_it_ran_and_how_it_ended(backend, trained, tmp_path):
    trainer = trained(backend.classifier(), rows(12), hub_token="hf_do_not_show", **RUN)
    start, end = noted(tmp_path / "out")
    assert (start["event"], end["event"], end["step"]) == ("started", "ended", 6)
    assert start["run"] == end["run"] == logged(tmp_path / "out")[0]["run"] == run_id(trainer)
    assert start["framework"] == backend.name and start["device"] and start["processes"] == 1
    assert {"oneloop", "numpy"} <= start["packages"].keys() and "cores" in start["hardware"]
    assert start["arguments"]["learning_rate"] == 0.1 and start["max_steps"] == 6 and start["samples_per_step"] == 4
    text = (tmp_path / "out" / NAME).read_text()
    assert "do_not_show" not in text and "hub_token" not in text


def test_memory_and_speed_are_logged_for_the_page_and_the_history_keeps_its_shape(backend, trained, tmp_path):
    trainer = trained(backend.classifier(), rows(12), eval_dataset=rows(4), eval_strategy="steps", **RUN)
    steps = [entry for entry in logged(tmp_path / "out") if "loss" in entry]
    assert [entry["step"] for entry in steps] == [2, 4, 6] and all(e["memory_bytes"] > 10**6 for e in steps)
    assert not any("memory_bytes" in e for e in logged(tmp_path / "out") if "loss" not in e)
    assert not any("memory_bytes" in e or "tokens_per_second" in e for e in trainer.state.log_history)


def test_tokens_per_second_need_no_argument(backend, trained, tmp_path):
    trained(backend.tagger(), tagged([5] * 24), **RUN)
    steps = [entry for entry in logged(tmp_path / "out") if "loss" in entry]
    assert all(entry["tokens_per_second"] > 0 for entry in steps)


def test_a_preempted_run_that_is_resumed_is_one_run_without_a_step_twice(backend, trained, tmp_path):
    leave = At(3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    options = RUN | {"save_strategy": "steps", "save_steps": 100, "logging_steps": 1}
    with pytest.raises(Preempted):
        trained(backend.classifier(), rows(12), callbacks=[leave], **options)
    trained(backend.classifier(), rows(12), resume=True, **options)
    events = noted(tmp_path / "out")
    assert [e["event"] for e in events] == ["started", "preempted", "resumed", "ended"]
    assert events[1]["signal"] == "SIGTERM" and events[1]["saved"] == events[2]["from"] == "checkpoint-3"
    assert len({e["run"] for e in events}) == 1
    found = Directory(tmp_path / "out")
    found.read_new()
    assert found.curves(100)["loss"][0].tolist() == [1, 2, 3, 4, 5, 6]
    assert summary.status(found, 0) == "finished"
    page = page_data.run_page(found)
    assert [e["title"] for e in page["events"]] == ["started", "preempted", "resumed", "finished"]
    assert [c["state"] for c in page["checkpoints"]] == ["whole", "whole"]
    assert ["max_steps", "6", "-1"] in page["arguments"]


@pytest.mark.parametrize("action", ["skip", "stop"])
def test_steps_that_are_not_finite_are_noted(backend, trained, tmp_path, action):
    data = rows(12)
    data[5] = data[5] | {"x": data[5]["x"] * float("nan")}
    options = RUN | {"max_steps": 3, "nonfinite": action}
    if action == "stop":
        with pytest.raises(NonFiniteError):
            trained(backend.classifier(), data, **options)
    else:
        trained(backend.classifier(), data, **options)
    events = noted(tmp_path / "out")
    (bad,) = [e for e in events if e["event"] == "nonfinite"]
    assert bad["action"] == action and "5" in bad["samples"] and 1 <= bad["step"] <= 3
    assert events[-1]["event"] == ("failed" if action == "stop" else "ended")


def test_errors_of_others_are_recorded_by_type_only(backend, trained, tmp_path):
    def fail():
        raise RuntimeError("password=1234")

    with pytest.raises(RuntimeError):
        trained(backend.classifier(), rows(12), callbacks=[At(2, fail)], **RUN)
    last = noted(tmp_path / "out")[-1]
    assert (last["event"], last["step"], last["error"]) == ("failed", 2, "RuntimeError")
    assert "1234" not in (tmp_path / "out" / NAME).read_text()


def test_a_save_that_the_disk_did_not_take_is_noted(backend, trained, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store, "commit", full)
    trained(backend.classifier(), rows(12), save_strategy="steps", save_steps=3, **RUN)
    failed = [e for e in noted(tmp_path / "out") if e["event"] == "save_failed"]
    assert [e["what"] for e in failed] == ["checkpoint-3", "checkpoint-6"] and "No space" in failed[0]["error"]


def test_an_incomplete_line_is_skipped(tmp_path):
    """What kill -9 leaves in the middle of a write."""
    first = Record()
    first.add(str(tmp_path), "started", "r", 0, {})
    with open(tmp_path / NAME, "a") as f:
        f.write('{"run": "r", "time": 1')
    for record, event in ((Record(), "resumed"), (Record(), "ended")):
        record.add(str(tmp_path), event, "r", 5, {"odd": float("nan"), "long": "x" * 10_000, "what": object})
    found = Directory(tmp_path)
    found.read_new()
    assert [e["event"] for e in found.events] == ["started", "resumed", "ended"]
    assert found.events[1]["odd"] == "nan" and len(found.events[1]["long"]) == LONGEST


def test_an_unwritable_record_warns_once(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    record = Record()
    for _ in range(3):
        record.add(str(tmp_path / "file"), "started", "r", 0, {})
    assert caplog.text.count("Cannot write ") == 1


def test_others_can_note_events_of_their_own(backend, trained, tmp_path):
    class Noting(Trainer):
        def training_step(self, *given):
            self.record_event("profiled", path="traces/step-1.json")
            return super().training_step(*given)

    trained(backend.classifier(), rows(12), trainer_class=Noting, **(RUN | {"max_steps": 1}))
    found = Directory(tmp_path / "out")
    found.read_new()
    assert [(e["title"], e["text"]) for e in summary.events(found)][1] == ("profiled", "trace in traces/step-1.json")
