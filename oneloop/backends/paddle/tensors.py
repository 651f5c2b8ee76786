"""Conversion of tensors to and from NumPy, and the few operations on them that the core uses."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle

from ...errors import DataError
from .._common.helpers import map_tensors
from .._common.helpers import split as common_split
from .._common.helpers import total as total

Tensor = paddle.Tensor

_HOST = paddle.CPUPlace()


def is_tensor(value: Any) -> bool:
    return isinstance(value, paddle.Tensor)


def from_numpy(array: np.ndarray) -> paddle.Tensor:
    """On the host; shares memory with the array if possible. Batches are moved to the device later.

    Not with DLPack: Paddle frees such tensors under its own lock while waiting for the GIL, which deadlocks if an
    executor thread does so while this one creates the next tensor.
    """
    if array.dtype.kind == "u" and array.itemsize > 1:
        array = _signed(array)
    if array.flags.writeable and array.flags.c_contiguous:
        return paddle.Tensor(array, place=_HOST, zero_copy=True)
    return paddle.to_tensor(array, place=_HOST)


def _signed(array: np.ndarray) -> np.ndarray:
    """Paddle interprets uint16 as bfloat16, and does not support larger unsigned integers."""
    if array.itemsize == 8 and array.size and array.max() > np.iinfo(np.int64).max:
        raise DataError(
            f"Paddle does not support integers as large as {array.max()}: expected at most {np.iinfo(np.int64).max}"
        )
    return array.astype(np.int32 if array.itemsize == 2 else np.int64)


def to_numpy(tensor: paddle.Tensor) -> np.ndarray:
    """On the host, without a graph (a host sync); bfloat16 becomes float32, since NumPy lacks it."""
    tensor = tensor.detach()
    return (tensor.astype("float32") if tensor.dtype == paddle.bfloat16 else tensor).numpy()


def stack(values: Sequence[paddle.Tensor]) -> paddle.Tensor:
    return paddle.stack(list(values))


def detach(value: Any) -> Any:
    """Nested values, detached from the graph."""
    return map_tensors(value, is_tensor, paddle.Tensor.detach)


def in_half(value: Any, kind: str) -> Any:
    """Nested values with every floating-point tensor in float16 ("fp16") or bfloat16 ("bf16")."""
    dtype = paddle.float16 if kind == "fp16" else paddle.bfloat16
    return map_tensors(value, is_tensor, lambda tensor: tensor.astype(dtype) if tensor.is_floating_point() else tensor)


def copy_into(target: np.ndarray, tensor: paddle.Tensor) -> None:
    """Write a tensor into a NumPy array of the same shape."""
    here = tensor.place.is_cpu_place() and tensor.dtype != paddle.bfloat16
    np.copyto(target, np.from_dlpack(tensor.detach()) if here else to_numpy(tensor))


def scalars(values: Sequence[paddle.Tensor]) -> np.ndarray:
    """Scalars in float64, with a single host sync."""
    if not values:
        return np.empty(0)
    alike = [value.detach() if value.shape == [] else value.detach().reshape([]) for value in values]
    return to_numpy(paddle.stack(alike)).astype(np.float64)


@paddle.no_grad()
def keep(tensors: Sequence[paddle.Tensor], copies: Sequence[paddle.Tensor | None]) -> list[paddle.Tensor]:
    """Copies of tensors on their device, in the copies of before if they are not None."""
    kept = [paddle.empty_like(tensor) if copy is None else copy for tensor, copy in zip(tensors, copies, strict=True)]
    restore_copies(kept, tensors)
    return kept


@paddle.no_grad()
def restore_copies(tensors: Sequence[paddle.Tensor], copies: Sequence[paddle.Tensor], where: bool = True) -> None:
    """Write copies into their tensors. The flag is on the host here: see the engine."""
    for tensor, copy in zip(tensors, copies, strict=True):
        if where:
            tensor.copy_(copy, False)


@paddle.no_grad()
def float32_copies(tensors: Sequence[paddle.Tensor]) -> list[paddle.Tensor]:
    """Copies in float32 on their device."""
    return [tensor.detach().clone().astype(paddle.float32) for tensor in tensors]


@paddle.no_grad()
def lerp(targets: Sequence[paddle.Tensor], tensors: Sequence[paddle.Tensor], weight: float) -> None:
    """Move each target by this share of its distance to the tensor, in place."""
    for target, tensor in zip(targets, tensors, strict=True):
        target.lerp_(tensor.detach().astype(paddle.float32), weight)


@paddle.no_grad()
def assign(targets: Sequence[paddle.Tensor], values: Sequence[paddle.Tensor]) -> None:
    """Write values into targets in place; each keeps its type."""
    for target, value in zip(targets, values, strict=True):
        target.copy_(value.astype(target.dtype), False)


def equals(tensor: paddle.Tensor, copy: paddle.Tensor) -> bool:
    """Whether a tensor has the values of a copy. A host sync."""
    return tensor.shape == copy.shape and bool((tensor == copy).all())


def version(tensor: paddle.Tensor) -> int:
    """The tensor's version, which the kernels of batch norms do not change."""
    return tensor.inplace_version


def size(tensor: paddle.Tensor) -> int:
    return math.prod(tensor.shape) * tensor.element_size()


def is_finite(tensor: paddle.Tensor) -> bool:
    """Whether it has neither NaN nor infinity; tensors of integers do not. A host sync."""
    return not tensor.is_floating_point() or bool(paddle.isfinite(tensor).all())


def count_labels(labels: Any, shifted: bool, ignore_index: int | None = -100) -> int:
    """The number of labels that count in the loss; all of them if ignore_index is None.

    Labels are still on the host: no host sync.
    """
    if not isinstance(labels, (paddle.Tensor, np.ndarray)):
        return len(labels) if hasattr(labels, "__len__") else 1
    if not isinstance(labels, np.ndarray):
        if labels.is_floating_point():
            return math.prod(labels.shape)
        labels = to_numpy(labels)
    if labels.dtype.kind == "f":
        return labels.size
    if shifted and labels.ndim > 1:
        labels = labels[..., 1:]
    if ignore_index is None:
        return labels.size
    return int(np.count_nonzero(labels != ignore_index))


@paddle.no_grad()
def row_losses(logits: paddle.Tensor, labels: paddle.Tensor, shift: bool, ignore_index: int) -> paddle.Tensor:
    """The summed cross entropies of each row, without a graph and on the device."""
    if shift:
        logits, labels = logits[..., :-1, :], labels[..., 1:]
    losses = paddle.nn.functional.cross_entropy(
        logits.detach().reshape([-1, logits.shape[-1]]).astype("float32"),
        labels.reshape([-1]),
        ignore_index=ignore_index,
        reduction="none",
    )
    return losses.reshape([len(labels), -1]).sum(1)


def smoothed_loss(logits: paddle.Tensor, labels: paddle.Tensor, epsilon: float, shift: bool) -> paddle.Tensor:
    """Cross entropy with label smoothing epsilon; labels of -100 are ignored."""
    if shift:
        logits, labels = logits[..., :-1, :], labels[..., 1:]
    logits, labels = logits.reshape([-1, logits.shape[-1]]).astype("float32"), labels.reshape([-1])
    chances = paddle.nn.functional.log_softmax(logits, axis=-1)
    counts = (labels != -100).astype("float32")
    # An ignored label has no class; use the first one with the weight zero.
    own = paddle.take_along_axis(chances, paddle.where(labels == -100, paddle.zeros_like(labels), labels)[:, None], 1)
    losses = -(1 - epsilon) * own.squeeze(1) - epsilon * chances.mean(axis=-1)
    return (losses * counts).sum() / counts.sum()


def split(value: Any, parts: int, rows: int) -> list[Any]:
    """A batch split into parts along its first axis; values without that axis are in all parts."""
    return common_split(value, parts, rows, lambda leaf: isinstance(leaf, (paddle.Tensor, np.ndarray)))
