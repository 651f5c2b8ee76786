"""Conversion of tensors to and from NumPy, and the few operations on them that the core uses."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from .._common.helpers import map_tensors
from .._common.helpers import split as common_split
from .parallel import local

Tensor = torch.Tensor


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def from_numpy(array: np.ndarray) -> torch.Tensor:
    """Shares memory with the array if possible."""
    return torch.from_numpy(array) if array.flags.writeable else torch.tensor(array)


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """On the host, without a graph (a host sync); bfloat16 becomes float32, since NumPy lacks it. One that is divided
    is gathered: a collective."""
    tensor = tensor.detach()
    gather: Any = getattr(tensor, "full_tensor", None)
    if gather is not None:
        tensor = gather()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return tensor.cpu().numpy()


def stack(values: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack(tuple(values))


def detach(value: Any) -> Any:
    """Nested values, detached from the graph."""
    return map_tensors(value, is_tensor, torch.Tensor.detach)


def in_half(value: Any, kind: str) -> Any:
    """Nested values with every floating-point tensor in float16 ("fp16") or bfloat16 ("bf16")."""
    dtype = torch.float16 if kind == "fp16" else torch.bfloat16
    return map_tensors(value, is_tensor, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


def copy_into(target: np.ndarray, tensor: torch.Tensor) -> None:
    """Write a tensor into a NumPy array of the same shape, with the framework's own (threaded) copy."""
    torch.from_numpy(target).copy_(tensor.detach())


def scalars(values: Sequence[torch.Tensor]) -> np.ndarray:
    """Scalars in float64, with a single host sync."""
    if not values:
        return np.empty(0)
    # float64 on the host: not every device has it.
    return torch.stack([value.detach().reshape(()) for value in values]).cpu().double().numpy()


def total(values: np.ndarray) -> float:
    """The sum of the values. torch adds in another order than NumPy, so the last digits of logged losses depend on
    it."""
    return float(torch.from_numpy(values).sum())


@torch.no_grad()
def keep(tensors: Sequence[torch.Tensor], copies: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    """Copies of tensors on their device, in the copies of before if they are not None."""
    kept = [torch.empty_like(tensor) if copy is None else copy for tensor, copy in zip(tensors, copies, strict=True)]
    if kept:
        torch._foreach_copy_([local(copy) for copy in kept], [local(tensor) for tensor in tensors])
    return kept


@torch.no_grad()
def restore_copies(tensors: Sequence[torch.Tensor], copies: Sequence[torch.Tensor], where: Any = True) -> None:
    """Write copies into their tensors, if the flag `where` is set; it may be on the device, and is not read."""
    for tensor, copy in zip(tensors, copies, strict=True):
        if where is True:
            tensor.copy_(copy)
        elif tensor.shape == copy.shape:
            tensor.copy_(torch.where(where.to(tensor.device), copy, tensor))


@torch.no_grad()
def float32_copies(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies in float32 on their device."""
    return [tensor.detach().to(torch.float32, copy=True) for tensor in tensors]


@torch.no_grad()
def lerp(targets: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], weight: float) -> None:
    """Move each target by this share of its distance to the tensor, in place."""
    values = [local(tensor).detach().to(torch.float32) for tensor in tensors]
    torch._foreach_lerp_([local(target) for target in targets], values, weight)


@torch.no_grad()
def assign(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Write values into targets in place; each keeps its type."""
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)


def equals(tensor: torch.Tensor, copy: torch.Tensor) -> bool:
    """Whether a tensor has the values of a copy. A host sync."""
    return torch.equal(tensor, copy)


def version(tensor: torch.Tensor) -> int:
    """The tensor's version. Kernels of batch norms do not change it, since they do not declare that they write to
    their statistics."""
    return tensor._version


def size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether it has neither NaN nor infinity; tensors of integers do not. A host sync."""
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())


def count_labels(labels: Any, shifted: bool, ignore_index: int | None = -100) -> int:
    """The number of labels that count in the loss; all of them if ignore_index is None.

    Labels are still on the host: no host sync.
    """
    if not isinstance(labels, (torch.Tensor, np.ndarray)):
        return len(labels) if hasattr(labels, "__len__") else 1
    labels = torch.as_tensor(labels)
    if labels.is_floating_point():
        return labels.numel()
    if shifted and labels.ndim > 1:
        labels = labels[..., 1:]
    if ignore_index is None:
        return labels.numel()
    return int((labels != ignore_index).sum())


@torch.no_grad()
def row_losses(logits: torch.Tensor, labels: torch.Tensor, shift: bool, ignore_index: int) -> torch.Tensor:
    """The summed cross entropies of each row, without a graph and on the device."""
    if shift:  # the labels, which are small: slices of the logits would be copied
        labels = torch.nn.functional.pad(labels[..., 1:], (0, 1), value=ignore_index)
    losses = torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).float(), labels.reshape(-1), ignore_index=ignore_index, reduction="none"
    )
    return losses.reshape(len(labels), -1).sum(1)


def smoothed_loss(logits: torch.Tensor, labels: torch.Tensor, epsilon: float, shift: bool) -> torch.Tensor:
    """Cross entropy with label smoothing epsilon; labels of -100 are ignored."""
    if shift:
        logits, labels = logits[..., :-1, :], labels[..., 1:]
    return torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).float(), labels.reshape(-1), label_smoothing=epsilon, ignore_index=-100
    )


def split(value: Any, parts: int, rows: int) -> list[Any]:
    """A batch split into parts along its first axis; values without that axis are in all parts."""
    return common_split(value, parts, rows, lambda leaf: isinstance(leaf, (torch.Tensor, np.ndarray)))
