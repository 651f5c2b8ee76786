"""Overrides that take gradients into their own hands, and loaders of torch's own."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from oneloop import Trainer
from oneloop.errors import NonFiniteError
from tests.backends.kits.torch_kit import Kit
from tests.backends.support import largest_difference, rows, same_bytes

KIT = Kit()
STEPS = {"max_steps": 6, "learning_rate": 0.1, "optim": "sgd", "per_device_train_batch_size": 4}


class PlainBackward(Trainer):
    """As for 4.x without accelerate."""

    def training_step(self, model, inputs):
        model.train()
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs)
        if self.args.gradient_accumulation_steps > 1:
            loss = loss / self.args.gradient_accumulation_steps
        loss.backward()
        return loss.detach()


class AcceleratorBackward(Trainer):
    """As for 5.x."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        self.accelerator.backward(loss)
        return loss.detach()


class CopiedFrom5(Trainer):
    """The body of 5.x's training_step, copied out and changed somewhere, as people do."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        del inputs
        if self.args.n_gpu > 1:
            loss = loss.mean()
        if (not self.model_accepts_loss_kwargs or num_items_in_batch is None) and self.compute_loss_func is None:
            loss = loss / self.current_gradient_accumulation_steps
        self.accelerator.backward(loss)
        return loss.detach()


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("cls", [PlainBackward, AcceleratorBackward, CopiedFrom5])
def test_training_step(trained, cls, accumulation):
    weights, losses = {}, {}
    for each in (Trainer, cls):
        model = KIT.classifier(dropout=0.2)
        options = STEPS | {"gradient_accumulation_steps": accumulation, "logging_steps": 1}
        trainer = trained(model, rows(16), each, **options)
        weights[each] = KIT.weights(model)
        losses[each] = [e["loss"] for e in trainer.state.log_history if "loss" in e]
    assert same_bytes(weights[Trainer], weights[cls])
    assert losses[Trainer] == losses[cls]


def test_training_step_around_the_default(trained):
    seen = []

    class Wraps(Trainer):
        def training_step(self, *args, **kwargs):
            loss = super().training_step(*args, **kwargs)
            seen.append(self.model.head.weight.grad is not None)
            return loss

    trained(KIT.classifier(), rows(16), Wraps, **STEPS)
    assert seen == [True] * 6


def test_plain_backward_under_fp16_is_not_unscaled(trained):
    weights = {}
    for cls, half in ((Trainer, "bf16"), (Trainer, "fp16"), (PlainBackward, "fp16")):
        model = KIT.classifier()
        trained(model, rows(16), cls, **STEPS, **{half: True})
        weights[cls, half] = KIT.weights(model)
    assert largest_difference(weights[Trainer, "fp16"], weights[PlainBackward, "fp16"]) < 1e-6
    assert largest_difference(weights[Trainer, "fp16"], KIT.weights(KIT.classifier())) > 0.01


def test_a_training_step_that_forgets_backward(arguments):
    class Forgets(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            return self.compute_loss(model, inputs).detach()

    with pytest.raises(ValueError, match="backward"):
        Forgets(KIT.classifier(), arguments(max_steps=1), train_dataset=rows(4)).train()


def test_own_data_loader(trained):
    class Own(Trainer):
        def get_train_dataloader(self):
            data = [(torch.tensor(r["x"]), torch.tensor(r["labels"])) for r in self.train_dataset]
            return DataLoader(data, batch_size=3, shuffle=False)

    model, expected = KIT.classifier(), KIT.classifier()
    trainer = trained(model, rows(8), Own, **(STEPS | {"lr_scheduler_type": "constant", "max_grad_norm": 0.0}))
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
    data = rows(8)
    for _ in range(2):
        for start in (0, 3, 6):
            part = data[start : start + 3]
            x = torch.from_numpy(np.stack([r["x"] for r in part]))
            loss = expected(x, torch.tensor([r["labels"] for r in part]))
            loss["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
    assert trainer.state.global_step == 6 and trainer.state.epoch == 2.0
    assert same_bytes(KIT.weights(model), KIT.weights(expected))


def test_a_shuffled_loader_of_ones_own_goes_on_at_an_epochs_end(trained, tmp_path):
    """It draws its order from the model's random numbers, which have to be back before it does."""

    class Own(Trainer):
        def get_train_dataloader(self):
            return DataLoader(self.train_dataset, batch_size=4, shuffle=True, collate_fn=self.data_collator)

    options = STEPS | {"max_steps": -1, "num_train_epochs": 3, "save_strategy": "epoch"}
    model, other = KIT.classifier(dropout=0.3), KIT.classifier(dropout=0.3)
    trained(model, rows(10), Own, output_dir=tmp_path / "whole", **options)
    source = str(tmp_path / "whole" / "checkpoint-3")
    trained(other, rows(10), Own, resume=source, output_dir=tmp_path / "other", **options)
    assert same_bytes(KIT.weights(model), KIT.weights(other))


def test_own_torch_optimizer_and_scheduler(trained):
    class Own(Trainer):
        def create_optimizer(self):
            self.optimizer = torch.optim.RMSprop(self.model.parameters(), lr=0.01)
            return self.optimizer

        def create_scheduler(self, num_training_steps, optimizer=None):
            self.lr_scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2, gamma=0.5)
            return self.lr_scheduler

    given = KIT.classifier()
    optimizer = torch.optim.RMSprop(given.parameters(), lr=0.01)
    pair = (optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5))
    overridden = KIT.classifier()
    one = trained(given, rows(16), optimizers=pair, logging_steps=1, **STEPS)
    two = trained(overridden, rows(16), Own, logging_steps=1, **STEPS)
    assert one.optimizer is optimizer and one.lr_scheduler is pair[1]
    assert same_bytes(KIT.weights(given), KIT.weights(overridden))
    rates = [e["learning_rate"] for e in two.state.log_history if "learning_rate" in e]
    assert rates == [0.01, 0.01, 0.005, 0.005, 0.0025, 0.0025]


def test_optimizer_class_and_options(trained):
    pair = (torch.optim.Adagrad, {"lr": 0.3})
    trainer = trained(KIT.classifier(), rows(16), optimizer_cls_and_kwargs=pair, **STEPS)
    assert type(trainer.optimizer) is torch.optim.Adagrad
    assert trainer.lr_scheduler.base_lrs == [0.3, 0.3]


def test_a_nan_that_an_override_makes_is_found(arguments):
    class Breaks(PlainBackward):
        def compute_loss(self, model, inputs, return_outputs=False):
            return super().compute_loss(model, inputs) * (float("nan") if self.state.global_step == 2 else 1.0)

    with pytest.raises(NonFiniteError, match="step 3"):
        Breaks(KIT.classifier(), arguments(**STEPS), train_dataset=rows(16)).train()
