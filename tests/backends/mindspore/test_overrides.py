"""Overrides that take gradients into their own hands, on a framework that differentiates functions."""

import numpy as np
import pytest

pytest.importorskip("mindspore")

import mindspore as ms
from mindspore import nn, ops

from oneloop import Trainer
from oneloop.errors import ArgumentError, ModelError
from tests.backends.kits.mindspore_kit import Kit
from tests.backends.support import largest_difference, rows, same_bytes

kit = Kit()
STEPS = {"max_steps": 6, "learning_rate": 0.1, "optim": "sgd", "per_device_train_batch_size": 4, "logging_steps": 1}


class AcceleratorBackward(Trainer):
    """As for 5.x, but for the two words that a Cell has no use for: set_train and stop_gradient."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.set_train(True)
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        self.accelerator.backward(loss)
        return ops.stop_gradient(loss)


class Wraps(Trainer):
    def training_step(self, *args, **kwargs):
        return super().training_step(*args, **kwargs)


class TwoLosses(Trainer):
    """Each half goes backward by itself; together they are the loss."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.set_train(True)
        loss = self.compute_loss(model, self._prepare_inputs(inputs), num_items_in_batch=num_items_in_batch)
        self.accelerator.backward(loss * 0.25)
        self.accelerator.backward(loss * 0.75)
        return ops.stop_gradient(loss)


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("cls", [AcceleratorBackward, Wraps, TwoLosses])
def test_training_step(trained, cls, accumulation):
    weights, losses = {}, {}
    for each in (Trainer, cls):
        model = kit.classifier(dropout=0.2)
        trainer = trained(model, rows(16), each, gradient_accumulation_steps=accumulation, **STEPS)
        weights[each] = kit.weights(model)
        losses[each] = [e["loss"] for e in trainer.state.log_history if "loss" in e]
    if cls is TwoLosses:
        assert largest_difference(weights[Trainer], weights[cls]) < 1e-6
    else:
        assert same_bytes(weights[Trainer], weights[cls])
    assert losses[Trainer] == losses[cls]


def test_a_tensor_has_no_backward_and_the_error_says_what_to_call(arguments):
    class PlainBackward(Trainer):
        def training_step(self, model, inputs):
            loss = self.compute_loss(model, self._prepare_inputs(inputs))
            loss.backward()
            return loss

    with pytest.raises(ModelError, match=r"has no backward\(\): call self\.accelerator\.backward\(loss\)"):
        PlainBackward(kit.classifier(), arguments(**STEPS), train_dataset=rows(8)).train()


def test_a_step_that_leaves_no_gradients_is_an_error(arguments):
    class Forgets(Trainer):
        def training_step(self, model, inputs):
            return self.compute_loss(model, self._prepare_inputs(inputs))

    with pytest.raises(ModelError, match="training_step has left no gradients"):
        Forgets(kit.classifier(), arguments(**STEPS), train_dataset=rows(8)).train()


def test_backward_outside_of_a_step(arguments):
    trainer = Trainer(kit.classifier(), arguments(**STEPS), train_dataset=rows(8))
    with pytest.raises(ModelError, match="outside of training_step"):
        trainer.accelerator.backward(ms.Tensor(1.0))


def test_clip_grad_norm_says_where_clipping_is(arguments):
    trainer = Trainer(kit.classifier(), arguments(**STEPS), train_dataset=rows(8))
    with pytest.raises(ModelError, match="max_grad_norm"):
        trainer.accelerator.clip_grad_norm_(trainer.model.trainable_params(), 1.0)


def test_a_criterion_with_weights_of_its_own_is_trained(trained):
    class Scaled(nn.Cell):
        def __init__(self):
            super().__init__()
            self.scale = ms.Parameter(ms.Tensor(np.ones(1, np.float32)), name="scale")

        def construct(self, logits, labels):
            return kit.cross_entropy(logits * self.scale, labels)

    criterion = Scaled()

    class Both(Trainer):
        def create_optimizer(self):
            from oneloop.backends.mindspore.optimizer_kernels import SGD

            self.optimizer = SGD([*self.model.trainable_params(), *criterion.trainable_params()], lr=0.1)
            return self.optimizer

    trained(kit.classifier("logits"), rows(16), Both, criterion=criterion, **STEPS)
    assert criterion.scale.asnumpy()[0] != 1.0


@pytest.mark.parametrize("make", ["experimental", "nn"])
def test_optimizers_of_mindspores_own(trained, tmp_path, make):
    """Built by the user; their state is saved, and a resumed run goes on with it."""
    from mindspore.experimental import optim

    def optimizer(model):
        if make == "nn":
            return nn.Momentum(model.trainable_params(), learning_rate=0.1, momentum=0.9)
        return optim.AdamW(model.trainable_params(), lr=0.05)

    options = STEPS | {"save_strategy": "steps", "save_steps": 3}
    whole, part = kit.classifier(), kit.classifier(seed=4)
    trained(whole, rows(16), optimizers=(optimizer(whole), None), **options)
    checkpoint = str(tmp_path / "out" / "checkpoint-3")
    trained(part, rows(16), optimizers=(optimizer(part), None), resume=checkpoint, **options)
    assert same_bytes(kit.weights(whole), kit.weights(part))


def test_a_schedule_inside_of_an_optimizer_is_refused(trained):
    model = kit.classifier()
    rates = nn.exponential_decay_lr(0.1, 0.9, 6, 2, 1)
    with pytest.raises(ArgumentError, match="a schedule of its own|schedule of its own"):
        trained(model, rows(8), optimizers=(nn.SGD(model.trainable_params(), learning_rate=rates), None), **STEPS)
