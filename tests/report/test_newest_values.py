"""The picture and the page show what was logged last, also after the last checkpoint."""

import json

import pytest

from oneloop.errors import DataError
from oneloop.report import _history
from oneloop.report.server import watch


def entry(step, **values):
    return {"run": "a", "step": step, "time": float(step), **values}


def test_the_picture_has_the_evaluation_after_the_last_checkpoint(tmp_path):
    lines = [entry(2, loss=0.9), entry(4, loss=0.5), entry(4, eval_loss=0.25)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "checkpoint-2").mkdir()
    state = {"global_step": 2, "log_history": [{"step": 2, "loss": 0.9}]}
    (tmp_path / "checkpoint-2" / "trainer_state.json").write_text(json.dumps(state))
    run = _history(tmp_path, None)
    assert run.line("loss").steps == [2, 4] and run.line("eval_loss").values == [0.25]


def test_without_a_log_the_state_of_the_newest_checkpoint_is_drawn(tmp_path):
    (tmp_path / "checkpoint-2").mkdir()
    state = {"global_step": 2, "log_history": [{"step": 1, "loss": 0.9}, {"step": 2, "loss": 0.7}]}
    (tmp_path / "checkpoint-2" / "trainer_state.json").write_text(json.dumps(state))
    assert _history(tmp_path, None).line("loss").values == [0.9, 0.7]


def test_watching_a_directory_that_cannot_be_meant(tmp_path):
    with pytest.raises(DataError, match="does not exist, nor does the directory above it"):
        watch(tmp_path / "no" / "run")
