"""Power failures: every state that one may leave during a save has the old checkpoint or the new one, whole; and a
model that save_model writes is never a mixture of two.

The calls of each save are recorded under tests/checkpoint/disk/calls.c, and crash_states.py derives the states.
"""

import json
import logging
import random
import re
import shutil
from collections import Counter
from functools import cache
from itertools import islice

import pytest

from oneloop import TrainerCallback
from oneloop.checkpoint import resume, saved_model, store
from oneloop.formats.safetensors_io import read
from tests.backends.support import kit_module, names, same_bytes
from tests.checkpoint.disk import job, preload
from tests.checkpoint.disk.crash_states import Record, all_states, materialize, snapshot

CHECKPOINTS = ("second", "first", "rotation", "same step", "directories", "added files")
IN_PARTS = ("two processes", "two processes, rotation", "two processes, same step", "two processes, first")
MODELS = ("model", "model and configuration", "shards", "more shards", "one file after shards", "shards after one file")
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def folders(library, tmp_path_factory):
    """Each scenario, recorded once."""
    folder = tmp_path_factory.mktemp("recorded")
    preload.run(library, "record", folder)
    return folder


def record_in(folder, order=None):
    return Record(folder / "before", folder / "inodes.json", folder / "calls", order)


def records_in(folder, random_orders):
    """A save of two processes as it was recorded, and in other orders of their calls."""
    return [record_in(folder, order) for order in (None, "first", "last", *range(random_orders))]


@pytest.fixture(autouse=True)
def silent():
    """Every second state has remains of a save, which are warned about."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def checkpoint_problem(state, folder, whole):
    """What is wrong with a directory of checkpoints after a failure; None if a resume finds the old or the new one."""
    parents = [folder, folder / "deep" / "run"]
    parent = next((p for p in parents[::-1] if p.is_dir()), folder)
    store.remove_leftovers(parent)
    try:
        checkpoint, _ = resume.find(True, str(parent))
    except Exception as error:
        return f"none can be resumed: {error}"
    path = None if checkpoint is None else checkpoint.path
    if path is None:
        return None if not whole["old"] and "returned" not in state.marks else "there is none"
    found = snapshot(path)
    if "returned" in state.marks and found != whole["new"]:
        return f"the save had returned, and {path.name} is not the new one"
    if found in (whole["old"], whole["new"]):
        return None
    listed = {name: data for name, data in found.items() if name in store.read_manifest(path)["files"]}
    if "added.bin" in whole["new"] and listed == whole["unsealed"]:
        return None  # the new one, before what an override has added is a part of it
    return f"{path.name} is neither the old nor the new one: {sorted(found)}"


def check_checkpoints(records, folder, memory, first_only=False, every=1):
    """(states, those with something wrong); `every`: 10 for a tenth of the states"""
    old, new = (sorted(p for p in (folder / part).rglob("checkpoint-*") if p.is_dir()) for part in ("before", "after"))
    whole = {"old": snapshot(old[-1]) if old else {}, "new": snapshot(new[-1])}
    whole["unsealed"] = {name: data for name, data in whole["new"].items() if name not in ("added.bin", store.MANIFEST)}
    count, wrong = 0, Counter()
    for state in islice(all_states(*records), 0, None, every):
        count += 1
        place = memory / "state"
        place.mkdir()
        materialize(state, place)
        problem = checkpoint_problem(state, place, whole)
        if problem:
            wrong[problem] += 1
        shutil.rmtree(place)
        if wrong and first_only:
            break
    return count, wrong


def values(folder):
    """(values of the weights, configuration) as a reader finds them; None if there is no model."""
    if (folder / INDEX).is_file():
        files = set(json.loads((folder / INDEX).read_text())["weight_map"].values())
    elif (folder / "model.safetensors").is_file():
        files = {"model.safetensors"}
    else:
        return None
    weights = {bytes(raw.data) for file in files for raw in read(folder / file).values()}
    return weights, (folder / "config.json").read_bytes()


def check_models(record, folder, memory, first_only=False):
    old, new = values(folder / "before"), values(folder / "after")
    assert old != new and len(old[0]) == len(new[0]) == 1
    count, wrong = 0, Counter()
    for state in all_states(record):
        count += 1
        place = memory / "state"
        place.mkdir()
        materialize(state, place)
        try:
            found = values(place)
            saved_model.recover(place)
            end = values(place)
        except Exception as error:
            wrong[f"cannot be read: {type(error).__name__}: {error}"] += 1
        else:
            if found not in (old, new, None):
                wrong["a mixture"] += 1
            if end not in (old, new):
                wrong["no model, or a mixture, after the next start"] += 1
            if "returned" in state.marks and end != new:
                wrong["the save had returned, and the model is not the new one"] += 1
        shutil.rmtree(place)
        if wrong and first_only:
            break
    return count, wrong


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
            *("no fsync", "same step", "none can be resumed|is not the new one|there is none"), marks=pytest.mark.slow
        ),
        ("no fsync", "model", "cannot be read|mixture"),
        ("no fsync of directories", "rotation", "none can be resumed|is not the new one|there is none"),
        ("no fsync of directories", "shards", "mixture"),
        pytest.param(
            *("no fsync of directories inside", "directories", "none can be resumed|is not the new one"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("no fsync by the second process", "two processes", "none can be resumed|is not the new one"),
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
