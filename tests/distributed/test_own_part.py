"""A part of a run that is added from outside, in this file alone: a running mean of the gradient norm.

As a program: `test_own_part.py FOLDER NAME [CHECKPOINT]` trains with it, or resumes from a checkpoint; each process
writes what it had to FOLDER/NAME-rankN.json. The framework is that of the variable FRAMEWORK.
"""

import json
import math
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from oneloop import Trainer, TrainingArguments
from oneloop.checkpoint import store
from oneloop.distributed.world import world
from oneloop.errors import ArgumentError, CheckpointError
from oneloop.formats.schema import hex_number, integer, record
from oneloop.trainer.part import Hooks, Part, Parts, register, unregister
from tests import internals
from tests.backends.support import names, rows
from tests.checkpoint.mutations import reseal
from tests.distributed.launch import run_script

RUN = {"max_steps": 6, "learning_rate": 0.05, "max_grad_norm": 0.5, "logging_steps": 1}
RUN |= {"save_strategy": "steps", "save_steps": 2}
LAST = 3  # norms that are kept as a tensor


class NormMean(Part):
    """The mean of the gradient norms of all steps; the last few as a tensor; the micro-batches of this process."""

    name = "norm_mean"
    title = "mean of the gradient norms"
    schema = {"norm_mean": record({"total": hex_number, "steps": integer()}, is_closed=True)}
    process_schema = record({"micro_batches": integer()}, is_closed=True)

    def __init__(self, context):
        super().__init__(context)
        self.norms, self.total, self.micro_batches = [], 0.0, 0
        self.steps, self.events = 0, []

    def begin_run(self):
        self.events.append(("begin_run", self.context.state.global_step))

    def end_micro_batch(self, index):
        self.micro_batches += 1

    def end_update(self, step, loss):
        norm = self.context.engine.grad_norm()  # a host sync
        self.total, self.steps = self.total + norm, self.steps + 1
        self.norms = [*self.norms, float(np.float32(norm))][-LAST:]

    def log(self):
        return {"norm_mean": self.total / self.steps}

    def end_run(self):
        self.events.append(("end_run", self.context.state.global_step))

    def state(self):
        return {"norm_mean": {"total": self.total.hex(), "steps": self.steps}}

    def tensors(self):
        values = np.asarray(self.norms, np.float32)
        return {"last": self.context.backend.tensors.from_numpy(values)} if self.norms else {}

    @classmethod
    def expects_tensors(cls, stored):
        return stored["norm_mean"]["steps"] > 0

    def process_state(self):
        return {"micro_batches": self.micro_batches}

    def load(self, stored, source):
        if "norm_mean" in stored:
            self.total, self.steps = float.fromhex(stored["norm_mean"]["total"]), stored["norm_mean"]["steps"]
            self.norms = source.arrays(self.name)["last"].tolist()
        self.events.append(("load", self.steps))

    def load_process_state(self, stored):
        self.micro_batches = stored["micro_batches"]

    def checkpoint_saved(self, step, path, is_scheduled):
        self.events.append(("saved", step, path.name, is_scheduled))

    def properties(self):
        return {"norms_kept": LAST}


@pytest.fixture
def part():
    yield register(NormMean)
    unregister(NormMean)


def part_of(trainer):
    return internals.part_of(trainer, NormMean.name)


def means_of(trainer):
    """What it logs in each step, and what it should be, from the norms in the same logs."""
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    norms = [entry["grad_norm"] for entry in steps]
    return [e.get("norm_mean") for e in steps], [math.fsum(norms[: i + 1]) / (i + 1) for i in range(len(norms))]


def stored_in(path):
    found = json.loads((Path(path) / "run.json").read_text())
    return {key: value for key, value in found.items() if key != "run_id"}


def train(backend, arguments, output, resume=None, **given):
    args = arguments(**RUN | {"output_dir": str(output), "per_device_train_batch_size": 4} | given)
    trainer = Trainer(backend.classifier(dropout=0.1), args, train_dataset=rows(24))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_it_is_logged_saved_and_restored(backend, arguments, part, tmp_path):
    whole = train(backend, arguments, tmp_path / "whole")
    found, expected = means_of(whole)
    assert found == pytest.approx(expected, rel=1e-6) and len(found) == 6
    assert part_of(whole).events == [
        *[("begin_run", 0), ("saved", 2, "checkpoint-2", True), ("saved", 4, "checkpoint-4", True)],
        *[("saved", 6, "checkpoint-6", True), ("end_run", 6)],
    ]
    again = train(backend, arguments, tmp_path / "again", str(tmp_path / "whole" / "checkpoint-4"))
    assert means_of(again)[0] == found
    assert part_of(again).events[:2] == [("load", 4), ("begin_run", 4)]
    assert part_of(again).norms == part_of(whole).norms and part_of(again).micro_batches == 6
    left, right = tmp_path / "whole" / "checkpoint-6", tmp_path / "again" / "checkpoint-6"
    assert stored_in(left) == stored_in(right)
    assert stored_in(left)["norm_mean"]["steps"] == 6 and stored_in(left)["course"]["norms_kept"] == LAST
    assert stored_in(left)["position"]["parts"] == {"norm_mean": {"micro_batches": 6}}
    assert (left / "norm_mean.safetensors").read_bytes() == (right / "norm_mean.safetensors").read_bytes()
    assert store.problems(left) == []


def test_a_run_without_it_is_the_same_and_may_go_on_from_one_with_it(backend, arguments, tmp_path):
    plain = train(backend, arguments, tmp_path / "plain")
    register(NormMean)
    try:
        train(backend, arguments, tmp_path / "with")
        late = train(backend, arguments, tmp_path / "late", str(tmp_path / "plain" / "checkpoint-4"))
    finally:
        unregister(NormMean)
    assert part_of(late).events[0] == ("load", 0) and part_of(late).steps == 2, "it starts where the run had none"
    without = train(backend, arguments, tmp_path / "without", str(tmp_path / "with" / "checkpoint-4"))
    added = {"norm_mean", "norms_kept", "parts"}
    for folder, removed in (("plain", set()), ("with", added), ("without", set())):
        stored = stored_in(tmp_path / folder / "checkpoint-6")
        stored["course"] = {key: value for key, value in stored["course"].items() if key not in removed}
        stored["position"] = {key: value for key, value in stored["position"].items() if key not in removed}
        assert {k: v for k, v in stored.items() if k not in removed} == stored_in(tmp_path / "plain" / "checkpoint-6")
        weights = [tmp_path / each / "checkpoint-6" / "model.safetensors" for each in (folder, "plain")]
        assert weights[0].read_bytes() == weights[1].read_bytes()
    assert not (tmp_path / "without" / "checkpoint-6" / "norm_mean.safetensors").exists()
    assert [e for e in without.state.log_history if "norm_mean" in e and e["step"] > 4] == []
    assert plain.state.global_step == 6


HOSTILE = [
    *[None, [], "x", {}, {"total": "0x1p+1"}, {"total": 1.0, "steps": 2}, {"total": "one", "steps": 2}],
    *[{"total": "0x1p+1", "steps": -1}, {"total": "0x1p+1", "steps": True}, {"total": "0x1p+1", "steps": 10**30}],
    {"total": "0x1p+1", "steps": 2, "more": 1},
]


def test_hostile_values_are_errors_by_its_schema(arguments, part, tmp_path):
    from tests.backends.support import kit_module

    backend = kit_module("torch").Kit()
    train(backend, arguments, tmp_path / "run", max_steps=2)
    checkpoint = tmp_path / "run" / "checkpoint-2"

    def changed(number, change):
        path = shutil.copytree(checkpoint, tmp_path / f"bad-{number}" / "checkpoint-2")
        stored = json.loads((path / "run.json").read_text())
        change(stored)
        (path / "run.json").write_text(json.dumps(stored))
        reseal(path)
        return path

    places = [lambda run, value=value: run.update(norm_mean=value) for value in HOSTILE]
    places += [
        lambda run, value=value: run["position"].update(parts=value)
        for value in (3, {"norm_mean": 3}, {"norm_mean": {"micro_batches": "x"}}, {"norm_mean": {}})
    ]
    for number, change in enumerate(places):
        path = changed(number, change)
        (problem,) = store.problems(path)
        assert "norm_mean" in problem or "parts" in problem or "state of a process" in problem
        with pytest.raises(CheckpointError, match="run.json is not valid"):
            train(backend, arguments, path.parent, str(path))
    path = changed("file", lambda run: None)
    (path / "norm_mean.safetensors").unlink()
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["files"]["norm_mean.safetensors"]
    (path / "manifest.json").write_text(json.dumps(manifest))
    words = r"run.json describes a mean of the gradient norms, but manifest.json does not list norm_mean.safetensors"
    with pytest.raises(CheckpointError, match=words):
        train(backend, arguments, path.parent, str(path))
    path = changed("short", lambda run: None)
    (path / "norm_mean.safetensors").write_bytes(b"\1\0\0\0\0\0\0\0x")
    reseal(path)
    with pytest.raises(CheckpointError, match=r"norm_mean\.safetensors"):
        train(backend, arguments, path.parent, str(path))


@pytest.fixture(
    scope="module", params=[n if n == "torch" else pytest.param(n, marks=pytest.mark.slow) for n in names()]
)
def two(request, tmp_path_factory):
    """(framework, folder) of a run of two processes."""
    folder = tmp_path_factory.mktemp(f"own_part_{request.param}")
    run_script(request.param, 2, folder, Path(__file__), "two")
    return request.param, folder


def left_by(folder, name, processes):
    return [json.loads((folder / f"{name}-rank{rank}.json").read_text()) for rank in range(processes)]


def test_two_processes_and_a_resume_on_one(two):
    framework, folder = two
    before = left_by(folder, "two", 2)
    assert before[0]["means"] == before[1]["means"] == pytest.approx(before[0]["expected"], rel=1e-6)
    assert [each["micro_batches"] for each in before] == [6, 6]
    checkpoint = folder / "two" / "checkpoint-4"
    run_script(framework, 2, folder, Path(__file__), "again", checkpoint)
    assert left_by(folder, "again", 2) == before
    run_script(framework, 1, folder, Path(__file__), "one", checkpoint)
    (alone,) = left_by(folder, "one", 1)
    assert alone["means"] == pytest.approx(before[0]["means"], rel=1e-3)
    assert alone["means"][:4] == before[0]["means"][:4] and alone["steps"] == 6
    assert alone["micro_batches"] == 4, "of this process alone: what each of two had is of no use to one"


def test_what_it_may_not_be_called():
    class Taken(NormMean):
        name = "average"

    class Core(NormMean):
        name = "position"
        schema = {"position": integer()}

    class Theirs(NormMean):
        name = "mine"
        schema = {"spikes": integer()}

    class File(NormMean):
        name = "optimizer"

    for kind, words in ((Taken, "average"), (Core, "run itself"), (Theirs, "the part 'spikes'"), (File, "optimizer")):
        with pytest.raises(ArgumentError, match=words):
            register(kind)


def test_a_part_is_not_asked_for_events_that_it_does_not_have():
    class Quiet(Part):
        name = "quiet"

    class Inactive(NormMean):
        name = "inactive"
        is_active = False

    parts = Parts()
    for kind in (Quiet, NormMean, Inactive):
        parts.add(kind(SimpleNamespace(backend=None)))
    hooks = vars(Hooks.of(parts))
    assert {event for event, called in hooks.items() if called} == {"end_micro_batch", "end_update", "log"}
    assert all(len(called) <= 1 for called in hooks.values())
    parts.start()
    assert [part.name for part in parts.having("state")] == [NormMean.name], "nor in a save"
    parts["inactive"].is_active = True
    assert len(parts.having("state")) == 1, "it was asked before the first step"


def main(folder, name, checkpoint=None):
    from tests.distributed.cases import KIT

    register(NormMean)
    args = TrainingArguments(
        str(Path(folder) / name),
        **RUN,
        per_device_train_batch_size=4,
        report_to="none",
        disable_tqdm=True,
        device="cpu",
        ddp_timeout=60,
    )
    trainer = Trainer(KIT.classifier(), args, train_dataset=rows(48))
    trainer.train(resume_from_checkpoint=checkpoint)
    found, expected = means_of(trainer)
    part = part_of(trainer)
    left = {"means": found, "expected": expected, "steps": part.steps, "micro_batches": part.micro_batches}
    (Path(folder) / f"{name}-rank{world().rank}.json").write_text(json.dumps(left))


if __name__ == "__main__":
    main(*sys.argv[1:])
