"""The ways to distribute a model over processes, and what each keeps resident of its training state."""

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
class Way:
    """A way to distribute the model: the words of `sharding`, and how many processes share one copy of the state."""

    name: str
    sharding: str
    degree: int = 1

    @property
    def shards_gradients(self) -> bool:
        return "stage2" in self.sharding or "stage3" in self.sharding

    def arguments(self) -> dict[str, Any]:
        given: dict[str, Any] = {"sharding": self.sharding} if self.sharding else {}
        return given | ({"sharding_degree": self.degree} if "hybrid" in self.sharding else {})


def ways(world: int, per_machine: int, hybrid: bool) -> list[Way]:
    """Those that so many processes can use."""
    if world == 1:
        return [Way("one process", "")]
    ways = [Way("DDP", "")]
    ways += [Way(f"stage {stage}", f"stage{stage}", world) for stage in (1, 2, 3)]
    if hybrid and per_machine < world and world % per_machine == 0:
        ways.append(Way("hybrid stage 3", "stage3 hybrid", per_machine))
    return ways


def resident(way: Way, tensors: list[Tensor], model: ModelSizes, world: int) -> tuple[int, int, int | None]:
    """(parameters, gradients, optimizer state) of the process that has most."""
    state = model.optimizer_bytes
    if not way.shards_gradients:
        if way.sharding and state is not None:
            share = optimizer_state.largest_part([tensor.elements for tensor in tensors], way.degree)
            state = round(state * share / max(1, model.trainable))
        return model.parameter_bytes, model.gradient_bytes, state
    held = sum(round(tensor.size * optimizer_state.rows_of(tensor.shape, way.degree)) for tensor in tensors)
    part = held / max(1, model.gradient_bytes)
    frozen = model.parameter_bytes - model.gradient_bytes
    parameters = held + round(frozen / way.degree)
    return parameters, held, None if state is None else round(state * part)


def save_copy(args: Any, way: Way, model: ModelSizes) -> int | None:
    """Bytes of the copy on the host that a save in the background writes from."""
    if str(getattr(args.save_strategy, "value", args.save_strategy)) == "no":
        return 0
    if model.optimizer_bytes is None:
        return None
    state = 0 if args.save_only_model else model.optimizer_bytes
    if way.shards_gradients:
        return round((model.parameter_bytes + state) / way.degree)
    return model.parameter_bytes + round(state / way.degree)
