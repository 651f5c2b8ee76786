"""Runs that are interrupted end as the ones that are not; see interrupted_runs.py.

First the courses that were found to end differently, by what was wrong; then some that are drawn from seeds.
"""

import json
import logging
import random
from dataclasses import replace

import pytest

from oneloop import Trainer, TrainerCallback
from oneloop.distributed.preemption import Preempted
from tests.backends.support import names
from tests.checkpoint.interrupted_data import COMMON, KINDS, MINDSPORE, PADDLE, TORCH
from tests.checkpoint.interrupted_runs import (
    Aborted,
    Course,
    Interruption,
    build,
    compared,
    difference,
    draw,
    play,
    quiet,
)

EVERY_STEP = {
    "gradient_accumulation_steps": 2,
    "max_steps": 8,
    "logging_steps": 2,
    "eval_strategy": "steps",
    "eval_steps": 1,
    "save_strategy": "steps",
    "save_steps": 1,
    "load_best_model_at_end": True,
}
ALWAYS_BEST = {"metric_for_best_model": "step", "greater_is_better": True}  # so that it is saved in any case
IN_EVALUATION = Interruption("evaluation", 3)  # of the first step that a process evaluates
IN_SECOND_EPOCH = Interruption("evaluation", 23)  # of its fifth step
AFTER_EPOCH = Interruption("on_epoch_begin", 2, "abort")
AGAIN = Interruption("on_step_begin", 1, "abort")  # before the resumed run has done a step
TORCH_ONLY = pytest.mark.skipif("torch" not in names(), reason="PyTorch is not installed")
FRAMEWORKS = pytest.mark.parametrize("framework", names())


def wrong(kind, framework="torch", **fields):
    """What differs in a run of three steps an epoch, of which the last has one batch; and that it was interrupted."""
    options = EVERY_STEP | fields.pop("options", {})
    course = Course(kind, framework, 10, options=options, **fields)
    found, ends = difference(course)
    assert len(ends) == len(course.interruptions) + 1, ends
    return found


# -- an evaluation is pending when the run is resumed, and saves the step again


@FRAMEWORKS
@pytest.mark.once_on("mindspore", "paddle")
@pytest.mark.parametrize("kind", ["sampler", "stream"])
def test_second_resume_after_a_pending_evaluation(framework, kind):
    """The resumed run evaluates, finds the best model so far and saves the step; it dies in the next one."""
    assert wrong(kind, framework, options=ALWAYS_BEST, interruptions=(IN_SECOND_EPOCH, AGAIN)) == []


@TORCH_ONLY
@pytest.mark.parametrize("kind", ["torch DataLoader", "torch generator", "stream with state", "map with state"])
def test_the_same_for_other_data(kind):
    assert wrong(kind, options=ALWAYS_BEST, interruptions=(IN_SECOND_EPOCH, IN_EVALUATION, AGAIN)) == []


@TORCH_ONLY
@pytest.mark.parametrize("kind", ["map with state", "torch replacement"])
def test_the_same_with_a_batch_that_was_fetched_ahead(kind):
    options = ALWAYS_BEST | {"data_order": "transformers", "group_by_length": kind.startswith("map")}
    assert wrong(kind, options=options, collator_state=True, interruptions=(IN_SECOND_EPOCH, AGAIN)) == []


@FRAMEWORKS
def test_at_the_end_of_an_epoch(framework):
    """Evaluated and saved when the epoch has ended: what is saved again still says so."""
    by_epoch = ALWAYS_BEST | {"eval_strategy": "epoch", "save_strategy": "epoch"}
    kind = "torch generator" if framework == "torch" else "sampler"
    assert wrong(kind, framework, options=by_epoch, interruptions=(IN_EVALUATION, AGAIN)) == []


def test_an_epoch_that_a_callback_stopped_does_not_stop_the_next_one():
    by_epoch = {"eval_strategy": "epoch", "save_strategy": "epoch"}
    assert wrong("map", names()[0], options=by_epoch, stops_epoch=2, interruptions=(AFTER_EPOCH,)) == []


def test_an_epoch_that_a_callback_stopped_stays_stopped():
    assert wrong("map", names()[0], options=ALWAYS_BEST, stops_epoch=1, interruptions=(IN_EVALUATION, AGAIN)) == []


def test_a_run_that_ended_within_an_epoch_can_be_given_more_steps(tmp_path):
    """The last step cuts its epoch short, whose end has a pending evaluation."""
    by_epoch = {"eval_strategy": "epoch", "save_strategy": "epoch", "lr_scheduler_type": "constant"}
    short, more = (
        Course("sampler", names()[0], 10, options=EVERY_STEP | by_epoch | {"max_steps": steps}) for steps in (4, 6)
    )
    whole, broken = {}, {}
    with quiet():
        build(short, tmp_path / "whole", whole).train()
        build(more, tmp_path / "whole", whole).train(resume_from_checkpoint=True)
        with pytest.raises(Preempted):
            build(short, tmp_path / "broken", broken, Interruption("evaluation", 8)).train()
        build(short, tmp_path / "broken", broken).train(resume_from_checkpoint=True)
        build(more, tmp_path / "broken", broken).train(resume_from_checkpoint=True)
    assert list(whole) == [1, 2, 3, 4, 5, 6]
    assert broken == whole


def test_the_save_that_was_due_is_repeated_after_a_pending_evaluation(tmp_path):
    """Also if the evaluation is not the best: the checkpoint then has it, as that of a run without a signal."""
    kind, options = (
        "map",
        EVERY_STEP | {"load_best_model_at_end": False, "metric_for_best_model": "loss", "max_steps": 1},
    )
    course = Course(kind, names()[0], 10, options=options, interruptions=(IN_EVALUATION,))
    with quiet():
        play(course, tmp_path)
    stored = json.loads((tmp_path / "checkpoint-1" / "trainer_state.json").read_text())
    assert [entry["step"] for entry in stored["log_history"] if "eval_loss" in entry] == [1]
    assert stored["best_model_checkpoint"].endswith("checkpoint-1")
    position = json.loads((tmp_path / "checkpoint-1" / "run.json").read_text())["position"]
    assert not any(position["pending"].values())


@FRAMEWORKS
@pytest.mark.rare_on("mindspore")
def test_an_evaluation_that_is_given_up_leaves_the_collator_as_it_was(framework):
    assert wrong("map", framework, collator_state=True, interruptions=(IN_EVALUATION,)) == []


def test_the_files_that_a_pending_evaluation_replaces_are_not_read_again(tmp_path):
    """A save in the background replaces the checkpoint that is resumed while its epoch is opened."""
    course = Course("sampler", names()[0], 10, options=EVERY_STEP | ALWAYS_BEST | {"max_steps": 6})
    recorded = {}

    def save(self, *args, **kwargs):
        Trainer._save_checkpoint(self, *args, **kwargs)
        if self.state.global_step == 5:
            (tmp_path / "run" / "checkpoint-5" / "random.safetensors").unlink()

    with quiet():
        whole, _ = play(course, tmp_path / "whole")
        with pytest.raises(Preempted):
            build(course, tmp_path / "run", recorded, IN_SECOND_EPOCH).train()
        trainer = build(course, tmp_path / "run", recorded)
        type(trainer)._save_checkpoint = save
        trainer.train(resume_from_checkpoint=True)
    assert recorded == whole["samples"]


# -- a resume reads again what had been read, and no more


@TORCH_ONLY
@pytest.mark.parametrize(
    "kind", ["torch generator", "torch DataLoader generator", "torch BatchSampler", "torch set_epoch and generator"]
)
def test_generators_of_samplers_at_the_end_of_an_epoch(kind):
    """Five batches of an epoch of three steps: a resume from its last step must not ask for the sixth."""
    at_end = Interruption("on_step_end", 3, "signal")
    assert wrong(kind, interruptions=(at_end,)) == []
    assert wrong(kind, interruptions=(at_end, Interruption("on_step_begin", 2, "abort"))) == []


@FRAMEWORKS
@pytest.mark.rare_on("mindspore")
def test_a_state_of_data_under_a_sampler_is_not_its_position(framework):
    in_epoch = Interruption("on_step_end", 2)
    assert wrong("sampler of data with state", framework, collator_state=True, interruptions=(in_epoch,)) == []


@FRAMEWORKS
@pytest.mark.once_on("mindspore", "paddle")
@pytest.mark.parametrize("kind", ["stream with generator", "stream with offset", "stream with state"])
def test_a_stream_that_has_ended_is_not_read_once_more(framework, kind):
    """Its state may be that of a new start, also in the last step, which no batch follows."""
    at_end = Interruption("on_step_end", 3)
    by_epochs = {"max_steps": -1, "num_train_epochs": 2, "lr_scheduler_type": "constant"}
    assert wrong(kind, framework, options=by_epochs, interruptions=(at_end,)) == []
    saved_at_end = by_epochs | {"eval_strategy": "epoch", "save_strategy": "epoch"}
    assert wrong(kind, framework, options=saved_at_end, interruptions=(AFTER_EPOCH,)) == []


@FRAMEWORKS
@pytest.mark.once_on("mindspore", "paddle")
@pytest.mark.parametrize("kind", ["stream with place", "stream with restart", "stream with own iterator"])
def test_a_stream_that_goes_back_to_its_start_at_the_end_of_a_pass(framework, kind):
    """Full batches: the last one does not tell that it is. Its state at the last step is that of the start, or one that
    is iterated from the start."""
    by_epochs = {"max_steps": -1, "num_train_epochs": 3, "lr_scheduler_type": "constant", "eval_strategy": "epoch"}
    by_epochs |= {"gradient_accumulation_steps": 1, "load_best_model_at_end": False}
    for number in (4, 5, 10):  # before, at and after the first end; at the second one
        assert wrong(kind, framework, options=by_epochs, interruptions=(Interruption("on_step_end", number),)) == []
    again = (Interruption("on_step_end", 5), Interruption("on_step_begin", 1, "abort"))
    assert wrong(kind, framework, options=by_epochs, interruptions=again) == []


@TORCH_ONLY
@pytest.mark.parametrize("kind", ["torch StatefulDataLoader workers", "torch StatefulDataLoader workers and stream"])
def test_a_stateful_loader_with_workers(kind):
    """Its state has no random numbers of its workers, nor which of them have ended: what was read is read again."""
    by_epochs = {"max_steps": -1, "num_train_epochs": 2, "lr_scheduler_type": "constant", "eval_strategy": "epoch"}
    at_end = Interruption("on_step_end", 3), Interruption("on_step_end", 2)
    assert wrong(kind, options=by_epochs | {"load_best_model_at_end": False}, interruptions=at_end) == []


@FRAMEWORKS
def test_an_iterator_that_starts_again_after_its_end_ends_the_epoch(framework):
    """A short batch is the last one, though another sample could be had."""
    options = {"max_steps": -1, "num_train_epochs": 2, "lr_scheduler_type": "constant", "eval_strategy": "epoch"}
    options = EVERY_STEP | options | {"gradient_accumulation_steps": 1, "load_best_model_at_end": False}
    course = Course("stream with own iterator", framework, 11, batch=3, options=options)
    assert difference(replace(course, interruptions=(Interruption("on_step_end", 4),)))[0] == []


@FRAMEWORKS
def test_a_stream_whose_last_batch_is_short_has_ended_with_it(framework):
    """Four batches in one step, so that no other is asked for; but the stream knows its end, and has begun anew."""
    sizes = {"batch": 3, "options": EVERY_STEP | {"gradient_accumulation_steps": 4, "max_steps": 3}}
    found, ends = difference(Course("stream with state", framework, 11, interruptions=(AFTER_EPOCH,), **sizes))
    assert (found, len(ends)) == ([], 2)


def test_nothing_is_read_after_the_length_of_a_sampler():
    assert wrong("long sampler", names()[0], interruptions=(Interruption("on_step_end", 3),)) == []


@TORCH_ONLY
@pytest.mark.parametrize("at", [Interruption("on_step_end", 4), IN_SECOND_EPOCH])
def test_a_generator_that_training_and_evaluations_draw_from_too(at):
    assert wrong("torch shared generator", interruptions=(at,)) == []
    assert wrong("torch shared generator", interruptions=(at, AGAIN)) == []


@TORCH_ONLY
def test_a_generator_of_a_stream_in_the_order_of_transformers():
    options = {"data_order": "transformers"}
    at = Interruption("on_step_end", 5)
    assert wrong("torch IterableDataset generator", options=options, interruptions=(at,)) == []


@TORCH_ONLY
def test_a_state_for_a_single_generator_is_still_read():
    """Checkpoints of earlier releases have those of samplers without set_epoch alone."""
    from oneloop.backends.torch import loaders

    course = Course("torch BatchSampler", samples=10, options=EVERY_STEP)
    with quiet():
        loader = build(course, "unused", {}).get_train_dataloader()
    (state,) = loaders.generator_states(loader)
    loaders.set_generator_states(loader, [])
    assert (loaders.generator_states(loader)[0] == state).all()
    loaders.set_generator_states(loader, [state, state])  # more than there are
    assert (loaders.generator_states(loader)[0] == state).all()


def test_a_resumed_run_without_a_step_left_ends_with_the_random_state_of_its_checkpoint():
    by_epoch = {"eval_strategy": "epoch", "save_strategy": "epoch"}
    assert wrong("map", names()[0], options=by_epoch, interruptions=(Interruption("on_save", 3),)) == []


class SavesFirst(TrainerCallback):
    """Saves the step that is resumed, before anything else."""

    def __init__(self, trainer):
        self.trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs):
        if state.global_step:
            random.random()
            self.trainer._save_checkpoint(self.trainer.model, None)


def test_a_callback_that_saves_before_the_first_epoch_is_opened(tmp_path):
    course = Course("sampler", names()[0], 10, options=EVERY_STEP)
    recorded = {}
    with quiet():
        whole, _ = play(course, tmp_path / "whole")
        for number, step in enumerate((6, 1)):
            trainer = build(course, tmp_path / "run", recorded, Interruption("on_step_begin", step, "abort"))
            trainer.add_callback(SavesFirst(trainer))
            with pytest.raises(Aborted):
                trainer.train(resume_from_checkpoint=bool(number))
        build(course, tmp_path / "run", recorded).train(resume_from_checkpoint=True)
    assert recorded == whole["samples"]


# -- drawn from seeds


@FRAMEWORKS
def test_some_seeds(framework):
    for seed in range(6 if framework == "torch" else 2):
        course = draw(seed, framework)
        assert difference(course)[0] == [], course


@pytest.mark.slow
@FRAMEWORKS
def test_each_kind_of_data(framework):
    for number, kind in enumerate(sorted(KINDS[framework])):
        for seed in range(1000 * number, 1000 * number + 8):
            course = draw(seed, framework, kind)
            assert difference(course)[0] == [], course


def test_the_search_sees_differences():
    assert compared({"a": 1, "b": {"c": [2]}}, {"a": 1, "b": {"c": [3]}}) == ["/b/c: [2] != [3]"]
    assert compared({"a": 1}, {}) == ["/a: 1 != None"]
    assert len(COMMON) + len(TORCH) == len(KINDS["torch"]) and PADDLE and MINDSPORE
    logging.getLogger("oneloop").debug("it leaves logging as it was")
    assert logging.root.manager.disable == logging.NOTSET
