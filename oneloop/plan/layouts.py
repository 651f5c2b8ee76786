"""The layouts of a model over processes, and how much of its training state each keeps resident."""

import math
from dataclasses import dataclass, replace
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
class Axes:
    """How many processes divide each batch's work: the sizes of the axes that keep a batch whole."""

    tensor: int = 1
    sequence: int = 1
    expert: int = 1

    @property
    def size(self) -> int:
        return self.tensor * self.sequence * self.expert

    @property
    def used(self) -> dict[str, int]:
        return {name: size for name, size in vars(self).items() if size > 1}

    def arguments(self) -> dict[str, Any]:
        return {f"{name}_parallel_size": size for name, size in self.used.items()}

    def __str__(self) -> str:
        return " x ".join(f"{name} {size}" for name, size in self.used.items())

    @classmethod
    def of(cls, args: Any) -> "Axes":
        """Those that arguments ask for."""
        return cls(*(max(1, int(getattr(args, f"{name}_parallel_size", 1) or 1)) for name in cls.__annotations__))


WHOLE = Axes()


@dataclass(frozen=True)
class ParallelLayout:
    """A layout of the model over processes: `sharding`, how many processes share one copy of the state, and axes."""

    name: str
    sharding: str
    degree: int = 1
    axes: Axes = WHOLE

    @property
    def shards_gradients(self) -> bool:
        return "stage2" in self.sharding or "stage3" in self.sharding

    def arguments(self) -> dict[str, Any]:
        given: dict[str, Any] = {"sharding": self.sharding} if self.sharding else {}
        given |= {"sharding_degree": self.degree} if "hybrid" in self.sharding else {}
        return given | self.axes.arguments()


def layouts(world: int, per_machine: int, hybrid: bool, axes: Axes = WHOLE) -> list[ParallelLayout]:
    """The layouts that are possible with `world` processes, of which those of the axes have the same batch. Stage 1 is
    not combined with axes, and experts are not combined with sharding."""
    batches = world // axes.size
    if batches == 1:
        return [ParallelLayout(str(axes) or "one process", "", axes=axes)]
    ways = [ParallelLayout("DDP", "", axes=axes)]
    stages = () if axes.expert > 1 else (2, 3) if axes.used else (1, 2, 3)
    ways += [ParallelLayout(f"stage {stage}", f"stage{stage}", batches, axes) for stage in stages]
    inside = per_machine // axes.size  # of a machine's processes, those with different batches
    if stages and hybrid and 1 < inside < batches and batches % inside == 0:
        ways.append(ParallelLayout("hybrid stage 3", "stage3 hybrid", inside, axes))
    return [replace(way, name=f"{way.name} x {axes}") for way in ways] if axes.used else ways


def resident(layout: ParallelLayout, tensors: list[Tensor], model: ModelSizes) -> tuple[int, int, int | None]:
    """Bytes of (parameters, gradients, optimizer state) in the process that holds most, without axes."""
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
