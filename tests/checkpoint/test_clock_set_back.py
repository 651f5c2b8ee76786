"""A clock that was set back during a run: its checkpoints are ordered by their steps, not by when they were written."""

import json
import logging
import os
import time
from pathlib import Path

import pytest

from oneloop import get_last_checkpoint
from oneloop.checkpoint import store
from oneloop.cli.main import main
from tests.backends.support import rows, same_bytes

NOON = 1_790_000_000.0


@pytest.fixture
def at(monkeypatch):
    """at(moment): what the clock says from now on."""

    def set_clock(moment):
        monkeypatch.setattr(time, "time", lambda: moment)

    return set_clock


def write(parent, step, moment, at, run="run", reason="save"):
    """A checkpoint whose manifest and whose files are from that moment."""
    at(moment)
    stage = store.open_stage(parent, step)
    (stage / "model.safetensors").write_bytes((8).to_bytes(8, "little") + b"{}      ")
    (stage / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
    path = store.commit(stage, step, run, reason, {}).path
    for file in (*path.iterdir(), path):
        os.utime(file, (moment, moment))
    return path


@pytest.fixture
def set_back(tmp_path, at):
    """Steps 8, 9, 10 and 11; an hour was lost before 10."""
    for step, moment in ((8, NOON), (9, NOON + 60), (10, NOON - 3480), (11, NOON - 3420)):
        write(tmp_path, step, moment, at)
    return tmp_path


def test_the_newest_is_the_one_of_the_highest_step(set_back):
    assert [c.step for c in store.find(set_back)] == [8, 9, 10, 11]
    assert store.latest(set_back).step == 11
    assert [c.step for c in store.newest_first(set_back)] == [11, 10, 9, 8]
    assert Path(get_last_checkpoint(set_back)).name == "checkpoint-11"


def test_steps_are_numbers_and_not_words(tmp_path, at):
    for step in (9, 10, 100, 20):
        write(tmp_path, step, NOON - step, at)
    assert [c.step for c in store.newest_first(tmp_path)] == [100, 20, 10, 9]


@pytest.mark.parametrize(("limit", "left"), [(1, [11]), (2, [10, 11]), (3, [9, 10, 11]), (4, [8, 9, 10, 11])])
def test_rotation_deletes_the_lowest_steps(set_back, limit, left):
    removed = store.rotate(set_back, "run", limit, set())
    assert [c.step for c in store.find(set_back)] == left
    assert [path.name for path in removed] == [f"checkpoint-{step}" for step in (8, 9, 10, 11) if step not in left]


def test_prune_keeps_the_highest_steps(set_back, capsys):
    assert main(["checkpoints", str(set_back), "prune", "--keep", "2"]) == 0
    assert [c.step for c in store.find(set_back)] == [10, 11]


def test_of_two_runs_the_one_that_wrote_last_counts_and_within_it_the_step(set_back, at):
    """The other began when the clock was hours behind, and has lower steps."""
    write(set_back, 3, NOON - 7000, at, run="other")
    write(set_back, 4, NOON - 9000, at, run="other")
    assert store.latest(set_back).step == 4
    assert [c.step for c in store.newest_first(set_back)][:2] == [4, 3]
    assert Path(get_last_checkpoint(set_back)).name == "checkpoint-4"
    store.rotate(set_back, "run", 1, set())
    assert [c.step for c in store.find(set_back)] == [3, 4, 11], "a run deletes its own alone"


def test_a_run_that_is_resumed_is_the_latest_again(set_back, at):
    write(set_back, 3, NOON - 7000, at, run="other")
    write(set_back, 12, NOON - 9000, at)
    assert [c.generation for c in store.find(set_back)] == [2, 1, 1, 1, 1, 3]
    assert store.latest(set_back).step == 12


@pytest.mark.parametrize("strange", ["2", -1, True, 1.5, None, 2**60])
def test_checkpoints_without_a_generation_are_older_than_those_with_one(set_back, at, strange):
    """Releases before this one wrote none."""
    for step in (8, 9, 10, 11):
        path = set_back / f"checkpoint-{step}" / store.MANIFEST
        manifest = json.loads(path.read_text()) | {"generation": strange}
        path.write_text(json.dumps(manifest))
    assert [c.generation for c in store.find(set_back)] == [0, 0, 0, 0]
    assert store.latest(set_back).step == 11
    write(set_back, 3, NOON - 7000, at, run="other")
    assert store.latest(set_back).step == 3


def test_a_new_run_after_the_change_is_the_one_that_is_resumed(backend, trained, tmp_path, monkeypatch):
    run = {"per_device_train_batch_size": 4, "save_strategy": "steps", "save_steps": 1, "logging_steps": 1}
    trained(backend.classifier(), rows(16), max_steps=4, **run)
    with monkeypatch.context() as clock:
        clock.setattr(time, "time", lambda: NOON - 10**6)
        trained(backend.classifier(), rows(16), max_steps=2, overwrite_output_dir=True, **run)
    resumed = trained(backend.classifier(seed=1), rows(16), resume=True, max_steps=3, **run)
    assert resumed.state.global_step == 3
    assert [c.generation for c in store.find(tmp_path / "out")] == [2, 2, 2, 1]


def test_a_run_over_the_change(backend, trained, tmp_path, caplog, monkeypatch):
    """Every save finds the clock an hour before the last one; a resume and save_total_limit go by the steps."""
    moments = iter(NOON - 3600 * n for n in range(100_000))
    run = {"per_device_train_batch_size": 4, "learning_rate": 0.1, "optim": "sgd", "lr_scheduler_type": "constant"}
    run |= {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 2}
    straight = trained(backend.classifier(), rows(16), output_dir=tmp_path / "straight", max_steps=4, **run)
    with monkeypatch.context() as clock:
        clock.setattr(time, "time", lambda: next(moments))
        trained(backend.classifier(), rows(16), max_steps=3, **run)
        output = tmp_path / "out"
        assert [c.step for c in store.find(output)] == [2, 3]
        caplog.set_level(logging.INFO, logger="oneloop")
        resumed = trained(backend.classifier(seed=1), rows(16), resume=True, max_steps=4, **run)
    assert f"resuming from {output / 'checkpoint-3'}" in caplog.text
    assert [c.step for c in store.find(output)] == [3, 4]
    assert same_bytes(backend.weights(resumed.model), backend.weights(straight.model))
