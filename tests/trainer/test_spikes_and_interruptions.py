"""A run with loss spikes ends the same, wherever it was interrupted: see spike_search.py, which draws such runs."""

import json
import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from oneloop import Trainer, TrainerCallback
from oneloop.checkpoint import store
from tests.backends.support import names, rows
from tests.internals import run_id
from tests.trainer import spike_search
from tests.trainer.spike_search import Case, Interruption, events, unbroken_run, wrong_with, wrong_with_unbroken

# 8 steps in an epoch of 24 samples.
GIVEN = {"max_steps": 24, "save_strategy": "steps", "save_steps": 5, "logging_steps": 1}
EACH_EPOCH = {"eval_strategy": "epoch"}
NOBODY = {"save_steps": 50}  # saves before the last step


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def case(spikes, interruptions=(), data="rows", patience=None, **given):
    return Case(data, 24, spikes, GIVEN | given, patience, tuple(Interruption(*each) for each in interruptions))


def evaluated(found):
    return [entry["step"] for entry in found["history"] if "eval_loss" in entry]


def reported(folder):
    return [event["step"] for event in events(folder, "loss_spike")]


def saved(folder):
    return sorted((path.name for path in Path(folder).glob("checkpoint-*")), key=lambda name: int(name[11:]))


def both(backend, tmp_path, wanted):
    """What the unbroken run has come to; the interrupted one has come to the same."""
    unbroken = unbroken_run(backend.name, replace(wanted, interruptions=()), tmp_path / "unbroken")
    assert wrong_with(backend.name, wanted, unbroken, tmp_path / "interrupted") == []
    return unbroken


# -- the end of an epoch


@pytest.mark.parametrize("data", ["rows", "stream"])
@pytest.mark.once_on("mindspore", "paddle")
def test_a_spike_in_the_first_step_of_an_epoch(backend, tmp_path, data):
    """The step is left out in its own epoch: the one before it ends and is evaluated as without a spike."""
    wanted = case((17,), data=data, **EACH_EPOCH)
    clean = unbroken_run(backend.name, replace(wanted, spikes=()), tmp_path / "clean")
    found = unbroken_run(backend.name, wanted, tmp_path / "found")
    assert found["rollbacks"] == [[17, 17]] and wrong_with_unbroken(wanted, clean, found) == []
    assert evaluated(found) == evaluated(clean) and len(evaluated(clean)) >= 3
    assert [entry["epoch"] for entry in found["history"]] == [
        entry["epoch"] for entry in clean["history"] if entry["step"] != 17
    ]


@pytest.mark.rare_on("mindspore", "paddle")
@pytest.mark.parametrize(
    ("spikes", "more"),
    [
        ((16,), {}),  # the last step of an epoch
        ((24,), {}),  # of the run
        ((16, 17, 18), {"loss_spike_limit": 3}),
        ((18,), {"loss_spike_skip_steps": 3}),  # from the last step of an epoch on
        ((17,), {"gradient_accumulation_steps": 3, "save_strategy": "epoch"}),  # 3 steps in an epoch, the last of 2
    ],
)
def test_steps_that_are_left_out_stay_in_their_epochs(backend, tmp_path, spikes, more):
    wanted = case(spikes, **EACH_EPOCH | more)
    clean = unbroken_run(backend.name, replace(wanted, spikes=()), tmp_path / "clean")
    found = unbroken_run(backend.name, wanted, tmp_path / "found")
    assert len(found["rollbacks"]) == len(spikes) and wrong_with_unbroken(wanted, clean, found) == []
    assert evaluated(found) == evaluated(clean)


def test_a_return_to_before_the_evaluation_of_an_epoch(backend, tmp_path):
    """Step 16 is saved, and a signal ends the run in the evaluation that follows. It is repeated at its step, by the
    resumed run and by the one that returns to that checkpoint."""
    wanted = case((17,), [("signal in an evaluation", 16)], save_steps=8, **EACH_EPOCH)
    assert evaluated(both(backend, tmp_path, wanted)) == [8, 16, 24]
    assert [event["to"] for event in events(tmp_path / "interrupted", "rolled_back")] == ["checkpoint-16"]


@pytest.mark.parametrize("strategy", ["steps", "epoch"])
@pytest.mark.once_on("mindspore", "paddle")
def test_a_return_to_before_the_first_evaluation(backend, tmp_path, strategy):
    """It is pending in the checkpoint, and repeated: early stopping has no best value again."""
    given = {"eval_strategy": strategy, "eval_steps": 8, "save_steps": 8, "metric_for_best_model": "loss"}
    wanted = case((10,), [("signal in an evaluation", 8)], patience=5, **given)
    found = both(backend, tmp_path, wanted)
    assert evaluated(found) == [8, 16, 24] and found["rollbacks"] == [[10, 10]]
    assert [event["to"] for event in events(tmp_path / "interrupted", "rolled_back")] == ["checkpoint-8"]


# -- what is left out


MORE = {"loss_spike_skip_steps": 4, "save_total_limit": 1, "logging_steps": 100}


def test_a_checkpoint_that_a_signal_asks_for_does_not_change_what_is_left_out(backend, tmp_path):
    """The run returns to the one before it, which is still there, although only one is kept."""
    found = both(backend, tmp_path, case((14,), [("signal", 12)], **MORE))
    assert found["rollbacks"] == [[11, 14]] and "13" not in found["batches"]
    (event,) = events(tmp_path / "interrupted", "rolled_back")
    assert event["to"] == "checkpoint-10" and event["left_out"] == [11, 14]
    for name in ("unbroken", "interrupted"):
        assert saved(tmp_path / name) == ["checkpoint-24"], "it is kept no longer than until the next"


@pytest.mark.rare_on("mindspore", "paddle")
@pytest.mark.parametrize(
    ("interruptions", "to"),
    [
        ([("saved", 12)], ["checkpoint-10"]),
        ([("saved, then a crash", 12)], ["checkpoint-10"]),
        ([("signal", 11), ("signal", 12), ("signal", 13)], ["checkpoint-10"]),
        ([("signal", 13), ("crash", 12)], ["checkpoint-10", "checkpoint-10"]),  # while it repeats the steps
        ([("signal", 13), ("signal", 14)], ["checkpoint-10"]),  # the spike is not saved
    ],
)
def test_nor_do_other_checkpoints_and_interruptions(backend, tmp_path, interruptions, to):
    found = both(backend, tmp_path, case((14,), interruptions, **MORE))
    assert found["rollbacks"] == [[11, 14]]
    assert [event["to"] for event in events(tmp_path / "interrupted", "rolled_back")] == to


@pytest.mark.rare_on("mindspore", "paddle")
def test_nor_do_checkpoints_by_the_clock(backend, tmp_path):
    """Every step is saved; the run returns to the last one that has to be undone least."""
    wanted = case((14,), loss_spike_skip_steps=2)
    by_steps = unbroken_run(backend.name, wanted, tmp_path / "steps")
    given = wanted.given | {"save_interval_minutes": 1e-9}
    by_clock = unbroken_run(backend.name, replace(wanted, given=given), tmp_path / "clock")
    assert by_clock["batches"] == by_steps["batches"] and by_clock["weights"] == by_steps["weights"]
    assert by_clock["rollbacks"] == [[13, 14]]
    (event,) = events(tmp_path / "clock", "rolled_back")
    assert event["to"] == "checkpoint-10"
    (event,) = events(tmp_path / "steps", "rolled_back")
    assert event["to"] == "checkpoint-10"


@pytest.mark.rare_on("mindspore", "paddle")
def test_the_nearest_checkpoint_is_returned_to(backend, tmp_path):
    """One that a signal asked for serves as well, if it precedes what is left out."""
    both(backend, tmp_path, case((14,), [("signal", 12)], loss_spike_skip_steps=2))
    assert [event["to"] for event in events(tmp_path / "interrupted", "rolled_back")] == ["checkpoint-12"]


def test_a_spike_before_the_first_checkpoint_on_schedule(backend, tmp_path):
    """It is reported, and trained on, also where a signal has asked for a checkpoint before."""
    found = both(backend, tmp_path, case((12,), [("signal", 10)], **NOBODY))
    assert found["rollbacks"] == [] and "12" in found["batches"]
    for name in ("unbroken", "interrupted"):
        assert reported(tmp_path / name) == [12]
    assert saved(tmp_path / "interrupted") == ["checkpoint-10", "checkpoint-24"]


@pytest.mark.rare_on("mindspore", "paddle")
def test_the_limit_counts_returns_since_the_last_checkpoint_on_schedule(backend, tmp_path):
    wanted = case((12, 14, 16), [("signal", 13), ("signal", 15)], save_steps=10, loss_spike_limit=2)
    assert both(backend, tmp_path, wanted)["error"].startswith("step 16")


@pytest.mark.rare_on("mindspore", "paddle")
@pytest.mark.parametrize("given", [{"save_strategy": "epoch"}, {"save_strategy": "best", "eval_strategy": "epoch"}])
def test_checkpoints_by_epoch_and_for_the_best_are_on_schedule(backend, tmp_path, given):
    given = given | {"loss_spike_skip_steps": 5, "metric_for_best_model": "loss"}
    found = both(backend, tmp_path, case((10,), [("signal", 8), ("signal", 9)], **given))
    assert found["rollbacks"] == [[9, 10]]


@pytest.mark.rare_on("mindspore", "paddle")
def test_later_checkpoints_are_deleted_by_a_return(backend, tmp_path):
    """A resume would take them for the newest, although what they were trained on is undone."""
    wanted = case((14,), [("saved", 12), ("crash", 11)], loss_spike_skip_steps=4)
    unbroken = unbroken_run(backend.name, replace(wanted, interruptions=()), tmp_path / "unbroken")
    assert wrong_with(backend.name, wanted, unbroken, tmp_path / "out") == []
    assert saved(tmp_path / "out") == [f"checkpoint-{step}" for step in (5, 10, 15, 20, 24)]
    # By the return, after the crash, and by another return: what the first one has left out is not saved yet.
    assert [event["from"] for event in events(tmp_path / "out", "resumed")] == ["checkpoint-10"] * 3


# -- checkpoints that are gone, of other runs and of earlier releases


class At(TrainerCallback):
    def __init__(self, step, action):
        self.step, self.action = step, action

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.step = None
            self.action()


@pytest.fixture
def left(backend, tmp_path):
    """A run that a signal has ended after step 12, and how it goes on to a spike in step 14."""
    wanted = case((14,), [("signal", 12)], loss_spike_skip_steps=4)
    course = spike_search.Course()
    course.pending = list(wanted.interruptions)
    trainer, _ = spike_search.build(backend.name, wanted, tmp_path / "out", course)
    with pytest.raises(SystemExit):
        trainer.train()

    def go_on(at_step_13=lambda: None, **more):
        again = replace(wanted, given=wanted.given | {"log_level": "warning"} | more)
        trainer, _ = spike_search.build(backend.name, again, tmp_path / "out", course)
        trainer.add_callback(At(13, at_step_13))
        trainer.train(resume_from_checkpoint=True)
        return [(event["to"], event["left_out"]) for event in events(tmp_path / "out", "rolled_back")]

    return go_on


@pytest.mark.rare_on("mindspore", "paddle")
def test_a_run_that_was_branched_from_another(backend, tmp_path):
    """It returns to a checkpoint of the run before, and deletes none of its later ones."""
    wanted = case((), [("saved", 12)], loss_spike="rollback", loss_spike_skip_steps=4)
    folder = tmp_path / "out"
    unbroken_run(backend.name, wanted, folder)
    before = saved(folder)
    assert before == [f"checkpoint-{step}" for step in (5, 10, 12, 15, 20, 24)]
    seen = []
    again = replace(wanted, spikes=(14,), interruptions=())
    trainer, _ = spike_search.build(backend.name, again, folder, spike_search.Course())
    trainer.add_callback(At(11, lambda: seen.extend(saved(folder))))
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-12"))
    assert [(event["to"], event["left_out"]) for event in events(folder, "rolled_back")] == [
        ("checkpoint-10", [11, 14])
    ]
    assert seen == before
    (event,) = [each for each in events(folder, "resumed") if each["from"] == "checkpoint-10"]
    assert event["run"] == run_id(trainer) and event["parent"] == events(folder, "started")[0]["run"]


@pytest.mark.rare_on("mindspore", "paddle")
def test_a_run_that_is_given_more_steps(backend, tmp_path):
    """The checkpoint of its last step is on schedule."""
    wanted = case((14,), loss_spike_skip_steps=4)
    for steps in (12, 16):
        given = wanted.given | {"max_steps": steps}
        course = spike_search.Course()
        trainer, _ = spike_search.build(backend.name, replace(wanted, given=given), tmp_path / "out", course)
        trainer.train(resume_from_checkpoint=steps > 12)
    (event,) = events(tmp_path / "out", "rolled_back")
    assert (event["to"], event["left_out"]) == ("checkpoint-12", [13, 14])


@pytest.mark.rare_on("mindspore", "paddle")
@pytest.mark.parametrize(("left_out", "kept"), [(4, ["checkpoint-10", "checkpoint-12"]), (1, ["checkpoint-12"])])
def test_rotation_by_an_override_keeps_it_if_it_may_be_needed(backend, tmp_path, left_out, kept):
    class Rotates(spike_search.Spiky):
        course, spikes = spike_search.Course(), (14,)

        def _rotate_checkpoints(self, *given, **named):
            super()._rotate_checkpoints(*given, **named)

    wanted = case((14,), [("signal", 12)], **MORE | {"loss_spike_skip_steps": left_out})
    Rotates.course.pending = list(wanted.interruptions)
    plain, _ = spike_search.build(backend.name, wanted, tmp_path / "out", Rotates.course)
    callbacks = [spike_search.Follow(Rotates.course)]
    trainer = Rotates(plain.model, plain.args, train_dataset=plain.train_dataset, callbacks=callbacks)
    with pytest.raises(SystemExit):
        trainer.train()
    assert saved(tmp_path / "out") == kept


@pytest.mark.rare_on("mindspore", "paddle")
def test_a_checkpoint_that_is_gone(left, tmp_path, caplog):
    shutil.rmtree(tmp_path / "out" / "checkpoint-10")
    assert left() == [("checkpoint-12", [13, 14])]
    assert "steps 11 to 12 should be skipped too" in caplog.text and "is missing or not complete" in caplog.text


@pytest.mark.rare_on("mindspore", "paddle")
def test_a_checkpoint_of_another_run(left, tmp_path):
    manifest = tmp_path / "out" / "checkpoint-10" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"run_id": "0123456789abcdef"}))
    assert left() == [("checkpoint-12", [13, 14])]


@pytest.mark.rare_on("mindspore", "paddle")
def test_a_damaged_checkpoint_of_a_signal(left, tmp_path):
    """The one before it serves, although it would not be needed."""
    damage = lambda: (tmp_path / "out" / "checkpoint-12" / "model.safetensors").write_bytes(b"x")  # noqa: E731
    assert left(damage, loss_spike_skip_steps=1) == [("checkpoint-10", [14, 14])]


@pytest.mark.rare_on("mindspore", "paddle")
def test_a_checkpoint_of_an_earlier_release(left, tmp_path):
    """It does not say which one was the last on schedule, and is taken for that."""
    path = tmp_path / "out" / "checkpoint-12"
    run = json.loads((path / "run.json").read_text())
    assert run["spikes"].pop("scheduled") == 10
    data = json.dumps(run).encode()
    (path / "run.json").write_bytes(data)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"]["run.json"] = {"bytes": len(data), "sha256": store.checksum(path / "run.json")}
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert left() == [("checkpoint-12", [13, 14])]


@pytest.mark.rare_on("mindspore", "paddle")
def test_a_run_that_continues_a_checkpoint_without_spikes(backend, trained, tmp_path):
    """It was written with loss_spike="off": the first spike returns to it."""
    given = {"per_device_train_batch_size": 2, "learning_rate": 0.02, "save_strategy": "steps", "save_steps": 4}
    trained(backend.classifier(), rows(64), **given | {"max_steps": 4})

    class Spiky(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            return loss * 1e4 if self.state.global_step + 1 == 13 and not return_outputs else loss

    guard = {"loss_spike": "rollback", "loss_spike_window": 8, "save_steps": 50, "max_steps": 16}
    trainer = trained(backend.classifier(), rows(64), Spiky, resume=True, **given | guard)
    (event,) = events(tmp_path / "out", "rolled_back")
    assert event["to"] == "checkpoint-4" and trainer.state.global_step == 16


# -- drawn


def search(framework, seeds, **options):
    tally = spike_search.Tally()
    logging.disable(logging.ERROR)
    try:
        wrong = [line for seed in seeds for line in spike_search.searched(framework, seed, tally, **options)]
    finally:
        logging.disable(logging.NOTSET)
    assert wrong == [] and tally.interruptions and tally.returns


def test_drawn_runs():
    search("torch", range(3), runs_each=2)


@pytest.mark.slow
@pytest.mark.parametrize("framework", names())
def test_many_drawn_runs(framework):
    search(framework, range(100, 120))
