"""Damaged checkpoints: a resume passes over them, aloud; one that is asked for by name is an error that says all."""

import json
import pickle
import shutil
from importlib import import_module
from importlib.util import find_spec

import pytest
from safetensors import safe_open

from oneloop.checkpoint import store
from oneloop.errors import CheckpointError
from tests.checkpoint.children import FINISHED
from tests.checkpoint.job import contents

FILES = ["model.safetensors", "optimizer.safetensors", "random.safetensors", "run.json", "trainer_state.json"]
FILES += ["training_args.json", store.MANIFEST]


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_bit(path, place=None):
    data = bytearray(path.read_bytes())
    place = len(data) - 2 if place is None else place  # inside the last tensor, the last brace
    data[place] ^= 0b100
    path.write_bytes(data)


def remove(path):
    path.unlink()


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def test_every_kind_of_file_is_tried(finished):
    assert sorted(path.name for path in (finished / "checkpoint-22").iterdir()) == sorted(FILES)


DAMAGES = [truncate, flip_a_bit, remove]
# Every file, and every damage; the other pairs are slow. All of them are found in test_by_name_it_is_an_error.
FALLS_BACK = [
    pytest.param(damage, name, marks=[] if i % len(DAMAGES) == j else pytest.mark.slow)
    for i, name in enumerate(FILES)
    for j, damage in enumerate(DAMAGES)
]


@pytest.mark.parametrize(("damage", "name"), FALLS_BACK)
def test_falls_back_to_the_newest_whole_one(damage, name, run, finished, trainer, caplog):
    damage(run / "checkpoint-22" / name)
    resumed = trainer(*FINISHED)
    resumed.train(resume_from_checkpoint=True)
    told = [record.getMessage() for record in caplog.records if "Skipping " in record.getMessage()]
    assert len(told) == 1
    assert str(run / "checkpoint-22") in told[0]
    assert name in told[0]
    assert any(f"resuming from {run / 'checkpoint-18'}" in record.getMessage() for record in caplog.records)
    assert store.problems(run / "checkpoint-22") == [], "the run has written it anew"
    assert contents(run / "checkpoint-22") == contents(finished / "checkpoint-22")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_by_name_it_is_an_error(damage, name, run, trainer):
    damage(run / "checkpoint-22" / name)
    with pytest.raises(CheckpointError) as caught:
        trainer(*FINISHED).train(resume_from_checkpoint=str(run / "checkpoint-22"))
    assert name in str(caught.value)
    assert f"Complete checkpoints next to it: {run / 'checkpoint-'}" in str(caught.value)


def test_all_that_is_wrong_is_listed(run, trainer):
    truncate(run / "checkpoint-22" / "model.safetensors")
    flip_a_bit(run / "checkpoint-22" / "optimizer.safetensors")
    remove(run / "checkpoint-22" / "run.json")
    with pytest.raises(CheckpointError) as caught:
        trainer(*FINISHED).train(resume_from_checkpoint=run / "checkpoint-22")
    for words in ("model.safetensors has", "optimizer.safetensors has changed", "run.json is missing"):
        assert words in str(caught.value)


def test_when_none_is_whole_the_run_does_not_start_anew(run, trainer, caplog):
    found = store.find(run)
    for checkpoint in found:
        truncate(checkpoint.path / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"none of the {len(found)} checkpoints"):
        trainer(*FINISHED).train(resume_from_checkpoint=True)
    assert sum("Skipping " in record.getMessage() for record in caplog.records) == len(found)


def test_a_run_that_fell_back_does_not_rotate_away_what_it_writes(run, trainer):
    """The damaged checkpoint has the highest step, and is the newest by name only."""
    flip_a_bit(run / "checkpoint-22" / "model.safetensors")
    resumed = trainer("--no-sync", "--set", "save_steps=1", "--set", "save_total_limit=1", "--steps", "21")
    resumed.train(resume_from_checkpoint=True)
    assert store.problems(run / "checkpoint-21") == []


def test_no_bit_of_a_manifest_can_make_it_vouch_for_other_files(finished, tmp_path):
    folder = shutil.copytree(finished / "checkpoint-22", tmp_path / "checkpoint-22")
    text = (folder / store.MANIFEST).read_bytes()
    files = json.loads(text)["files"]
    for place in range(len(text)):
        (folder / store.MANIFEST).write_bytes(text)
        flip_a_bit(folder / store.MANIFEST, place)
        if store.problems(folder) == []:
            assert json.loads((folder / store.MANIFEST).read_bytes())["files"] == files


def test_a_checkpoint_of_a_later_format_is_refused_in_words(run, trainer):
    path = run / "checkpoint-22" / store.MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(CheckpointError, match="its format is 99; this release reads format 1"):
        trainer(*FINISHED).train(resume_from_checkpoint=run / "checkpoint-22")


# -- what files are made of


def test_files_are_json_or_safetensors(finished):
    for path in (finished / "checkpoint-22").iterdir():
        if path.suffix == ".json":
            json.loads(path.read_text())
            continue
        with safe_open(path, framework="np") as f:
            assert all(f.get_tensor(name) is not None for name in f.keys())  # noqa: SIM118  it is not a dict


def test_nothing_is_unpickled(run, trainer, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("something was unpickled")

    owners = [(pickle, "load"), (pickle, "loads"), (pickle, "Unpickler")]
    if find_spec("torch"):
        owners.append((import_module("torch"), "load"))
    for owner, name in owners:
        monkeypatch.setattr(owner, name, refuse)
    resumed = trainer(*FINISHED, "--steps", "24")
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 24
