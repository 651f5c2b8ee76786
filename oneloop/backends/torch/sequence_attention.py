"""Attention over sequences that are divided between processes (Ulysses).

Each process has a part of every sequence, with all heads. One all-to-all turns that into whole sequences with a part of
the heads, for which the model's own attention function is called; another one turns its result back. So masks, windows
and documents of a pack are those of whole sequences.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ...distributed.collectives import ProcessGroup

# all_gather_into_tensor is deprecated since torch 2.13, and says so in every run.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class _AllToAll(torch.autograd.Function):
    """Block number i of the first dim goes to process number i of the axis. It is its own transpose."""

    @staticmethod
    def forward(ctx: Any, blocks: torch.Tensor, axis: ProcessGroup) -> torch.Tensor:
        ctx.axis = axis
        return _exchanged(blocks, axis)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _exchanged(gradients[0].contiguous(), ctx.axis), None


def _exchanged(blocks: torch.Tensor, axis: ProcessGroup) -> torch.Tensor:
    received = torch.empty_like(blocks)
    axis.count_collective()
    dist.all_to_all_single(received, blocks, group=axis.handle)
    return received


class _Gather(torch.autograd.Function):
    """Parts of sequences (rows, part, ...) to whole ones, of which only the first `length` positions are kept.

    What follows is computed by all processes of the axis, each with the same result, and gradients of parameters are
    averaged along the axis. So the gradient of a part is taken times the number of processes.
    """

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, axis: ProcessGroup, length: int) -> torch.Tensor:
        ctx.axis, ctx.size = axis, part.shape[1]
        every = part.new_empty(axis.size * part.shape[0], *part.shape[1:])
        axis.count_collective()
        _all_gather(every, part.contiguous(), group=axis.handle)
        return every.unflatten(0, (axis.size, -1)).transpose(0, 1).flatten(1, 2)[:, :length].contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gradient, size = gradients[0], ctx.size
        own = gradient[:, ctx.axis.rank * size : (ctx.axis.rank + 1) * size] * ctx.axis.size
        missing = size - own.shape[1]  # positions that were only added to divide the sequence
        if missing:
            own = torch.cat([own, own.new_zeros(own.shape[0], missing, *own.shape[2:])], 1)
        return own, None, None


class _Sum(torch.autograd.Function):
    """The sum of a number over the processes of the axis, by whose parameters' gradients are averaged."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, axis: ProcessGroup) -> torch.Tensor:
        ctx.size, total = axis.size, value.detach().clone()
        axis.count_collective()
        dist.all_reduce(total, group=axis.handle)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.size, None


def gathered(part: torch.Tensor, axis: ProcessGroup, length: int) -> torch.Tensor:
    return _Gather.apply(part, axis, length)


def summed(value: torch.Tensor, axis: ProcessGroup) -> torch.Tensor:
    return _Sum.apply(value, axis)


class _WithGroups:
    """An attention module with another number of query heads per key-value head."""

    def __init__(self, module: nn.Module, groups: int) -> None:
        self._module, self.num_key_value_groups = module, groups

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def attention(
    function: Callable[..., Any],
    axis: ProcessGroup,
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Any,
    **options: Any,
) -> tuple[torch.Tensor, Any]:
    """Call an attention function of the AttentionInterface for the heads of this process.

    Query, key and value are (rows, heads, part of the sequence, size of a head); the mask is that of whole sequences.
    Key-value heads that the processes do not divide are repeated until they do. Returns (rows, part, heads, size).
    """
    heads, kv_heads = query.shape[1], key.shape[1]
    repeated = math.lcm(kv_heads, axis.size)
    if repeated != kv_heads:
        key, value = (each.repeat_interleave(repeated // kv_heads, 1) for each in (key, value))
    given: Any = module if repeated == kv_heads else _WithGroups(module, heads // repeated)
    if isinstance(mask, torch.Tensor) and mask.ndim == 4 and mask.shape[1] == heads > 1:  # its own for each head
        mask = mask.chunk(axis.size, 1)[axis.rank]
    result, _ = function(given, *_to_heads(_in_one_type([query, key, value]), axis), mask, **options)
    return _to_parts(result, axis), None


def _in_one_type(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Under autocast, rotated queries and keys are wider than values, and attention would narrow them."""
    types = {each.dtype for each in tensors}
    if len(types) == 1:
        return tensors
    kind = tensors[0].device.type
    common = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else max(types, key=lambda t: t.itemsize)
    return [each.to(common) for each in tensors]


def _to_heads(tensors: list[torch.Tensor], axis: ProcessGroup) -> list[torch.Tensor]:
    """(rows, heads, part, size) each -> (rows, heads of this process, whole sequence, size), in one message."""
    # (rows, part, process, heads of it, size), as the projections have made them, by process
    blocks = [each.transpose(1, 2).unflatten(2, (axis.size, -1)).movedim(2, 0) for each in tensors]
    sent = torch.cat([block.reshape(axis.size, -1) for block in blocks], 1)
    received = _AllToAll.apply(sent, axis).split([block[0].numel() for block in blocks], 1)
    return [
        part.view(block.shape).transpose(0, 1).flatten(1, 2).transpose(1, 2) for part, block in zip(received, blocks)
    ]


def _to_parts(result: torch.Tensor, axis: ProcessGroup) -> torch.Tensor:
    """(rows, whole sequence, heads of this process, size) -> (rows, part, heads, size)."""
    blocks = result.unflatten(1, (axis.size, -1)).movedim(1, 0).contiguous()
    received = _AllToAll.apply(blocks, axis)  # (process, rows, part, heads of it, size)
    return received.movedim(0, 2).flatten(2, 3)
