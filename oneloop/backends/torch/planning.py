"""What a step needs, found without computing it. The code that does it is imported when a plan is made."""

import contextlib
from types import ModuleType
from typing import Any

from torch import nn

from ..step_memory import StepMemory
from .models import unwrap


def without_weights() -> contextlib.AbstractContextManager:
    """A context in which models are created without allocating their weights."""
    return _simulated_step().without_weights()


def frozen_bytes(model: nn.Module) -> int:
    """Bytes of the weights that are not trained, and of buffers that are saved."""
    base = unwrap(model)
    frozen = [p for p in base.parameters() if not p.requires_grad]
    saved = [
        value
        for module in base.modules()
        for name, value in module._buffers.items()
        if value is not None and name not in module._non_persistent_buffers_set
    ]
    return sum(value.numel() * value.element_size() for value in (*frozen, *saved))


def sizes(core: Any, axis: str, most: int) -> list[int]:
    """The sizes above 1 and up to `most` that the axis may have with this model; none for what cannot be divided."""
    from .axis_sizes import fits  # quick imports: few runs are planned

    return [size for size in range(2, most + 1) if fits(core, axis, size)]


def step_memory(
    core: Any, inputs: Any, rows: int, recompute: bool, arguments: dict[str, Any], world: int = 1
) -> StepMemory:
    """The memory of an update with micro-batches like `inputs`, but of `rows` samples, in the first of `world`
    processes, with these arguments about dividing the model."""
    return _simulated_step().step_memory(core, inputs, rows, recompute, arguments, world)


def _simulated_step() -> ModuleType:
    from . import simulated_step  # quick imports: few runs are planned

    return simulated_step
