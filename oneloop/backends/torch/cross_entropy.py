"""Cross entropy of hidden states and a head, in chunks of rows.

The gradients of a mean are computed with it, chunk by chunk, and the backward pass only scales them: a chunk's logits
are computed once. torch's F.linear_cross_entropy does this as well. It is slower (benchmarks/chunked_loss.py), computes
whole logits for label smoothing, and knows neither caps nor heads with adapters nor divided ones.

The words of a head that is divided are divided by rows of its weight (tensor parallelism): each process has the logits
of its own words, and sums over all words are added up.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable

from ...errors import ModelError, UnsupportedError
from .._common.chunked_loss import Between, chunk_sizes

BLOCK = 2**14  # words of the head's gradient that are computed at once in half precision
HALF = (torch.float16, torch.bfloat16)


class Heads:
    """A head, and what is done with its logits. `forward`: of the layer."""

    def __init__(self, layer: Any, forward: Callable[[torch.Tensor], torch.Tensor], between: Between) -> None:
        self.layer, self.forward, self.between = layer, forward, between
        # Of a linear layer, gradients are computed without a graph.
        self.is_linear = getattr(forward, "__func__", None) is nn.Linear.forward
        weight: Any = layer.weight if self.is_linear else None
        bias: Any = layer.bias if self.is_linear else None
        self.group, self.first = None, 0  # the processes over which its words are divided, and the first word of ours
        if hasattr(weight, "to_local"):
            if not (len(weight.placements) == 1 and weight.placements[0].is_shard(0)):
                raise UnsupportedError(f"its head is divided ({weight.placements}), and not by words")
            mesh, self.group = weight.device_mesh, weight.device_mesh.get_group()
            self.first = mesh.get_local_rank() * weight.to_local().shape[0]
            weight, bias = weight.to_local(), None if bias is None else bias.to_local()
        own = [weight, bias] if self.is_linear else [p for p in layer.parameters() if p.requires_grad]
        self.parameters: list[Any] = [p for p in own if p is not None]
        self.words = layer.out_features if self.is_linear else 0
        device = next(layer.parameters()).device.type
        self.device, self.autocasts = device, torch.is_autocast_enabled(device)
        self.dtype = torch.get_autocast_dtype(device) if self.autocasts else None


def mean_loss(
    head: Heads, hidden: torch.Tensor, labels: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean loss of these rows, which all count, and the losses of each, without a graph."""
    return _Mean.apply(head, labels, epsilon, hidden, *head.parameters)


def token_losses(head: Heads, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The losses of each row. Logits are computed once more in the backward pass."""
    return _Each.apply(head, labels, hidden, *head.parameters)


class _Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, head: Heads, labels: torch.Tensor, epsilon: float, hidden: torch.Tensor, *own: Any) -> Any:
        needs = ctx.needs_input_grad[3:]
        losses, ctx.gradients = _computed(head, labels, epsilon, hidden, own, needs)
        ctx.rows = max(1, len(labels))
        ctx.mark_non_differentiable(losses)
        ctx.set_materialize_grads(False)
        return losses.sum() / len(labels), losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> tuple[Any, ...]:
        found, ctx.gradients = ctx.gradients, None
        if found is None:
            raise ModelError(
                "the gradients of a chunked loss are computed once, and backward was called a second time "
                "(retain_graph). Use chunked_loss=False."
            )
        for each in found:  # in place: they are as large as the head
            if each is not None:
                each.mul_((gradient / ctx.rows).to(each.device))
        return (None, None, None, *found)


class _Each(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, head: Heads, labels: torch.Tensor, hidden: torch.Tensor, *own: Any) -> torch.Tensor:
        ctx.head = head
        ctx.save_for_backward(labels, hidden, *own)
        return _computed(head, labels, 0.0, hidden, own, [False] * (1 + len(own)))[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        labels, hidden, *own = ctx.saved_tensors
        return (None, None, *_computed(ctx.head, labels, 0.0, hidden, own, ctx.needs_input_grad[2:], gradient)[1])


def _computed(
    head: Heads,
    labels: torch.Tensor,
    epsilon: float,
    hidden: torch.Tensor,
    own: Sequence[torch.Tensor],
    needs: Sequence[bool],
    weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, list[Any]]:
    """The losses of the rows, and the gradients of their sum, with these weights, for the hidden states and the
    parameters that need one."""
    with torch.autocast(head.device, dtype=head.dtype, enabled=False):
        compute = _linear if head.is_linear else _any_layer
        return compute(head, labels, epsilon, hidden, own, needs, weights)


def _pieces(labels: torch.Tensor, words: int) -> Iterator[slice]:
    start = 0
    for size in chunk_sizes(len(labels), words):
        yield slice(start, start + size)
        start += size


# -- a linear layer


def _linear(
    head: Heads, labels: Any, epsilon: float, hidden: Any, own: Any, needs: Any, weights: Any
) -> tuple[torch.Tensor, list[Any]]:
    weight, bias = own[0], own[1] if len(own) > 1 else None
    dtype = head.dtype or torch.promote_types(hidden.dtype, weight.dtype)
    rows, matrix = hidden.to(dtype), weight.to(dtype)
    offset = None if bias is None else bias.to(dtype)
    wide = torch.float32 if dtype in HALF else dtype  # of logits, and of sums over chunks
    losses = torch.empty(len(labels), dtype=wide, device=hidden.device)
    of_rows = torch.empty_like(rows) if needs[0] else None
    of_weight = torch.zeros_like(weight, dtype=wide) if needs[1] else None
    of_bias = torch.zeros_like(bias, dtype=wide) if bias is not None and needs[2] else None
    buffer: Any = None
    for piece in _pieces(labels, len(matrix)):
        part = rows[piece]
        if buffer is None:  # the first piece is the largest
            buffer = torch.empty(len(part), len(matrix), dtype=dtype, device=hidden.device)
        logits = torch.mm(part, matrix.t(), out=buffer[: len(part)])
        if offset is not None:
            logits.add_(offset)
        losses[piece], slope = _losses(head, logits.to(wide), labels[piece], epsilon, any(needs))
        if slope is None:
            continue
        if weights is not None:
            slope.mul_(weights[piece, None])
        if of_bias is not None:
            of_bias.add_(slope.sum(0))
        slope = slope if wide == dtype else logits.copy_(slope)
        if of_rows is not None:
            torch.mm(slope, matrix, out=of_rows[piece])
        if of_weight is not None:
            _add_product(of_weight, slope, part)
    if of_rows is not None and head.group is not None:
        dist.all_reduce(of_rows, group=head.group)
    found = [of_rows, of_weight] if bias is None else [of_rows, of_weight, of_bias]
    return losses, [
        None if each is None else each.to(like.dtype) for each, like in zip(found, (hidden, *own), strict=True)
    ]


def _add_product(total: torch.Tensor, slope: torch.Tensor, rows: torch.Tensor) -> None:
    """total += slope.T @ rows."""
    if total.dtype == rows.dtype:
        total.addmm_(slope.t(), rows)
        return
    for words, part in zip(total.split(BLOCK), slope.split(BLOCK, 1), strict=True):
        words.add_(torch.mm(part.t(), rows))


def _losses(
    head: Heads, logits: torch.Tensor, labels: torch.Tensor, epsilon: float, needs_slope: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The losses of rows of logits, and the gradient of their sum for the logits, in whose memory they are."""
    between = head.between
    if between.scale != 1.0:
        logits.mul_(between.scale)
    cap_slope = None
    if between.cap is not None:
        logits.div_(between.cap).tanh_()
        cap_slope = 1 - logits.square() if needs_slope else None
        logits.mul_(between.cap)
    if head.group is not None:
        log_probs, target, own = _divided_log_probs(head, logits, labels)
        sums = log_probs.sum(1) if epsilon else None
        if sums is not None:
            dist.all_reduce(sums, group=head.group)
    else:
        if logits.device.type == "cpu":
            log_probs = torch.ops.aten._log_softmax.out(logits, 1, False, out=logits)
        else:  # whose kernels may read a row after they have written to it
            log_probs = torch.log_softmax(logits, 1)
        own = None
        target = log_probs.gather(1, labels[:, None]).squeeze(1)
        sums = log_probs.sum(1) if epsilon else None
    losses = -target
    if sums is not None:
        losses = losses * (1 - epsilon) - sums * (epsilon / head.words)
    if not needs_slope:
        return losses, None
    slope = log_probs.exp_()
    if epsilon:
        slope.sub_(epsilon / head.words)
    place, share = labels[:, None], torch.full_like(labels[:, None], epsilon - 1, dtype=slope.dtype)
    if own is not None:
        place, share = own[0][:, None], share * own[1][:, None]
    slope.scatter_add_(1, place, share)
    if cap_slope is not None:
        slope.mul_(cap_slope)
    if between.scale != 1.0:
        slope.mul_(between.scale)
    return losses, slope


def _divided_log_probs(head: Heads, logits: torch.Tensor, labels: torch.Tensor) -> tuple[Any, torch.Tensor, Any]:
    """The log-probabilities of the words of this process, that of each label, and where the labels are here: their
    places, and whether they are here."""
    largest = logits.amax(1)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=head.group)
    logits.sub_(largest[:, None])
    place = labels - head.first
    is_here = (place >= 0) & (place < logits.shape[1])
    place = torch.where(is_here, place, 0)
    target = logits.gather(1, place[:, None]).squeeze(1) * is_here
    sums = torch.stack([logits.exp().sum(1), target])
    dist.all_reduce(sums, group=head.group)
    total = sums[0].log()
    return logits.sub_(total[:, None]), sums[1] - total, (place, is_here)


# -- any other layer


def _any_layer(
    head: Heads, labels: Any, epsilon: float, hidden: Any, own: Any, needs: Any, weights: Any
) -> tuple[torch.Tensor, list[Any]]:
    losses = torch.empty(len(labels), dtype=torch.float32, device=hidden.device)
    of_rows = torch.empty_like(hidden) if needs[0] else None
    totals: list[Any] = [torch.zeros_like(p, dtype=torch.float32) if need else None for p, need in zip(own, needs[1:])]
    autocast = torch.autocast(head.device, dtype=head.dtype, enabled=head.autocasts, cache_enabled=False)
    words = head.words or _width(head, hidden, autocast)
    for piece in _pieces(labels, words):
        with torch.set_grad_enabled(any(needs)):
            part = hidden[piece].detach().requires_grad_(needs[0])
            with autocast:
                logits = head.forward(part).float()
            found = nn.functional.cross_entropy(
                _applied(head.between, logits), labels[piece], label_smoothing=epsilon, reduction="none"
            )
        losses[piece] = found.detach()
        if not any(needs):
            continue
        sources = [each for each, need in zip((part, *own), needs, strict=True) if need]
        given = torch.ones_like(found) if weights is None else weights[piece].to(found.dtype)
        slopes = iter(torch.autograd.grad(found, sources, given, allow_unused=True))
        if of_rows is not None:
            of_rows[piece] = next(slopes)
        for total in totals:
            slope = None if total is None else next(slopes)
            if slope is not None:
                total.add_(slope)
    return losses, [
        of_rows,
        *(None if total is None else total.to(like.dtype) for total, like in zip(totals, own, strict=True)),
    ]


def _width(head: Heads, hidden: torch.Tensor, autocast: Any) -> int:
    with torch.no_grad(), autocast:
        return int(head.forward(hidden[:1]).shape[-1])


def _applied(between: Between, logits: torch.Tensor) -> torch.Tensor:
    if between.scale != 1.0:
        logits = logits * between.scale
    return logits if between.cap is None else between.cap * torch.tanh(logits / between.cap)
