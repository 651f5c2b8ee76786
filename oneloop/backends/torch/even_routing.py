"""Experts in simulated steps: each is taken to have the same number of tokens, since which ones it has is not known.

Experts may ask for the places of their tokens, the number of which depends on values. Within their forward
pass the answer is the mean number.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from .expert_parallel import is_experts


@contextlib.contextmanager
def evenly_routed(model: nn.Module) -> Iterator[None]:
    """A context in which the experts of a model compute as many tokens each, also once they are divided."""
    found: list[Any] = [module for module in model.modules() if is_experts(module)]
    for module in found:
        module.register_forward_pre_hook(_Before(module.num_experts))
        module.register_forward_hook(_leave, always_call=True)
    with _GroupedProducts() if found else contextlib.nullcontext():
        yield


class _Before:
    """Enters the mode before a layer of that many experts in all processes."""

    def __init__(self, experts: int) -> None:
        self.experts = experts

    def __call__(self, module: Any, given: Any) -> None:
        module.__dict__["_even"] = mode = _Evenly(self.experts)
        mode.__enter__()


def _leave(module: Any, given: Any, output: Any) -> None:
    module.__dict__.pop("_even").__exit__(None, None, None)


class _Evenly(TorchDispatchMode):
    def __init__(self, experts: int) -> None:
        super().__init__()
        self.experts = experts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return 0  # the number of an expert, which is the first
        if func is torch.ops.aten.nonzero.default:
            (mask,) = args
            # Of a list of experts, all that are here; the last entry is for tokens of other processes. Of the choices
            # of tokens, those of one expert.
            rows = mask.shape[0] - 1 if mask.dim() == 1 else -(-mask.numel() // self.experts)
            return torch.empty(rows, mask.dim(), dtype=torch.long, device=mask.device)
        return func(*args, **(kwargs or {}))


class _GroupedProducts(TorchDispatchMode):
    """Shapes of products of groups of rows with a matrix each: for tensors without data, torch refuses all types but
    bfloat16, which kernels do not."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.ops.aten._grouped_mm.default:
            return func(*args, **(kwargs or {}))
        first, second = args[:2]
        offsets: Any = args[2] if len(args) > 2 else (kwargs or {}).get("offs")
        groups = offsets.shape[:1] if first.dim() == second.dim() == 2 else ()
        if first.dim() == second.dim() == 3:
            groups = first.shape[:1]
        return first.new_empty((*groups, first.shape[-2], second.shape[-1]))
