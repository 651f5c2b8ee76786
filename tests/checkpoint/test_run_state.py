"""run.json as a dataclass: what is written is what was read, and a later format is refused."""

import json

import pytest

from oneloop.checkpoint.reader import Checkpoint
from oneloop.checkpoint.resume import position_of_this_process
from oneloop.checkpoint.run_state import DataStates, PositionState, ResumePoint, RunState
from oneloop.distributed.mesh import Mesh
from oneloop.errors import CheckpointError
from oneloop.trainer import parts as parts

POSITION = {
    "epoch": 1,
    "step_in_epoch": 4,
    "epoch_ended": False,
    "stopped": False,
    "epoch_stopped": True,
    "pending": {"should_log": True, "should_evaluate": False},
    "data": {"at": 3},
    "collator": None,
    "dataset": None,
}
RUN = {
    "format": 1,
    "run_id": "0123",
    "framework": "torch",
    "layout": {"weight": ["weight", "oi"]},
    "optimizer": {"class": "AdamW", "groups": []},
    "scheduler": None,
    "engine": {"skipped": 0},
    "strategy": {"unused": None},
    "grad_norm": "0x1.0p+0",
    "learning_rate": 0.1,
    "losses": {"total": "0x1.8p+1", "since_log": "0x1.0p+0", "steps": 3, "steps_since_log": 1},
    "work": {"tokens": 7, "flops": 0.0, "unpadded": 7},
    "split": 2,
    "position": POSITION,
    "course": {"samples": 10, "samples_per_step": 2, "processes": 2},
}


def test_what_is_written_is_what_was_read():
    assert RunState.from_json(RUN).to_json() == RUN
    assert RunState.from_json(json.loads(json.dumps(RUN))).to_json() == RUN


def test_states_of_other_processes_are_written_only_where_there_are_any():
    assert "ranks" not in PositionState.from_json(POSITION).to_json()
    several = POSITION | {"ranks": [{"data": 1, "collator": None, "dataset": None}]}
    assert PositionState.from_json(several).to_json() == several


def test_checkpoints_of_the_first_releases_have_less():
    less = {key: value for key, value in RUN.items() if key not in ("layout", "strategy", "grad_norm", "split")}
    alone = {"samples": 10, "samples_per_step": 2}
    found = RunState.from_json(less | {"position": {k: v for k, v in POSITION.items() if k != "pending"}})
    assert (
        found.layout is None
        and found.parts.keys() == {"learning_rate", "losses", "work"}
        and found.position.pending == {}
    )
    assert found.processes == 2 and RunState.from_json(RUN | {"course": alone}).processes == 1


def test_a_later_format_is_refused():
    with pytest.raises(CheckpointError, match="format 2, but this release of oneloop reads 1"):
        RunState.from_json(RUN | {"format": 2})


def test_a_directory_without_one(tmp_path):
    assert Checkpoint(tmp_path).run is None
    (tmp_path / "run.json").write_text(json.dumps(RUN))
    assert Checkpoint(tmp_path).run.run_id == "0123"


def test_each_process_finds_the_states_of_its_own_data():
    ranks = [{"data": f"rank {i}", "collator": i, "dataset": None} for i in (1, 2)]
    position = PositionState.from_json(POSITION | {"ranks": ranks})
    assert position_of_this_process(position, Mesh.of_batches(3, 0)).data == {"at": 3}
    assert (
        position_of_this_process(position, Mesh.of_batches(3, 2)).data == "rank 2"
        and position_of_this_process(position, Mesh.of_batches(3, 2)).collator == 2
    )
    fewer = position_of_this_process(position, Mesh.of_batches(2, 1))
    assert (fewer.data, fewer.collator, fewer.epoch) == (None, None, 1)


def test_a_resume_point_is_used_up():
    point = ResumePoint(data=DataStates([1], exhausted=True, is_waiting=True))
    assert point.data.has_ended and point.data.take_position() == [1]
    assert not point.data.is_waiting and not point.data.has_ended
    point.continue_with({"numpy": 1}, [3], {"collator": 2})
    assert point.streams == {"numpy": 1} and point.data.own == {"collator": 2}
    point.rng_state_restored()
    assert point.streams is None and point.generators is None and point.random is None
