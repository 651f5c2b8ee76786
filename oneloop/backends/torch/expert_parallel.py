"""Expert parallelism: the experts of a model are divided over the processes of an axis, which compute the same batch.

Every process routes all tokens, computes those of its own experts, and the results are added up: an all-reduce of a
layer's output, and two of the gradients of its inputs. The router and the auxiliary loss see all experts, so they are
those of one process. Whatever is not an expert is whole in each process.

Experts are modules as transformers has them: parameters with one row per expert, `num_experts`, and a forward of hidden
states, the experts chosen for each token, and their weights. An expert that is `num_experts` is skipped there.
"""

import inspect
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from ...distributed.collectives import ProcessGroup
from ...distributed.mesh import EXPERT, SEQUENCE, SHARD, TENSOR, Mesh
from ...errors import ArgumentError, ModelError, UnsupportedError
from ...optim.catalog import OPTIMIZERS
from .._common.helpers import preview
from . import divided_weights
from .divided_weights import DividedWeights
from .models import is_adapter, unwrap
from .parallel import SingleProcessStrategy, from_main, local
from .sharding import device_mesh
from .tensor_division import Division

_INPUTS = ["hidden_states", "top_k_index", "top_k_weights"]
_DIVIDED = "_oneloop_experts"


def derive(strategy: type[SingleProcessStrategy]) -> type[SingleProcessStrategy]:
    """A strategy with expert parallelism added."""
    return divided_weights.derive("ExpertParallel", _ExpertParallel, strategy)


class _ExpertParallel(DividedWeights):
    argument = "expert_parallel_size"

    def __init__(self, args: Any, processes: ProcessGroup, mesh: Mesh) -> None:
        _check_arguments(args, mesh)
        super().__init__(args, processes, mesh)

    def divide(self, model: nn.Module) -> None:
        self.model = model
        known = getattr(unwrap(model), _DIVIDED, None)
        if known is None:
            if is_adapter(unwrap(model)):
                raise UnsupportedError(
                    "an adapter is not supported with expert_parallel_size. Use expert_parallel_size=1, or train the "
                    "whole model."
                )
            mesh = device_mesh(self.args, self.mesh)[EXPERT]
            found = _experts(model, mesh.size())
            from_main([*model.parameters(), *model.buffers()], self.processes)
            known = Division()
            for layer in found:
                _divide(layer, mesh, known)
            object.__setattr__(unwrap(model), _DIVIDED, known)
        self.division = known

    def build_optimizer(self, cls: Any, groups: list[dict[str, Any]], options: dict[str, Any]) -> Any:
        if cls.__name__ == "Adafactor":
            raise UnsupportedError(
                "adafactor keeps one scale for a parameter as a whole, but expert_parallel_size divides it. Use "
                "optim='adamw_torch'."
            )
        return super().build_optimizer(cls, groups, options)


def divided_elsewhere() -> UnsupportedError:
    """For a model whose experts are divided, but not here."""
    return UnsupportedError(
        "the experts of this model were divided by transformers (ep_size of DistributedConfig). With fsdp_size its "
        "exchange of tokens gives experts a part of their gradient: on two processes, one half. Load the model whole, "
        "and use expert_parallel_size."
    )


def _check_arguments(args: Any, mesh: Mesh) -> None:
    """An error for what is not supported in combination."""
    others = {"tensor_parallel_size": TENSOR, "sequence_parallel_size": SEQUENCE, "sharding": SHARD}
    wrong = [name for name, axis in others.items() if mesh.size_of(axis) > 1]
    chosen = OPTIMIZERS.get(str(getattr(args.optim, "value", args.optim)))
    wrong += [f"optim='{chosen.name}'"] if chosen is not None and chosen.sharding == "none" else []
    names = ("deepspeed", "torch_compile", "jit_mode_eval", "auto_find_batch_size", "fp16_full_eval", "bf16_full_eval")
    wrong += [name for name in (*names, "trace_steps") if getattr(args, name, None)]
    if wrong:
        raise UnsupportedError(
            f"expert_parallel_size={args.expert_parallel_size} is not supported with {', '.join(wrong)}: each process "
            "has some of the experts, and all of the other weights. Remove one of them; processes that are left over "
            "divide the batch."
        )


# -- the experts of a model


def is_experts(module: nn.Module) -> bool:
    """Whether a module has one row of parameters per expert, and is called as transformers' experts are."""
    count = getattr(module, "num_experts", None)
    if not isinstance(count, int) or list(inspect.signature(module.forward).parameters)[:3] not in (_INPUTS, ["args"]):
        return False
    own = list(module.parameters(recurse=False))
    return bool(own) and all(p.dim() > 1 and p.shape[0] == count for p in own)


def _experts(model: nn.Module, size: int) -> list[Any]:
    """The modules to divide. An error, before anything is changed, for what cannot be divided."""
    found = {name: module for name, module in unwrap(model).named_modules() if is_experts(module)}
    if not found:
        raise ModelError(
            f"expert_parallel_size={size} divides experts, but {type(unwrap(model)).__name__} has none: modules with "
            "num_experts, parameters with one row per expert, and a forward of hidden_states, top_k_index and "
            "top_k_weights, as transformers' MoE models have them. Use 1."
        )
    for name, module in found.items():
        if any(isinstance(p, DTensor) for p in module.parameters()) or getattr(module, "_is_expert_parallel", False):
            raise UnsupportedError(
                f"{name} is already divided. Load the model whole (without DistributedConfig), and oneloop divides it."
            )
        if module.num_experts % size:
            raise ArgumentError(
                f"{name} has {module.num_experts} experts, which expert_parallel_size={size} does not divide. Use a "
                f"divisor of {module.num_experts}."
            )
    inside = {id(p) for module in found.values() for p in module.parameters()}
    names: dict[int, list[str]] = {}
    for name, p in unwrap(model).named_parameters(remove_duplicate=False):
        names.setdefault(id(p), []).append(name)
    tied = next((group for key, group in names.items() if key in inside and len(group) > 1), None)
    if tied:
        raise ModelError(f"tied weights would be separated: {preview(tied)}. Use expert_parallel_size=1.")
    return list(found.values())


def _divide(layer: Any, mesh: DeviceMesh, division: Division) -> None:
    """Keep the experts of this process, and have the layer add up the results of all."""
    kind, count = type(layer), layer.num_experts // mesh.size()
    first = mesh.get_local_rank() * count
    views: dict[str, Any] = {}
    for name, p in list(layer._parameters.items()):
        own = DTensor.from_local(p.detach()[first : first + count].clone(), mesh, [Shard(0)], run_check=False)
        made = nn.Parameter(own, requires_grad=p.requires_grad)
        division.swapped[p] = layer._parameters[name] = made
        views[name] = _view(name)
    layer.num_experts = count
    layer._is_expert_parallel = True
    layer.__class__ = type(kind.__name__, (kind,), views | {"forward": _forward(kind, first, count, mesh.get_group())})


def _view(name: str) -> Any:
    """The attribute of a parameter: the experts of this process, as a plain tensor."""
    return property(lambda layer: local(layer._parameters[name]))


def _forward(kind: Any, first: int, count: int, group: Any) -> Any:
    def forward(self: Any, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
        chosen = top_k_index - first
        elsewhere = (chosen < 0) | (chosen >= count)
        chosen = chosen.masked_fill(elsewhere, count)
        states, weights = _Enter.apply(hidden_states, top_k_weights, group)
        out = kind.forward(self, states, chosen, weights.masked_fill(elsewhere, 0.0))
        # Without a token for its experts a process takes part in the backward pass too, with gradients of zero.
        nothing = [*(local(p) for p in self._parameters.values()), states, weights]
        out = out + sum(part.reshape(-1)[:0].sum().to(out.dtype) for part in nothing)
        return _Sum.apply(out, group)

    return forward


class _Enter(torch.autograd.Function):
    """Inputs of the experts as they are; their gradients are added up."""

    @staticmethod
    def forward(ctx: Any, states: Any, weights: Any, group: Any) -> Any:
        ctx.group = group
        return states.view_as(states), weights.view_as(weights)

    @staticmethod
    def backward(ctx: Any, states: Any, weights: Any) -> Any:
        parts = [part.contiguous().clone() for part in (states, weights)]
        for part in parts:
            dist.all_reduce(part, group=ctx.group)
        return *parts, None


class _Sum(torch.autograd.Function):
    """The results of all processes added up; each has the whole gradient."""

    @staticmethod
    def forward(ctx: Any, out: Any, group: Any) -> Any:
        out = out.contiguous().clone()
        dist.all_reduce(out, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient, None
