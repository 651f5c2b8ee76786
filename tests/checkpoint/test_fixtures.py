"""Checkpoints that an earlier state of the code wrote: read, written again without a change, and gone on from.

See make_fixtures.py. What is loaded and saved again is compared byte by byte, and so are all random numbers; what
processors compute is compared within 1e-6.
"""

import json
import os
import shutil
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from oneloop import TrainerCallback
from tests.checkpoint.make_fixtures import ARGUMENTS, FOLDER, SAVED, STEPS, build, made_with, weights_of, within

# In this order: MindSpore cannot be imported after Paddle.
FRAMEWORKS = [
    name
    for name in ("torch", "mindspore", "paddle")
    if find_spec(name) and name not in os.environ.get("WITHOUT", "").split()
]
TENSORS = ("model.safetensors", "optimizer.safetensors", "random.safetensors")


class SavesAtOnce(TrainerCallback):
    """Saves when the resumed run has put everything back and has not moved yet."""

    trainer = None

    def on_epoch_begin(self, args, state, control, **kwargs):
        if state.global_step == SAVED:
            self.trainer._save_checkpoint(self.trainer.model, None)
            target = Path(args.output_dir) / f"checkpoint-{SAVED}"
            shutil.copytree(target, "again")  # what follows may delete or replace it


class Resumed:
    """A fixture, and the run that went on from a copy of it."""

    def __init__(self, framework, folder):
        self.fixture = FOLDER / framework / f"checkpoint-{SAVED}"
        self.expected = json.loads((FOLDER / framework / "expected.json").read_text(encoding="utf-8"))
        self.again = folder / "again"
        shutil.copytree(self.fixture, folder / "run" / f"checkpoint-{SAVED}")
        saves = SavesAtOnce()
        with within(folder):
            trainer, collator, self.dropout = build(framework, seed=99, callbacks=[saves])  # other weights than stored
            saves.trainer = trainer
            trainer.train(resume_from_checkpoint=f"run/checkpoint-{SAVED}")
        self.batches, self.history = collator.noted, trainer.state.log_history
        self.step, self.weights = trainer.state.global_step, weights_of(folder / "run" / f"checkpoint-{STEPS}")
        here = made_with(framework)
        self.same_numbers = here == self.expected["made_with"]
        if not self.same_numbers:
            warnings.warn(f"the fixture is of {self.expected['made_with']}; here it is {here}", stacklevel=1)


@pytest.fixture(scope="module", params=FRAMEWORKS)
def resumed(request, tmp_path_factory):
    return Resumed(request.param, tmp_path_factory.mktemp(request.param))


def read(folder, name):
    return json.loads((folder / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_are_saved_again_with_the_same_bytes(resumed, name):
    assert (resumed.again / name).read_bytes() == (resumed.fixture / name).read_bytes()


def test_the_run_is_saved_again_as_it_was(resumed):
    before, again = (read(folder, "run.json") for folder in (resumed.fixture, resumed.again))
    if not resumed.same_numbers:  # another release of the framework has other options of its optimizer
        for run in (before, again):
            run["optimizer"].pop("groups")
    assert again == before


def test_the_state_is_saved_again_as_it_was(resumed):
    assert read(resumed.again, "trainer_state.json") == read(resumed.fixture, "trainer_state.json")
    assert read(resumed.fixture, "trainer_state.json")["log_history"], "an empty history would be kept too easily"


def test_arguments_are_saved_again_as_they_were(resumed):
    """Arguments may be added, and none is renamed, dropped or written in another way. One has another default since:
    whether a repository is private is up to the settings of its owner."""
    before, again = (read(folder, "training_args.json") for folder in (resumed.fixture, resumed.again))
    assert {name: again.get(name) for name in before} == before | {"hub_private_repo": None}
    assert {name: before[name] for name in ("max_steps", "learning_rate", "seed")} == {
        name: ARGUMENTS[name] for name in ("max_steps", "learning_rate", "seed")
    }


def test_the_manifest_is_written_again_as_it_was(resumed):
    before, again = (read(folder, "manifest.json") for folder in (resumed.fixture, resumed.again))
    again.pop("written")
    before.pop("written")
    assert again["files"].keys() == before["files"].keys()
    assert all(again["files"][name] == before["files"][name] for name in TENSORS)
    again.pop("files")
    before.pop("files")
    assert again.pop("generation") > before.pop("generation", 0), "a field that was added later"
    assert again == before


def test_the_next_batches_are_those_of_the_unbroken_run(resumed):
    expected = resumed.expected["batches"]
    assert len(expected) == 20 and len(resumed.batches) == 2 * (STEPS - SAVED)
    for name in ("indices", "python", "numpy"):
        assert [batch[name] for batch in resumed.batches[:20]] == [batch[name] for batch in expected], name


def test_the_framework_draws_as_in_the_unbroken_run(resumed):
    if not resumed.same_numbers:
        pytest.skip("another release of the framework, or another kind of processor, may draw other numbers")
    drawn = [batch["framework"] for batch in resumed.batches[:20]]
    assert drawn == [batch["framework"] for batch in resumed.expected["batches"]]
    assert resumed.dropout[:20] == resumed.expected["dropout"]
    assert all({"0", "1"} == set("".join(resumed.dropout[i : i + 3])) for i in range(18)), "dropout was on"


def test_the_run_ends_where_the_unbroken_run_ended(resumed):
    assert resumed.step == STEPS
    logged = [entry for entry in resumed.history if "loss" in entry]
    assert [entry["step"] for entry in logged] == list(range(2, STEPS + 1, 2))
    if not resumed.same_numbers:
        pytest.skip("another release of the framework, or another kind of processor, may draw other numbers")
    assert [entry["loss"] for entry in logged] == pytest.approx(resumed.expected["losses"], abs=1e-6)
    assert resumed.weights.keys() == resumed.expected["weights"].keys()
    for name, values in resumed.expected["weights"].items():
        assert np.abs(np.array(resumed.weights[name]) - np.array(values)).max() < 1e-6, name


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_new_run_writes_what_the_fixture_has(framework, tmp_path):
    """From the first step: the same files with the same tensors in them, and the same JSON."""
    fixture = FOLDER / framework / f"checkpoint-{SAVED}"
    with within(tmp_path):
        build(framework, seed=3, callbacks=[Leaves()])[0].train()
    written = tmp_path / "run" / f"checkpoint-{SAVED}"
    assert {path.name for path in written.iterdir()} == {path.name for path in fixture.iterdir()}
    for name in TENSORS:
        assert facts(written / name) == facts(fixture / name)
    for name in TENSORS[:2]:
        before, again = load_file(fixture / name), load_file(written / name)
        assert all(np.abs(again[key] - value).max() < 1e-6 for key, value in before.items())
    random, now = load_file(fixture / TENSORS[2]), load_file(written / TENSORS[2])
    common = [name for name in random if name.split(".")[0] in ("python", "numpy")]
    assert len(common) == 4 and all(now[name].tobytes() == random[name].tobytes() for name in common)
    for name in ("run.json", "trainer_state.json"):
        before, again = read(fixture, name), read(written, name)
        for entry in before.get("log_history", ()):  # today these are in log.jsonl alone
            entry.pop("steps_per_second", None), entry.pop("samples_per_second", None)
        assert outline(again) == outline(before)
    assert read(written, "run.json")["position"] == read(fixture, "run.json")["position"]


class Leaves(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == SAVED + 1


def facts(path):
    """Names, types and shapes of a file of tensors, and its metadata."""
    with safe_open(path, framework="np") as file:
        names = list(file.keys())
        parts = {name: file.get_slice(name) for name in names}
        return {name: (part.get_dtype(), part.get_shape()) for name, part in parts.items()}, file.metadata()


def outline(value):
    """JSON with the kind of each value in its place."""
    if isinstance(value, dict):
        return {name: outline(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [outline(inner) for inner in value]
    return type(value).__name__
