"""What callbacks see around the optimizer's step: clipped gradients before it, and after it weights that they made."""

import numpy as np
import pytest

from oneloop import TrainerCallback
from tests.backends.support import rows

RATE = 0.5


class Looks(TrainerCallback):
    """Weights and gradients by name, before and after each step of the optimizer, and the norms that were logged."""

    def __init__(self, backend):
        self.backend = backend
        self.before, self.after, self.logged = [], [], []

    def look(self, model):
        named = getattr(model, "named_parameters", None) or model.parameters_and_names
        gradients = {name: np.array(self.backend.numpy(p.grad), np.float64) for name, p in named()}
        return self.backend.weights(model), gradients

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.before.append(self.look(model))

    def on_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.after.append(self.look(model))

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "grad_norm" in logs:
            self.logged.append(logs["grad_norm"])


def norm(gradients):
    return float(np.sqrt(sum((array**2).sum() for array in gradients.values())))


@pytest.fixture
def looks(backend, trained):
    """looks(max_grad_norm): what a callback has seen in three steps of plain SGD."""

    def run(max_grad_norm, **given):
        seen = Looks(backend)
        trained(
            backend.classifier(),
            [row | {"x": row["x"] * 20} for row in rows(24)],
            callbacks=[seen],
            max_grad_norm=max_grad_norm,
            optim="sgd",
            learning_rate=RATE,
            lr_scheduler_type="constant",
            max_steps=3,
            logging_steps=1,
            **given,
        )
        assert len(seen.before) == len(seen.after) == len(seen.logged) == 3
        return seen

    return run


def ways(backend):
    """Arguments under which gradients come about in other ways."""
    halves = [{"fp16": True, "scale_loss": 1024.0}] if "fp16" in backend.half else []
    return [{}, {"gradient_accumulation_steps": 2}, *halves]


def test_gradients_are_clipped_before_the_optimizer_steps(backend, looks):
    for given in ways(backend):
        seen = looks(0.1, **given)
        assert min(seen.logged) > 1, "the norm that is logged is the one before clipping"
        assert [norm(gradients) for _, gradients in seen.before] == pytest.approx([0.1] * 3, rel=1e-3), given


@pytest.mark.parametrize("limit", [1e6, 0.0], ids=["a high limit", "no limit"])
def test_gradients_below_the_limit_are_whole(backend, looks, limit):
    for given in ways(backend):
        seen = looks(limit, **given)
        assert [norm(gradients) for _, gradients in seen.before] == pytest.approx(seen.logged, rel=1e-3), given


def test_the_step_is_made_of_these_gradients_and_leaves_them(looks):
    seen = looks(0.1)
    for (weights, gradients), (stepped, left) in zip(seen.before, seen.after):
        for name, array in gradients.items():
            np.testing.assert_allclose(stepped[name], weights[name] - RATE * array, atol=1e-6)
            np.testing.assert_array_equal(left[name], array)
        assert any(not np.array_equal(stepped[name], weights[name]) for name in weights)
