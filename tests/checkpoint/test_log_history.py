"""The log history of a long run: a checkpoint has its end, and log.jsonl the rest."""

import dataclasses
import json
import math
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oneloop import Trainer, TrainerState
from oneloop.checkpoint import log_history
from oneloop.checkpoint.log_history import LogHistory, restored
from oneloop.checkpoint.reader import Checkpoint
from oneloop.state import to_plain
from tests.backends.support import rows, same_bytes

RUN = {"per_device_train_batch_size": 4, "num_train_epochs": 1, "logging_steps": 1, "save_strategy": "steps"}
RUN |= {"save_steps": 4, "optim": "sgd"}
SAMPLES = 64  # 16 steps


@pytest.fixture
def short(monkeypatch):
    """Histories are long from the sixth entry on."""
    monkeypatch.setattr(log_history, "COMPLETE", 6)
    monkeypatch.setattr(log_history, "TAIL", 2)


def state_of(folder, step):
    return json.loads((folder / f"checkpoint-{step}" / "trainer_state.json").read_text())


def without_times(history):
    return [
        {key: value for key, value in entry.items() if "_per_" not in key and "_runtime" not in key}
        for entry in history
    ]


def stop_at(step):
    class Stops(Trainer):
        def training_step(self, *args, **kwargs):
            if self.state.global_step == step:
                raise RuntimeError("killed")
            return super().training_step(*args, **kwargs)

    return Stops


def killed(backend, arguments, **more):
    args = arguments(**RUN | more)
    trainer = stop_at(14)(backend.classifier(), args, train_dataset=rows(SAMPLES))
    with pytest.raises(RuntimeError, match="killed"):
        trainer.train()
    return trainer


def test_a_resumed_run_has_the_whole_history(backend, arguments, trained, tmp_path, short):
    straight = trained(backend.classifier(), rows(SAMPLES), output_dir=tmp_path / "straight", **RUN)
    killed(backend, arguments)
    first = state_of(tmp_path / "out", 4)["log_history"]
    last = state_of(tmp_path / "out", 12)["log_history"]
    assert [entry["step"] for entry in first] == [1, 2, 3, 4]
    assert [entry["step"] for entry in last] == [10, 11, 12] and last[0]["omitted"]["entries"] == 10
    resumed = trained(backend.classifier(), rows(SAMPLES), resume=True, **RUN)
    assert without_times(resumed.state.log_history) == without_times(straight.state.log_history)
    ends = [state_of(folder, 16)["log_history"] for folder in (tmp_path / "straight", tmp_path / "out")]
    assert ends[0] == ends[1] and ends[0][0]["omitted"]["entries"] == 14
    assert same_bytes(backend.weights(resumed.model), backend.weights(straight.model))


def change_log(folder):
    lines = (folder / "log.jsonl").read_text().splitlines()
    entry = json.loads(lines[3])
    lines[3] = json.dumps(entry | {"loss": entry["loss"] + 1})
    (folder / "log.jsonl").write_text("\n".join(lines) + "\n")


def shorten_log(folder):
    lines = (folder / "log.jsonl").read_text().splitlines()
    (folder / "log.jsonl").write_text("\n".join([*lines[:2], '{"run": 3, "st', "[[[[", *lines[6:]]) + "\n")


def replace_log(folder):
    (folder / "log.jsonl").unlink()
    (folder / "log.jsonl").mkdir()


@pytest.mark.parametrize("harm", [change_log, shorten_log, replace_log, lambda folder: (folder / "log.jsonl").unlink()])
def test_without_its_log_a_run_resumes_with_a_warning(arguments, trained, tmp_path, caplog, short, harm):
    from tests.backends.kits.torch_kit import Kit

    backend = Kit()
    killed(backend, arguments)
    harm(tmp_path / "out")
    resumed = trained(backend.classifier(), rows(SAMPLES), resume=True, **RUN)
    assert resumed.state.global_step == 16
    assert caplog.text.count("The first 10 entries of the log history are missing") == 1
    assert [entry["step"] for entry in resumed.state.log_history] == [11, 12, 13, 14, 15, 16, 16]


def test_a_copied_checkpoint_has_no_log(arguments, trained, tmp_path, caplog, short):
    """Nor has the new directory, whose log.jsonl then has all that later checkpoints leave out."""
    from tests.backends.kits.torch_kit import Kit

    backend = Kit()
    killed(backend, arguments)
    shutil.copytree(tmp_path / "out" / "checkpoint-12", tmp_path / "alone" / "checkpoint-12")
    options = RUN | {"output_dir": tmp_path / "new", "num_train_epochs": 2}
    trained(backend.classifier(), rows(SAMPLES), resume=str(tmp_path / "alone" / "checkpoint-12"), **options)
    assert "entries of the log history are missing" in caplog.text
    caplog.clear()
    again = trained(backend.classifier(), rows(SAMPLES), resume=True, **options | {"num_train_epochs": 3})
    assert "missing" not in caplog.text
    assert [e["step"] for e in again.state.log_history if "loss" in e] == list(range(11, 49))


# -- without a run

VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
ENTRIES = st.dictionaries(st.text(), VALUES | st.lists(VALUES) | st.dictionaries(st.text(), VALUES), max_size=4)


@settings(suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(st.lists(ENTRIES, max_size=4))
def test_the_text_of_a_state_is_that_of_json_with_an_indent(history):
    state = TrainerState(log_history=history, trial_params={"log_history": []})
    plain = to_plain(dataclasses.asdict(state))
    assert state.to_json() == json.dumps(plain, indent=2, sort_keys=True, allow_nan=False) + "\n"


def test_numbers_of_numpy_that_are_not_finite(tmp_path):
    TrainerState(log_history=[{"loss": np.float32("nan")}]).save_to_json(tmp_path / "state.json")
    assert math.isnan(TrainerState.load_from_json(tmp_path / "state.json").log_history[0]["loss"])


def test_texts_are_made_once_and_again_for_entries_that_were_added_to(monkeypatch):
    made, row = [], log_history.row
    monkeypatch.setattr(log_history, "row", lambda entry: made.append(entry["step"]) or row(entry))
    state, kept = TrainerState(log_history=entries(3)), LogHistory()
    for _ in range(2):
        assert kept.to_json(state) == state.to_json()
    state.log_history[1]["late"] = 1
    state.log_history += entries(1, 3)
    assert kept.to_json(state) == state.to_json() and made == [0, 1, 2, 1, 3]


def test_an_entry_that_is_twice_in_a_history():
    entry = {"loss": 1.0, "step": 1}
    state = TrainerState(log_history=[entry, entry])
    assert LogHistory().to_json(state) == state.to_json()


def entries(count, first=0):
    return [{"loss": i / 7, "step": i} for i in range(first, first + count)]


def test_a_history_is_complete_up_to_its_limit():
    history = entries(log_history.COMPLETE)
    assert LogHistory().stored(history) == history
    stored = LogHistory().stored([*history, *entries(1, 10_000)])
    assert len(stored) == log_history.TAIL + 1 and stored[0]["omitted"]["entries"] == 9_001
    assert stored[1]["step"] == 9_001 and stored[-1]["step"] == 10_000


def test_a_digest_is_continued_and_not_computed_again(short, monkeypatch):
    read = []
    canonical = log_history._canonical
    monkeypatch.setattr(log_history, "_canonical", lambda entry: read.append(entry["step"]) or canonical(entry))
    history, kept = entries(20), LogHistory()
    kept.stored(history)
    history += entries(5, 20)
    mark = kept.stored(history)[0]
    assert read == list(range(23)), "each entry once"
    assert mark == LogHistory().stored(history)[0]


@pytest.mark.parametrize("change", [lambda h: h.pop(0), lambda h: h.clear(), lambda h: h.insert(3, {"step": 3})])
def test_a_history_that_somebody_changes(short, change):
    history, kept = entries(20), LogHistory()
    kept.stored(history)
    change(history)
    history += entries(9, 20)
    assert kept.stored(history) == LogHistory().stored(history)


def test_the_lines_of_other_runs_are_not_entries(tmp_path):
    lines = [{"run": run, "step": step, "time": 1.5, "loss": "nan"} for step in (1, 2, 3) for run in "ab"]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = log_history._first_entries(tmp_path / "log.jsonl", "b", 2)
    assert [entry["step"] for entry in found] == [1, 2] and found[0].keys() == {"step", "loss"}


@pytest.mark.parametrize("about", [{}, {"entries": "x", "sha256": 1}, {"entries": -1}, {"entries": 10**30}, None, 3])
def test_marks_that_make_no_sense(tmp_path, about):
    tail = entries(2)
    found = restored([{"omitted": about}, *tail], Checkpoint(tmp_path / "checkpoint-1"))
    assert found[-2:] == tail


def test_a_report_of_a_state_that_leaves_entries_out(tmp_path):
    """Without log.jsonl, it shows the entries that are there."""
    from oneloop.report import write_report

    (tmp_path / "checkpoint-9").mkdir()
    mark = {"omitted": {"entries": 7, "sha256": "0", "file": "log.jsonl"}, "step": 7}
    TrainerState(global_step=9, log_history=[mark, *entries(2, 8)]).save_to_json(
        tmp_path / "checkpoint-9" / "trainer_state.json"
    )
    picture, page = write_report(tmp_path)
    assert picture.stat().st_size > 0 and "omitted" not in page.read_text()


@pytest.mark.parametrize("value", [7.0, math.nan, "text", [1, 3], {"deep": 3}, np.arange(2)])
@pytest.mark.parametrize("before", [0.5, math.nan, [1, 2], {"deep": 2}])
def test_a_value_that_is_changed_after_a_save_is_in_the_next(before, value):
    """By a callback that corrects a metric, for example; also inside of a value."""
    state, history = TrainerState(log_history=[{"loss": 1.0, "step": 1}, {"metric": before, "step": 2}]), LogHistory()
    assert history.to_json(state) == state.to_json()
    state.log_history[1]["metric"] = value
    assert history.to_json(state) == state.to_json()
    if isinstance(value, list):
        value.append(4)
        assert history.to_json(state) == state.to_json()
