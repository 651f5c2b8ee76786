"""Tensor parallelism: the weights of a layer are divided over the processes of an axis, which compute the same batch.

`derive` adds it to the strategy for the axes that split the batch: one process, DDP, or FSDP2 on a mesh of two or three
dims.

Layers without a place in the plan (norms) are whole in each process. Their activations are whole too, and so are their
gradients: equal in all processes of the axis, which the first update checks.
"""

from functools import partial
from typing import Any

import torch
from torch import nn

from ...distributed.collectives import ProcessGroup
from ...distributed.mesh import TENSOR, Mesh
from ...errors import ModelError, UnsupportedError
from .._common.helpers import preview
from . import divided_weights, tensor_division
from .divided_dropout import DividedDropout
from .divided_weights import DividedWeights
from .models import base_of
from .parallel import SingleProcessStrategy, add_up, from_main, local
from .sharding import ShardedOptimizerStrategy, device_mesh

ALIKE = 1e-3  # gradients of whole parameters differ by rounding alone


def derive(strategy: type[SingleProcessStrategy]) -> type[SingleProcessStrategy]:
    """A strategy with tensor parallelism added."""
    if issubclass(strategy, ShardedOptimizerStrategy):
        raise UnsupportedError(
            "sharding='stage1' cannot be combined with tensor_parallel_size: its optimizer sends whole parameters. "
            "Use sharding='stage2' or 'stage3', or remove sharding."
        )
    return divided_weights.derive("TensorParallel", _TensorParallel, strategy)


class _TensorParallel(DividedWeights):
    argument = "tensor_parallel_size"

    def __init__(self, args: Any, processes: ProcessGroup, mesh: Mesh) -> None:
        super().__init__(args, processes, mesh)
        self.tensor_group = processes.along(mesh, TENSOR)
        self._summed: list[nn.Parameter] = []
        self._checked = False

    # -- the model and its optimizer

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
        if self.has_values:
            DividedDropout(self.mesh.coordinate(TENSOR), self.args.device).attach(model, found)
        if tensor_division.divides_heads(model):
            own = partial(_own_heads, self.mesh.coordinate(TENSOR), mesh.size())
            base_of(model).register_forward_pre_hook(own, with_kwargs=True)
        return found

    def wrap(self, model: nn.Module) -> nn.Module:
        wrapped = super().wrap(model)
        self.model, names = model, self.division.summed if self.division is not None else ()
        self._summed = [p for name, p in model.named_parameters() if name in names]
        return wrapped

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
        add_up([p.grad for p in self._summed if p.grad is not None], self.tensor_group)
        if not self._checked:
            self._check_whole_gradients(parameters)
        return again

    def _check_whole_gradients(self, parameters: list[nn.Parameter]) -> None:
        """In the first update: gradients of whole parameters are the same along the axis. One that is used where
        activations are divided has a part of its gradient in each process."""
        self._checked = True
        whole = [p for p in parameters if p.grad is not None and not self.is_split(p.grad, TENSOR)]
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


def _own_heads(place: int, size: int, model: Any, given: Any, named: dict[str, Any]) -> Any:
    """An attention mask of each head, of which a process has its own."""
    mask, heads = named.get("attention_mask"), getattr(getattr(model, "config", None), "num_attention_heads", None)
    if not isinstance(mask, torch.Tensor) or mask.ndim < 4 or mask.shape[1] != heads:
        return None
    return given, named | {"attention_mask": mask.chunk(size, 1)[place]}


def _is_finite(value: float) -> bool:
    return value - value == 0
