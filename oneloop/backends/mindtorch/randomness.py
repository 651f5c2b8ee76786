"""Random state of mindtorch, as plain data."""

from typing import Any

import mindspore
import numpy as np
import torch

from . import random_stream


def seed(value: int) -> None:
    """Seed every generator of the framework. Weights are drawn from NumPy's stream, which the core seeds."""
    torch.manual_seed(value % 2**63)
    random_stream.seed(value)


def get_state() -> dict[str, np.ndarray]:
    """The state of every generator that training may draw from."""
    generator = np.array(torch.get_rng_state().asnumpy())
    return {"mindtorch.stream": random_stream.get_state(), "mindtorch.generator": generator}


def set_state(state: dict[str, Any]) -> None:
    """Put back what get_state returned; streams of other frameworks are passed over."""
    if "mindtorch.stream" in state:
        random_stream.set_state(state["mindtorch.stream"])
    if "mindtorch.generator" in state:
        torch.set_rng_state(mindspore.Tensor(np.array(state["mindtorch.generator"])))


def deterministic(on: bool = True) -> None:
    """Deterministic algorithms everywhere."""
    mindspore.set_deterministic(on)


def worker_seed() -> int:
    """In a loader's worker: the seed that the framework gave it."""
    return torch.initial_seed() % 2**32
