"""Tensor parallelism: the weights of a layer are divided over the processes of an axis, which compute the same batch.

`derive` adds it to the strategy for the axes that split the batch: one process, DDP, or FSDP2 on a mesh of two or three
dims. DDP cannot average the gradients of DTensors, so they are averaged after the backward pass.

Layers without a place in the plan (norms) are whole in each process. Their activations are whole too, and so are their
gradients: equal in all processes of the axis, which the first update checks.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate

from ...distributed.collectives import ProcessGroup
from ...distributed.mesh import TENSOR, Mesh, Splits
from ...errors import ModelError, UnsupportedError
from .._common.helpers import preview
from . import tensor_division
from .ddp import DataParallelStrategy
from .divided_dropout import DividedDropout
from .divided_state import DividedState
from .mesh_groups import step_by_mesh
from .parallel import SingleProcessStrategy, add_up, from_main, local
from .sharding import FSDPStrategy, ShardedOptimizerStrategy, device_mesh

ALIKE = 1e-3  # gradients of whole parameters differ by rounding alone


def derive(strategy: type[SingleProcessStrategy]) -> type[SingleProcessStrategy]:
    """A strategy with tensor parallelism added."""
    if issubclass(strategy, ShardedOptimizerStrategy):
        raise UnsupportedError(
            "sharding='stage1' cannot be combined with tensor_parallel_size: its optimizer sends whole parameters. "
            "Use sharding='stage2' or 'stage3', or remove sharding."
        )
    kind = _TensorParallelDDP if issubclass(strategy, DataParallelStrategy) else _TensorParallel
    if issubclass(strategy, FSDPStrategy):
        kind = _TensorParallel
    return type(f"TensorParallel{strategy.__name__}", (kind, strategy), {})


class _TensorParallel(DividedState):
    """What is the same for all strategies that it is added to."""

    def __init__(self, args: Any, processes: ProcessGroup, mesh: Mesh) -> None:
        super().__init__(args, processes, mesh)
        self.tensor_group = processes.along(mesh, TENSOR)
        # Those that have the first copy of the weights together, and count each part of a gradient once.
        self._split_axes = tuple(name for name in mesh.axes_that_split(Splits.WEIGHTS) if mesh.size_of(name) > 1)
        self._copy = processes.along(mesh, *self._split_axes)
        self.division: tensor_division.Division | None = None
        self._summed: list[nn.Parameter] = []
        self._checked = False
        self._counted: dict[int, bool] = {}

    # -- the model and its optimizer

    def is_divided(self, model: nn.Module) -> bool:
        return tensor_division.is_divided(model)

    def divide(self, model: nn.Module) -> None:
        self.model, self._checked = model, False
        self.division = tensor_division.known_division(model)
        if self.division is None:
            self.division = self._divide(model)

    def _divide(self, model: nn.Module) -> tensor_division.Division:
        mesh = device_mesh(self.args, self.mesh)[TENSOR]
        if not self.is_divided(model):
            from_main([*model.parameters(), *model.buffers()], self.processes)
        elif not tensor_division.take_over(model, mesh):
            return tensor_division.Division()
        found = tensor_division.divide(model, mesh, self.args.tensor_parallel_plan)
        dropout = DividedDropout(self.mesh.coordinate(TENSOR), self.args.device)
        dropout.attach(model, found)
        return found

    def wrap(self, model: nn.Module) -> nn.Module:
        wrapped = super().wrap(model)
        self.model, names = model, self.division.summed if self.division is not None else ()
        self._summed = [p for name, p in model.named_parameters() if name in names]
        return wrapped

    def prepare_optimizer(self, optimizer: Any) -> Any:
        """An optimizer of the user has the undivided parameters."""
        swapped = self.division.swapped if self.division is not None else {}
        for group in optimizer.param_groups:
            if any(p in swapped and p in optimizer.state for p in group["params"]):
                raise UnsupportedError(
                    "the given optimizer has already made steps on the undivided model. With tensor_parallel_size "
                    "pass a new one, or resume from a checkpoint."
                )
            group["params"] = [swapped.get(p, p) for p in group["params"]]
        optimizer = super().prepare_optimizer(optimizer)
        step_by_mesh(optimizer)
        return optimizer

    def build_optimizer(self, cls: Any, groups: list[dict[str, Any]], options: dict[str, Any]) -> Any:
        if cls.__name__ == "Adafactor":
            raise UnsupportedError(
                "adafactor keeps means over whole rows and columns of a parameter, but tensor_parallel_size divides "
                "them. Use optim='adamw_torch'."
            )
        return super().build_optimizer(cls, groups, options)

    # -- an update

    def finish(self, parameters: list[nn.Parameter]) -> bool:
        again = super().finish(parameters)
        for p in parameters:
            if isinstance(p, DTensor) and p.grad is not None and p.grad.placements != p.placements:
                p.grad = p.grad.redistribute(placements=p.placements)
        add_up([p.grad for p in self._summed if p.grad is not None], self.tensor_group)
        if not self._checked:
            self._check_whole_gradients(parameters)
        return again

    def _check_whole_gradients(self, parameters: list[nn.Parameter]) -> None:
        """In the first update: gradients of whole parameters are the same along the axis. One that is used where
        activations are divided has a part of its gradient in each process."""
        self._checked = True
        whole = [p for p in parameters if p.grad is not None and not self._is_split(p.grad, TENSOR)]
        if not whole:
            return
        norms = torch._foreach_norm([local(p.grad).float() for p in whole])
        rows = self.tensor_group.all_gather([float(norm) for norm in norms])
        wrong = [
            p
            for p, found in zip(whole, zip(*rows))
            if max(found) - min(found) > ALIKE * max(map(abs, found)) and all(map(_is_finite, found))
        ]
        if wrong:
            assert self.model is not None
            raise ModelError(
                f"gradients of {preview(list(tensor_division.names_of(self.model, wrong)))} differ along the tensor "
                "axis: they are used where activations are divided, and each process has a part of their gradient. "
                f"Add their layers to tensor_parallel_plan as {tensor_division.SUMMED!r}."
            )

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
        return all(self._is_split(gradient, axis) or self.mesh.coordinate(axis) == 0 for axis in self._split_axes)

    def _is_split(self, tensor: torch.Tensor, axis: str) -> bool:
        if not isinstance(tensor, DTensor):
            return False
        names = tensor.device_mesh.mesh_dim_names
        if names is None or not set(names) & {axis.name for axis in self.mesh.axes}:  # of a user's own mesh
            names = (TENSOR,)
        placements = dict(zip(names, tensor.placements))
        return axis in placements and not isinstance(placements[axis], Replicate)


class _TensorParallelDDP(_TensorParallel, DataParallelStrategy):
    """Gradients are averaged over the replicas after the last backward pass."""

    def _wrapped(self) -> nn.Module:
        assert self.model is not None
        return self.model

    def finish(self, parameters: list[nn.Parameter]) -> bool:
        super().finish(parameters)
        return False


def _is_finite(value: float) -> bool:
    return value - value == 0
