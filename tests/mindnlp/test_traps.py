"""Where mindtorch differs from torch in silence: each of these would spoil a run without anybody noticing."""

import sys

import mindspore
import numpy as np
import pytest
import torch

from oneloop import Trainer, backends
from oneloop.backends import loading
from oneloop.backends.mindtorch import backend as mindtorch
from oneloop.errors import ModelError
from tests.internals import engine_of


def test_torch_is_mindtorch_here():
    assert backends.registry.active().name == "mindtorch" and loading.guess() == "mindtorch"
    assert loading.name_of(torch.nn.Linear(2, 2)) == "mindtorch"
    assert loading.load("torch") is loading.load("mindspore") is mindtorch
    assert "oneloop.backends.mindspore.backend" not in sys.modules


def test_a_training_step_that_calls_backward_is_an_error(trained):
    class Own(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            loss = self.compute_loss(model, self._prepare_inputs(inputs))
            loss.backward()
            return loss.detach()

    class Accelerated(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            loss = self.compute_loss(model, self._prepare_inputs(inputs))
            self.accelerator.backward(loss)
            return loss.detach()

    for cls in (Own, Accelerated):
        with pytest.raises(ModelError, match=r"backward\(\) computes nothing under mindnlp"):
            trained(trainer_class=cls)


def test_a_training_step_of_ones_own(trained, bits):
    class Own(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            model.train()
            inputs = self._prepare_inputs(inputs)
            return self.accelerator.loss_and_gradients(lambda: self.compute_loss(model, inputs))

    assert bits(trained(trainer_class=Own).model) == bits(trained().model)


def test_a_loss_that_depends_on_nothing_is_noticed(trained, caplog):
    class Detached(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False):
            return super().compute_loss(model, inputs).detach()

    trained(trainer_class=Detached)
    assert caplog.text.count("All gradients are exactly zero") == 1


def test_an_error_in_the_forward_pass_does_not_spoil_the_next_one(bert, rows, arguments):
    trainer = Trainer(model=bert(dropout=0.0), args=arguments(), train_dataset=rows)
    batch = trainer._prepare_inputs(trainer.data_collator(rows[:8]))
    engine = engine_of(trainer)
    before = engine.loss_and_gradients(lambda: trainer.compute_loss(trainer.model, batch)).item()
    norm = mindtorch.engine._norm([p.grad for p in trainer.model.parameters()])

    def broken():
        trainer.compute_loss(trainer.model, batch)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.loss_and_gradients(broken)
    engine.clear()
    assert engine.loss_and_gradients(lambda: trainer.compute_loss(trainer.model, batch)).item() == before
    assert mindtorch.engine._norm([p.grad for p in trainer.model.parameters()]) == norm


def test_losses_have_all_their_digits():
    """float() of a tensor is rounded to five of them by mindtorch."""
    value = torch.tensor(1.23456789)
    assert float(value) == 1.23457
    assert mindtorch.tensors.total(mindtorch.tensors.scalars([value, value])) == 2 * float(np.float32(1.23456789))


def test_dropout_follows_the_seed_and_its_state():
    layer, x = torch.nn.Dropout(0.5), torch.ones(40)
    mindtorch.randomness.seed(7)
    first = layer(x).asnumpy()
    state = mindtorch.randomness.get_state()
    second = layer(x).asnumpy()
    assert set(first) == {0.0, 2.0} and not np.array_equal(first, second)
    mindtorch.randomness.set_state(state)
    assert np.array_equal(layer(x).asnumpy(), second)
    mindtorch.randomness.seed(7)
    assert np.array_equal(layer(x).asnumpy(), first)
    layer.eval()
    assert np.array_equal(layer(x).asnumpy(), np.ones(40))


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.rand(5),
        lambda: torch.randn(5),
        lambda: torch.zeros(5).uniform_(-1, 1),
        lambda: torch.randint(0, 1000, (5,)),
    ],
    ids=["rand", "randn", "uniform_", "randint"],
)
def test_random_functions_follow_the_seed_and_leave_numpy_alone(draw):
    np.random.seed(3)
    expected = np.random.rand(2)
    mindtorch.randomness.seed(7)
    first = draw().asnumpy()
    assert np.array_equal(first, draw().asnumpy()) is False
    mindtorch.randomness.seed(7)
    np.random.seed(3)
    assert np.array_equal(draw().asnumpy(), first)
    assert np.array_equal(np.random.rand(2), expected)


def test_values_written_are_seen_by_the_model(bert, rows):
    model = bert(dropout=0.0).eval()
    ids = torch.tensor(np.stack([row["input_ids"] for row in rows[:2]]))
    before = model(input_ids=ids).logits.asnumpy()
    mindtorch.tensors.write(model.classifier.weight, np.zeros((2, 16), np.float32))
    mindtorch.tensors.write(model.classifier.bias, np.array([1.0, 2.0], np.float32))
    after = model(input_ids=ids).logits.asnumpy()
    assert not np.array_equal(before, after) and np.array_equal(after, [[1.0, 2.0]] * 2)
    assert np.array_equal(model.classifier.bias.asnumpy(), [1.0, 2.0])


def adamw(weights, gradients, rate, decay, betas=(0.9, 0.999), eps=1e-8):
    """The formula, in float64."""
    w, m, v = weights.astype(np.float64), 0.0, 0.0
    for step, g in enumerate(gradients, 1):
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g * g
        w = w * (1 - rate * decay)
        w = w - rate * (m / (1 - betas[0] ** step)) / (np.sqrt(v / (1 - betas[1] ** step)) + eps)
    return w


def test_adamw_does_what_its_formula_says():
    draw = np.random.RandomState(0)
    weights, gradients = draw.randn(4, 3).astype(np.float32), draw.randn(5, 4, 3).astype(np.float32)
    p = torch.nn.Parameter(torch.tensor(weights.copy()))
    optimizer = mindtorch.optimizers.AdamW([p], lr=0.1, weight_decay=0.01)
    for gradient in gradients:
        p.grad = torch.tensor(gradient)
        optimizer.step()
    assert np.abs(p.asnumpy() - adamw(weights, gradients, 0.1, 0.01)).max() < 1e-6


def test_the_optimizer_and_the_clipping_of_mindtorch_have_their_kernels():
    """For scripts that bring their own optimizer: mindtorch lacks two of the kernels on a CPU."""
    p = torch.nn.Parameter(torch.tensor(np.array([3.0, 4.0], np.float32)))
    p.grad = torch.tensor(np.array([30.0, 40.0], np.float32))
    norm = torch.nn.utils.clip_grad_norm_([p], 1.0)
    assert norm.item() == pytest.approx(50.0) and np.allclose(p.grad.asnumpy(), [0.6, 0.8], atol=1e-5)
    torch.optim.AdamW([p], lr=0.1, weight_decay=0.0).step()
    assert np.allclose(p.asnumpy(), [2.9, 3.9], atol=1e-5)


def test_operations_are_launched_one_after_the_other(bert, rows, arguments, monkeypatch):
    """Asynchronous launches make a CPU several times slower."""
    called = []
    monkeypatch.setattr(mindspore.runtime, "launch_blocking", lambda: called.append(True))
    mindtorch.devices._configure_execution.cache_clear()
    for _ in range(2):
        Trainer(model=bert(), args=arguments(), train_dataset=rows)
    assert called == [True]
