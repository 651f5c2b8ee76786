"""Layers that are frozen and thawed in the middle of a run, and what the optimizer knows of them."""

import logging

import pytest

from oneloop import Trainer, TrainerCallback, TrainingArguments
from oneloop.errors import CheckpointError
from tests.backends.kits.torch_kit import Kit
from tests.backends.support import rows

KIT = Kit()


class At(TrainerCallback):
    """Before a step, do something with the model."""

    def __init__(self, step, act):
        self.step, self.act = step, act

    def on_step_begin(self, args, state, control, model=None, optimizer=None, **kwargs):
        if state.global_step == self.step:
            self.act(model, optimizer)


def train(folder, model, *callbacks, resume=None, **given):
    given = {"max_steps": 4, "save_steps": 2, "report_to": "none", "disable_tqdm": True, "device": "cpu"} | given
    args = TrainingArguments(str(folder), **given)
    trainer = Trainer(model, args, train_dataset=rows(32), callbacks=list(callbacks))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def frozen():
    model = KIT.classifier()
    model.head.requires_grad_(False)
    return model


def test_a_layer_that_the_optimizer_does_not_know_is_named_when_it_is_thawed(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        train(tmp_path, frozen(), At(2, lambda model, _: model.head.requires_grad_(True)))
    (said,) = [r.getMessage() for r in caplog.records if "does not know them" in r.getMessage()]
    assert "head.weight" in said and "add_param_group" in said


def test_a_layer_that_is_thawed_and_added_is_trained_quietly(tmp_path, caplog):
    def thaw(model, optimizer):
        optimizer.add_param_group({"params": list(model.head.requires_grad_(True).parameters())})

    model = frozen()
    before = model.head.weight.detach().clone()
    with caplog.at_level(logging.WARNING):
        train(tmp_path, model, At(2, thaw), learning_rate=0.1, lr_scheduler_type="constant")
    assert "does not know them" not in caplog.text
    assert not before.equal(model.head.weight)


def test_a_layer_that_was_frozen_at_the_save_keeps_its_name(tmp_path):
    """A resumed run, whose model is fresh and trainable, finds the state of all its layers."""
    trainer = train(tmp_path / "a", KIT.classifier(), At(1, lambda model, _: model.head.requires_grad_(False)))
    assert not trainer.model.head.weight.requires_grad
    again = train(tmp_path / "b", KIT.classifier(), resume=str(tmp_path / "a" / "checkpoint-2"))
    assert again.state.global_step == 4


def test_a_layer_that_is_frozen_before_a_resume_is_named(tmp_path):
    train(tmp_path, KIT.classifier())
    with pytest.raises(CheckpointError, match=r"Only there: head.bias, head.weight.*the same frozen layers"):
        train(tmp_path, frozen(), resume=str(tmp_path / "checkpoint-2"))
