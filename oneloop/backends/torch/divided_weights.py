"""Strategies whose processes compute the same batch, each with a part of the weights (DTensors).

Parameters that are not divided are whole in each process, and so are their gradients. DDP cannot average the gradients
of DTensors, so they are averaged after the backward pass.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate

from ...distributed.collectives import ProcessGroup
from ...distributed.mesh import TENSOR, Mesh, Splits
from ...errors import UnsupportedError
from . import tensor_division
from .ddp import DataParallelStrategy
from .divided_state import DividedState
from .mesh_groups import step_by_mesh
from .parallel import SingleProcessStrategy
from .sharding import FSDPStrategy


class DividedWeights(DividedState):
    """What is the same for all axes along which weights are divided, and for all strategies that they are added to."""

    argument: str  # that divides the weights, for messages

    def __init__(self, args: Any, processes: ProcessGroup, mesh: Mesh) -> None:
        super().__init__(args, processes, mesh)
        # Those that have the first copy of the weights together, and count each part of a gradient once.
        self._split_axes = tuple(name for name in mesh.axes_that_split(Splits.WEIGHTS) if mesh.size_of(name) > 1)
        self._copy = processes.along(mesh, *self._split_axes)
        self.division: tensor_division.Division | None = None
        self._counted: dict[int, bool] = {}

    # -- the model and its optimizer

    def is_divided(self, model: nn.Module) -> bool:
        return tensor_division.is_divided(model)

    def prepare_optimizer(self, optimizer: Any) -> Any:
        """An optimizer of the user has the undivided parameters."""
        swapped = self.division.swapped if self.division is not None else {}
        for group in optimizer.param_groups:
            if any(p in swapped and p in optimizer.state for p in group["params"]):
                raise UnsupportedError(
                    f"the given optimizer has already made steps on the undivided model. With {self.argument} pass a "
                    "new one, or resume from a checkpoint."
                )
            group["params"] = [swapped.get(p, p) for p in group["params"]]
        optimizer = super().prepare_optimizer(optimizer)
        step_by_mesh(optimizer)
        return optimizer

    # -- an update

    def finish(self, parameters: list[nn.Parameter]) -> bool:
        # Before gradients are averaged: a replica without a sample has zeros in the layout of the weights.
        for p in parameters:
            if isinstance(p, DTensor) and p.grad is not None and p.grad.placements != p.placements:
                p.grad = p.grad.redistribute(placements=p.placements)
        return super().finish(parameters)

    def local(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        parts = super().local(gradients)
        self._counted = {id(part): self._is_first_copy(g) for part, g in zip(parts, gradients)}
        return parts

    def norm(self, gradients: list[torch.Tensor], spread_to: torch.device | None = None) -> torch.Tensor:
        """`gradients` are what local() returned. Each part counts in the first process that has it."""
        mine = [g for g in gradients if self._counted[id(g)] and g.numel()]
        total = torch.zeros((), device=self.args.device)
        if mine:
            total = SingleProcessStrategy.norm(self, mine, spread_to).float() ** 2
        dist.all_reduce(total, group=self._copy.handle)
        return total.sqrt()

    def _is_first_copy(self, gradient: torch.Tensor) -> bool:
        """Whether no process before this one has this part of a gradient."""
        return all(self.is_split(gradient, axis) or self.mesh.coordinate(axis) == 0 for axis in self._split_axes)

    def is_split(self, tensor: torch.Tensor, axis: str) -> bool:
        """Whether the processes of an axis have different parts of a tensor."""
        if not isinstance(tensor, DTensor):
            return False
        names = tensor.device_mesh.mesh_dim_names
        if names is None or not set(names) & {axis.name for axis in self.mesh.axes}:  # of a user's own mesh
            names = (TENSOR,)
        placements = dict(zip(names, tensor.placements))
        return axis in placements and not isinstance(placements[axis], Replicate)


class DividedWeightsDDP(DividedWeights, DataParallelStrategy):
    """Gradients are averaged over the replicas after the last backward pass."""

    def _wrapped(self) -> nn.Module:
        assert self.model is not None
        return self.model

    def finish(self, parameters: list[nn.Parameter]) -> bool:
        super().finish(parameters)
        return False


def derive(name: str, kind: type[DividedWeights], strategy: type[SingleProcessStrategy]) -> type[SingleProcessStrategy]:
    """A strategy to which a kind of divided weights is added."""
    by_ddp = issubclass(strategy, DataParallelStrategy) and not issubclass(strategy, FSDPStrategy)
    bases = (kind, DividedWeightsDDP, strategy) if by_ddp else (kind, strategy)
    return type(f"{name}{strategy.__name__}", bases, {})
