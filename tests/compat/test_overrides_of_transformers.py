"""Overrides of _clip_grad_norm and _get_grad_norm are called before each update, where gradients are at hand, and
that of compare_trainer_and_checkpoint_args by a resume."""

import logging

import numpy as np
import pytest

from oneloop import Trainer
from tests.backends.support import rows, same_bytes
from tests.emulation import emulate

RUN = {
    "max_steps": 3,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "logging_steps": 1,
    "learning_rate": 0.1,
    "optim": "sgd",
    "save_strategy": "no",
}


def trained(cls, backend, arguments, folder, **given):
    trainer = cls(backend.classifier(), arguments(folder, **RUN | given), train_dataset=rows(24))
    before = backend.weights(trainer.model)
    trainer.train()
    return trainer, before, backend.weights(trainer.model)


class Halved(Trainer):
    """Clips to half of what the argument says, and logs the tenfold norm."""

    asked = None

    def _clip_grad_norm(self, model):
        self.asked = [] if self.asked is None else self.asked
        self.asked.append(model is self.model_wrapped)
        return self.accelerator.clip_grad_norm_(model.parameters(), self.args.max_grad_norm / 2)

    def _get_grad_norm(self, model, grad_norm=None):
        return 10 * float(super()._get_grad_norm(model, grad_norm=grad_norm))


def test_the_gradients_are_clipped_by_the_override(backend, arguments, tmp_path, caplog):
    trainer, before, after = trained(Halved, backend, arguments, tmp_path / "own", max_grad_norm=1e-2, max_steps=1)
    if backend.name == "mindspore":  # parameters have no gradients there
        assert trainer.asked is None and "for _clip_grad_norm, a callback's" in caplog.text
        return
    moved = np.sqrt(sum(float(((after[name] - before[name]) ** 2).sum()) for name in before))
    assert moved == pytest.approx(0.1 * 0.5e-2, rel=1e-3)  # of plain SGD: the rate times the clipped norm
    assert trainer.asked == [True] and "never calls" not in caplog.text
    plain, _, _ = trained(Trainer, backend, arguments, tmp_path / "plain", max_grad_norm=1e-2, max_steps=1)
    norms = [each.state.log_history[0]["grad_norm"] for each in (trainer, plain)]
    assert norms[0] == pytest.approx(10 * norms[1], rel=1e-5)


def test_without_clipping_only_the_norm_is_asked_for(backend, arguments, tmp_path):
    trainer, _, weights = trained(Halved, backend, arguments, tmp_path / "own", max_grad_norm=0)
    _, _, plain = trained(Trainer, backend, arguments, tmp_path / "plain", max_grad_norm=0)
    assert trainer.asked is None and same_bytes(weights, plain)
    assert all(log["grad_norm"] > 0 for log in trainer.state.log_history if "loss" in log)


def test_a_resume_compares_the_arguments(backend, arguments, tmp_path, caplog, monkeypatch):
    """By the method, which may be overridden; its own warning is for scripts of transformers."""
    heard = []

    class Comparing(Trainer):
        def compare_trainer_and_checkpoint_args(self, training_args, trainer_state):
            heard.append((training_args.save_steps, trainer_state.save_steps))
            super().compare_trainer_and_checkpoint_args(training_args, trainer_state)

    data = {"train_dataset": rows(24)}
    saved = {"save_strategy": "steps", "max_steps": 2, "save_async": False}
    Comparing(backend.classifier(), arguments(tmp_path, **RUN | saved, save_steps=1), **data).train()
    for follows, said in ((False, 0), (True, 1)):
        emulate(monkeypatch, {"transformers"} if follows else set())
        caplog.clear()
        trainer = Comparing(backend.classifier(), arguments(tmp_path, **RUN | saved, save_steps=2), **data)
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
        assert caplog.text.count("save_steps: now 2, then 1") == said
    assert heard == [(2, 1), (2, 1)]


class HandsOn(Trainer):
    def _clip_grad_norm(self, model):
        return super()._clip_grad_norm(model)


def test_an_override_that_hands_on_changes_nothing(backend, arguments, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        _, _, weights = trained(HandsOn, backend, arguments, tmp_path / "own", max_grad_norm=0.1)
    _, _, plain = trained(Trainer, backend, arguments, tmp_path / "plain", max_grad_norm=0.1)
    assert ("for _clip_grad_norm, a callback's" in caplog.text) == (backend.name == "mindspore")
    for name, array in plain.items():
        np.testing.assert_allclose(weights[name], array, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("follows", [True, False])
def test_an_evaluation_before_training_has_epoch_0_in_scripts_of_transformers(
    backend, arguments, tmp_path, monkeypatch, follows
):
    emulate(monkeypatch, {"transformers"} if follows else set())
    trainer = Trainer(backend.classifier(), arguments(tmp_path, **RUN), eval_dataset=rows(8))
    metrics = trainer.evaluate()
    assert metrics.get("epoch") == trainer.state.log_history[0].get("epoch") == (0 if follows else None)
