"""Random state of mindtorch, as plain data."""

from typing import Any

import mindspore
import numpy as np
import torch

from ...data.torch_randperm import randperm as randperm
from . import random_generator


def seed(value: int) -> None:
    """Seed every generator of the framework. Weights are drawn from NumPy's RNG, which the core seeds."""
    torch.manual_seed(value % 2**63)
    random_generator.seed(value)


def get_state() -> dict[str, np.ndarray]:
    """The state of every RNG that training may use."""
    generator = np.array(torch.get_rng_state().asnumpy())
    return {"mindtorch.stream": random_generator.get_state(), "mindtorch.generator": generator}


def set_state(state: dict[str, Any]) -> None:
    """Restore the result of get_state; the state of other frameworks is skipped."""
    if "mindtorch.stream" in state:
        random_generator.set_state(state["mindtorch.stream"])
    if "mindtorch.generator" in state:
        torch.set_rng_state(mindspore.Tensor(np.array(state["mindtorch.generator"])))


def deterministic(on: bool = True) -> None:
    """Use deterministic algorithms."""
    mindspore.set_deterministic(on)


def worker_seed() -> int:
    """In a worker of a loader: the seed that the framework set."""
    return torch.initial_seed() % 2**32
