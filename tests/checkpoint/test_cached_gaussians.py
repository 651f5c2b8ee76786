"""NumPy and Python make Gaussian numbers in pairs and keep the second one: a resume goes on with it."""

import random

import numpy as np
import pytest

from oneloop import TrainerCallback
from tests.backends.support import rows

SEED, STEPS = 42, 6


class Draws(TrainerCallback):
    """One Gaussian number from each of the global streams in every step."""

    def __init__(self):
        self.of_numpy, self.of_python = [], []

    def on_step_end(self, args, state, control, **kwargs):
        self.of_numpy.append(np.random.normal())
        self.of_python.append(random.gauss(0.0, 1.0))


@pytest.mark.parametrize("step", [3, 4], ids=["within a pair", "between pairs"])
def test_gaussian_numbers_go_on(backend, trained, tmp_path, step):
    run = {"max_steps": STEPS, "seed": SEED, "save_strategy": "steps", "save_steps": step, "optim": "sgd"}
    whole, resumed = Draws(), Draws()
    trained(backend.classifier(), rows(16), callbacks=[whole], output_dir=tmp_path / "whole", **run)
    checkpoint = str(tmp_path / "whole" / f"checkpoint-{step}")
    trained(backend.classifier(), rows(16), callbacks=[resumed], output_dir=tmp_path / "on", resume=checkpoint, **run)
    python = random.Random(SEED)
    assert whole.of_numpy == np.random.RandomState(SEED).normal(size=STEPS).tolist()
    assert whole.of_python == [python.gauss(0.0, 1.0) for _ in range(STEPS)]
    assert resumed.of_numpy == whole.of_numpy[step:]
    assert resumed.of_python == whole.of_python[step:]
