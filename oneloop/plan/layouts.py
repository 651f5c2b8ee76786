"""The layouts of a model over processes, and how much of its training state each keeps resident."""

import math
from dataclasses import dataclass
from typing import Any

from . import optimizer_state
from .results import ModelSizes


@dataclass(frozen=True)
class Tensor:
    """A trainable parameter."""

    name: str
    shape: tuple[int, ...]
    kind: str  # type of its elements
    size: int  # bytes

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class ParallelLayout:
    """A layout of the model over processes: `sharding`, and how many processes share one copy of the state."""

    name: str
    sharding: str
    degree: int = 1

    @property
    def shards_gradients(self) -> bool:
        return "stage2" in self.sharding or "stage3" in self.sharding

    def arguments(self) -> dict[str, Any]:
        given: dict[str, Any] = {"sharding": self.sharding} if self.sharding else {}
        return given | ({"sharding_degree": self.degree} if "hybrid" in self.sharding else {})


def layouts(world: int, per_machine: int, hybrid: bool) -> list[ParallelLayout]:
    """The layouts that are possible with `world` processes."""
    if world == 1:
        return [ParallelLayout("one process", "")]
    ways = [ParallelLayout("DDP", "")]
    ways += [ParallelLayout(f"stage {stage}", f"stage{stage}", world) for stage in (1, 2, 3)]
    if hybrid and per_machine < world and world % per_machine == 0:
        ways.append(ParallelLayout("hybrid stage 3", "stage3 hybrid", per_machine))
    return ways


def resident(
    layout: ParallelLayout, tensors: list[Tensor], model: ModelSizes, world: int
) -> tuple[int, int, int | None]:
    """Bytes of (parameters, gradients, optimizer state) in the process that holds most."""
    state = model.optimizer_bytes
    if not layout.shards_gradients:
        if layout.sharding and state is not None:
            share = optimizer_state.largest_part([tensor.elements for tensor in tensors], layout.degree)
            state = round(state * share / max(1, model.trainable))
        return model.parameter_bytes, model.gradient_bytes, state
    held = sum(round(tensor.size * optimizer_state.rows_of(tensor.shape, layout.degree)) for tensor in tensors)
    part = held / max(1, model.gradient_bytes)
    frozen = model.parameter_bytes - model.gradient_bytes
    parameters = held + round(frozen / layout.degree)
    return parameters, held, None if state is None else round(state * part)


def save_copy(args: Any, layout: ParallelLayout, model: ModelSizes) -> int | None:
    """Bytes of the copy on the host that a save in the background writes from."""
    if str(getattr(args.save_strategy, "value", args.save_strategy)) == "no":
        return 0
    if model.optimizer_bytes is None:
        return None
    state = 0 if args.save_only_model else model.optimizer_bytes
    if layout.shards_gradients:
        return round((model.parameter_bytes + state) / layout.degree)
    return model.parameter_bytes + round(state / layout.degree)
