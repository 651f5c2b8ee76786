"""log.jsonl after a resume: which lines stay."""

import json

import pytest

from oneloop import TrainerControl, TrainerState
from oneloop.callbacks.json_log import NAME, JsonLinesCallback


def line(run, step, key="loss"):
    return json.dumps({"run": run, "step": step, "time": 1.0, key: 0.5})


@pytest.mark.parametrize("logged", [0, 1, 2])
def test_lines_of_the_checkpoints_step_are_those_of_its_history(tmp_path, logged):
    """The step of a checkpoint may have more lines: what follows the save, such as the end of its epoch."""
    at_step = [line("own", 4), line("own", 4, "eval_loss"), line("own", 4, "train_runtime")]
    before = [line("own", 2), line("other", 9)]
    (tmp_path / NAME).write_text("\n".join([*before, *at_step, line("own", 5), '{"run": "own", "st']))
    state = TrainerState(global_step=4, is_world_process_zero=True)
    state.log_history = [{"step": 2, "loss": 0.5}, *({"step": 4, "loss": 0.5} for _ in range(logged))]
    JsonLinesCallback(lambda: "own", folder=lambda: tmp_path).on_train_begin(None, state, TrainerControl())
    assert (tmp_path / NAME).read_text().splitlines() == [*before, *at_step[:logged]]
