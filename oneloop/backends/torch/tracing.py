"""Records what the layers of a model compute: hooks on layers and on gradients, and digests of tensors."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from ...formats.digests import PROJECTIONS, ProjectionFactors
from .._common import tracing as common
from .._common.tracing import After, Before, watch_layers
from .._common.tracing import rms_of as rms_of
from .._common.tracing import sampled as sampled
from . import weights
from .models import unwrap
from .optimizer_layout import LAYOUT

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes


def watch(model: nn.Module, before: Before, after: After) -> Callable[[], None]:
    """Call functions before and after the forward pass of every layer; see watch_layers."""
    return watch_layers(unwrap(model).named_modules(), nn.Module.register_forward_hook, before, after)


def is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and not value.is_sparse


def has_gradient(tensor: torch.Tensor) -> bool:
    """Whether a gradient of it is going to be computed."""
    return tensor.requires_grad


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """The same values as another node of the graph: its gradient is that of one use of the tensor."""
    return tensor.view_as(tensor)


def on_gradient(tensor: torch.Tensor, function: Callable[[torch.Tensor], Any]) -> None:
    """Call the function with the gradient of a tensor; it may return another one."""
    tensor.register_hook(function)


def dtype_of(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).rpartition(".")[2]


def piece(tensor: torch.Tensor) -> tuple[torch.Tensor, list[int], list[int]]:
    """What this process has of a tensor: a plain tensor, the index of its first element along each axis, and the full
    shape."""
    if not isinstance(tensor, DTensor):
        return common.piece(tensor)
    _, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tensor.to_local(), list(offsets), list(tensor.shape)


def output_piece(layer: nn.Module, tensor: torch.Tensor) -> tuple[torch.Tensor, list[int], list[int]]:
    """The same for an output of a layer: where the rows of its weight are divided over processes, so are the features
    of a plain output."""
    found = piece(tensor)
    weight = getattr(layer, "weight", None)
    if isinstance(tensor, DTensor) or not isinstance(weight, DTensor) or weight.dim() != 2 or not tensor.dim():
        return found
    divided = any(isinstance(each, Shard) and each.dim == 0 for each in weight.placements)
    local, offsets, full = piece(weight)
    if not divided or local.shape[0] == full[0] or tensor.shape[-1] != local.shape[0]:
        return found
    return tensor, [*found[1][:-1], offsets[0]], [*found[2][:-1], full[0]]


@contextlib.contextmanager
def computing(tensor: torch.Tensor) -> Iterator[None]:
    """A context for digests: no graph, no autocast, no TF32."""
    kind = tensor.device.type
    flags = torch.backends.cuda.matmul
    before = flags.allow_tf32 if kind == "cuda" else False
    if before:
        flags.allow_tf32 = False
    try:
        with torch.no_grad(), torch.autocast(kind, enabled=False):
            yield
    finally:
        if before:
            flags.allow_tf32 = True


def constant(array: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    """An array as a tensor on the device of another."""
    return torch.from_numpy(array).to(like.device, non_blocking=True)


def digest(
    tensor: torch.Tensor,
    factors: ProjectionFactors,
    constants: tuple[Any, Any] | None = None,
    only_projections: bool = False,
) -> torch.Tensor:
    """The digest of a plain tensor, on its device. `constants`: the factors as tensors."""
    with computing(tensor):
        left, right = constants or (constant(rows, tensor) for rows in factors.rows)
        x = tensor.detach().reshape(factors.shape)
        x = x if x.dtype == torch.float64 else x.float()
        left, right = left.to(x.dtype), right.to(x.dtype)
        if not x.numel():
            return torch.zeros(4 + PROJECTIONS, device=x.device)
        sums, bad = ((left @ x) * right).sum(1), x.new_zeros(())
        if x.device.type != "cpu" or not math.isfinite(sums.sum()):  # elsewhere, looking is a host sync
            bad = (x.numel() - torch.isfinite(x).sum()).to(x.dtype)
            x = torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)
            sums = ((left @ x) * right).sum(1)
        if only_projections:
            return torch.cat([x.new_zeros(3), sums]).float()
        least, most = torch.aminmax(x)
        first = torch.stack([torch.linalg.vector_norm(x), torch.maximum(-least, most), bad])
        return torch.cat([first, sums]).float()


def read(vectors: Sequence[torch.Tensor]) -> np.ndarray:
    """Vectors of equal lengths as the rows of an array. A host sync for each device."""
    if not vectors:
        return np.empty((0, 0))
    kinds = {vector.device for vector in vectors}
    if len(kinds) > 1:
        vectors = [vector.cpu() for vector in vectors]
    return torch.stack(list(vectors)).cpu().double().numpy()


def repeated(part: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """A tensor of this shape with values of a vector: each once if they suffice, or else rows that overlap."""
    count, width = math.prod(shape), shape[-1] if shape else 1
    if count <= part.shape[0]:
        return part[:count].view(shape)
    rows = count // width
    step = (part.shape[0] - width) // rows
    if step > 0:
        return part.as_strided((rows, width), (step, 1), part.storage_offset()).unflatten(0, shape[:-1])
    return part.repeat(-(-count // part.shape[0]))[:count].view(shape)


def noisy(tensor: torch.Tensor, noise: tuple[torch.Tensor, torch.Tensor], relative: float) -> torch.Tensor:
    """The tensor with rounding errors, half of which are relative to each value, and half to the norm of its row. Its
    gradient is that of the tensor."""
    if isinstance(tensor, DTensor):
        local = tensor.to_local().detach()
        change = noisy(local, noise, relative) - local
        return tensor + DTensor.from_local(change, tensor.device_mesh, tensor.placements, run_check=False)
    with computing(tensor):
        x, factor = tensor.detach().float(), relative * math.sqrt(0.5)
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True) / math.sqrt(max(1, x.shape[-1])) if x.dim() else x
        change = (noise[1] * (size * factor)).addcmul_(x, noise[0], value=factor)
        if x.device.type != "cpu" or not torch.isfinite(size).all():
            change = torch.nan_to_num(change, nan=0.0, posinf=0.0, neginf=0.0)
        change = change.to(tensor.dtype)
    return tensor + change


def write_noisy(
    target: torch.Tensor,
    before: torch.Tensor,
    noise: tuple[torch.Tensor, torch.Tensor],
    relative: float,
    absolute: Any,
) -> None:
    """Write a plain tensor with errors relative to each value, and errors of the same size for all. In blocks: large
    tensors in between cost more than the arithmetic."""
    with computing(target):
        flat, size = before.detach().reshape(-1), noise[0].shape[0]
        into = target.detach().view(-1) if target.is_contiguous() else torch.empty_like(flat)
        for start in range(0, flat.shape[0], size):
            x = flat[start : start + size].float()
            x = torch.addcmul(x, x, noise[0][: x.shape[0]], value=relative)
            if not isinstance(absolute, float) or absolute:
                x += noise[1][: x.shape[0]] * absolute
            into[start : start + size] = x
        if not target.is_contiguous():
            target.detach().copy_(into.view(target.shape))


def gradient_of(parameter: torch.Tensor) -> torch.Tensor | None:
    gradient = parameter.grad
    return None if gradient is None or gradient.is_sparse else gradient


def copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def write(target: torch.Tensor, value: torch.Tensor) -> None:
    """Write values into a plain tensor in place."""
    with torch.no_grad():
        target.detach().copy_(value)


def difference(tensor: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """In place of `before`, if it has that type."""
    with torch.no_grad():
        return before.float().sub_(tensor.detach()).neg_()


def spread(update: torch.Tensor, gradients: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """How much an update may change by noise of this size in each gradient, of which the sampled ones are given."""
    with computing(update):
        return common.spread_of(update, gradients.detach().float(), noise)


def moments(optimizer: Any, model: nn.Module) -> dict[str, dict[str, torch.Tensor]]:
    """State of the optimizer by parameter and common name: what has the shape of the parameter."""
    names = weights.optimizer_names(optimizer, model)
    inner = getattr(optimizer, "optim", optimizer)
    found: dict[str, dict[str, torch.Tensor]] = {}
    for parameter, state in inner.state.items():
        if id(parameter) not in names or not isinstance(state, dict):
            continue
        for word, value in state.items():
            if is_floating(value) and value.shape == parameter.shape and value.dim():
                found.setdefault(names[id(parameter)], {})[LAYOUT.words.get(word, word)] = value
    return found


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same bytes; NaNs may be equal. A host sync."""
    one, other = piece(one)[0].detach(), piece(other)[0].detach()
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.numel():
        return True
    return torch.equal(one.contiguous().reshape(-1).view(torch.uint8), other.contiguous().reshape(-1).view(torch.uint8))


def fingerprint(tensor: torch.Tensor) -> torch.Tensor:
    """Two integers that depend on every bit of a tensor, on its device."""
    with computing(tensor):
        flat = piece(tensor)[0].detach().contiguous().reshape(-1)
        words = flat.view(_INTEGERS[flat.element_size()])
        return torch.stack(
            common.fold(words, lambda part: part.to(torch.int64), lambda count: torch.arange(count, device=flat.device))
        )
