"""What a step needs. MindSpore has no tensors without data, so steps are not simulated."""

import contextlib
from typing import Any, NoReturn

from ...errors import RefusedError
from . import models, tensors, weights


def without_weights() -> contextlib.AbstractContextManager:
    """A context in which models are made; with their weights."""
    return contextlib.nullcontext()


def frozen_bytes(model: Any) -> int:
    """Bytes of the weights that are not trained, and of buffers that are saved."""
    stored, _ = weights.model_tensors(model)
    trained = {name for name, _ in models.named_parameters(model)}
    return sum(int(tensors.size(value)) for name, value in stored.items() if name not in trained)


def step_memory(
    trainer: Any, inputs: Any, rows: int, recompute: bool, sharding: str = "", world: int = 1, degree: int = 1
) -> NoReturn:
    """Not known before a step is computed."""
    raise RefusedError(
        "activations are not known: MindSpore cannot run a step on tensors without data. Peaks, and what fits, need "
        "them; train a few steps with skip_memory_metrics=False, which logs them"
    )
