"""Power failures: every state that one may leave during a save has the old checkpoint or the new one, whole; and a
model that save_model writes is never a mixture of two.

The calls of each save are recorded under tests/checkpoint/disk/calls.c, and crash_states.py derives the states.
"""

import json
import logging
import random
import re
from functools import cache

import pytest

from oneloop import TrainerCallback
from tests.backends.support import kit_module, names, same_bytes
from tests.checkpoint.disk import job, preload
from tests.checkpoint.disk.checks import check_checkpoints, check_models, record_in
from tests.checkpoint.disk.crash_states import all_states, materialize

CHECKPOINTS = ("second", "first", "rotation", "same step", "directories", "added files")
IN_PARTS = ("two processes", "two processes, rotation", "two processes, same step", "two processes, first")
MODELS = (
    "model",
    "model and configuration",
    "first configuration",
    "shards",
    "more shards",
    "one file after shards",
    "shards after one file",
)


@pytest.fixture(scope="module")
def folders(library, tmp_path_factory):
    """Each scenario, recorded once."""
    folder = tmp_path_factory.mktemp("recorded")
    preload.run(library, "record", folder)
    return folder


def records_in(folder, random_orders):
    """A save of two processes as it was recorded, and in other orders of their calls."""
    return [record_in(folder, order) for order in (None, "first", "last", *range(random_orders))]


@pytest.fixture(autouse=True)
def silent():
    """Every second state has remains of a save, which are warned about."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def some(scenarios, in_default):
    return [name if name in in_default else pytest.param(name, marks=pytest.mark.slow) for name in scenarios]


@pytest.mark.parametrize("scenario", some(CHECKPOINTS, ("rotation", "same step")))
def test_a_checkpoint_is_the_old_or_the_new_one(scenario, folders, memory):
    record = record_in(folders / scenario)
    count, wrong = check_checkpoints([record], folders / scenario, memory)
    print(f"{scenario}: {len(record.calls)} calls, {count} states")
    assert not wrong and count > 90


@pytest.mark.parametrize("scenario", some(IN_PARTS, ("two processes, same step",)))
def test_a_checkpoint_of_two_processes_is_the_old_or_the_new_one(scenario, folders, memory, request):
    many = request.node.get_closest_marker("slow") is not None
    records = records_in(folders / scenario, 6) if many else [record_in(folders / scenario)]
    assert len({call[2] for call in records[0].calls}) == 2, "both processes have written"
    count, wrong = check_checkpoints(records, folders / scenario, memory, every=1 if many else 10)
    print(f"{scenario}: {len(records[0].calls)} calls, {len(records)} orders, {count} states")
    assert not wrong and count > 90


@pytest.mark.parametrize("scenario", some(MODELS, ("model", "shards")))
def test_a_model_is_the_old_or_the_new_one(scenario, folders, memory):
    record = record_in(folders / scenario)
    count, wrong = check_models(record, folders / scenario, memory)
    print(f"{scenario}: {len(record.calls)} calls, {count} states")
    assert not wrong and count > 90


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0, 1])
@pytest.mark.parametrize("framework", names())
def test_the_save_of_a_run_is_the_old_or_the_new_one(framework, limit, library, tmp_path, memory):
    """Through a Trainer, in the thread that saves; and a run resumes from some of the states."""
    folder = tmp_path / "recorded"
    preload.run(library, "record_run", framework, folder, limit)
    record = record_in(folder)
    count, wrong = check_checkpoints([record], folder, memory)
    print(f"{framework}, save_total_limit {limit}: {len(record.calls)} calls, {count} states")
    assert not wrong and count > 90
    check_resumes(framework, folder, tmp_path)


def check_resumes(framework, folder, tmp_path):
    """From some of the states, to the weights of a run that was not interrupted."""
    kit = kit_module(framework).Kit()

    def run(output, **given):
        trainer = job.trainer_of(framework, output, TrainerCallback(), max_steps=4, **given)
        trainer.train(resume_from_checkpoint=bool(given))
        return kit.weights(trainer.model)

    straight = run(tmp_path / "straight")
    states = list(all_states(record_in(folder)))
    for number, state in enumerate(random.Random(0).sample(states, 8)):
        output = tmp_path / f"resumed{number}"
        output.mkdir()
        materialize(state, output)
        assert same_bytes(run(output, seed=1), straight)


@pytest.mark.slow
@pytest.mark.parametrize(("sharding", "orders"), [("stage1", 6), ("stage3", 0)])
@pytest.mark.skipif("torch" not in names(), reason="torch writes checkpoints in parts")
def test_the_save_of_two_processes_is_the_old_or_the_new_one(sharding, orders, library, tmp_path, memory):
    """Through two Trainers under torchrun; and both resume from some of the states."""
    folder, runs = tmp_path / "recorded", tmp_path / "runs"
    preload.run(library, "record_run", "torch", folder, 1, sharding, processes=2)
    records = records_in(folder, orders)
    assert len({call[2] for call in records[0].calls}) == 2, "both processes have written"
    count, wrong = check_checkpoints(records, folder, memory)
    print(f"{sharding}: {len(records[0].calls)} calls, {len(records)} orders, {count} states")
    assert not wrong and count > 90
    (runs / "straight").mkdir(parents=True)
    for number, state in enumerate(random.Random(0).sample(list(all_states(*records_in(folder, orders))), 12)):
        (runs / f"resumed{number}").mkdir()
        materialize(state, runs / f"resumed{number}")
    digests = json.loads(preload.run(library, "resume_runs", "torch", runs, sharding, processes=2))
    assert len(digests) == 13 and len(set(digests.values())) == 1


# -- that it would find something


@pytest.mark.parametrize(
    ("mutation", "scenario", "finds"),
    [
        pytest.param(
            *("no fsync", "same step", "left over|none can be resumed|is not the new one|there is none"),
            marks=pytest.mark.slow,
        ),
        ("no fsync", "model", "cannot be read|mixture"),
        ("no fsync of directories", "rotation", "left over after the next start"),
        ("no fsync of directories", "shards", "mixture"),
        pytest.param(
            *("no fsync of directories inside", "directories", "left over|none can be resumed|is not the new one"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("no fsync by the second process", "two processes", "left over|none can be resumed|is not the new one"),
            marks=pytest.mark.slow,
        ),
        ("no order of shards", "shards", "mixture"),
    ],
)
def test_a_save_that_leaves_something_out_is_found_out(mutations, mutation, scenario, finds, memory):
    folder = mutations(mutation) / scenario
    if scenario in MODELS:
        _, wrong = check_models(record_in(folder), folder, memory, first_only=True)
    else:
        _, wrong = check_checkpoints([record_in(folder)], folder, memory, first_only=True)
    assert re.search(finds, str(wrong)), wrong


@pytest.fixture(scope="module")
def mutations(library, tmp_path_factory):
    @cache
    def make(name):
        folder = tmp_path_factory.mktemp("mutation")
        preload.run(library, "record", folder, name)
        return folder

    return make
