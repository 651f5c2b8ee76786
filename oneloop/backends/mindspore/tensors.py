"""Conversion of tensors to and from NumPy, and the few operations on them that the core uses."""

from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import ops

from .._common.helpers import map_tensors
from .._common.helpers import split as common_split
from .._common.helpers import total as total

Tensor = ms.Tensor

in_worker = False  # in a worker of a loader, which must not create tensors: see data/worker_pool.py

_HALF = {"fp16": ms.float16, "bf16": ms.bfloat16}


def is_tensor(value: Any) -> bool:
    return isinstance(value, ms.Tensor)


def is_floating(tensor: ms.Tensor) -> bool:
    return tensor.dtype in (ms.float16, ms.float32, ms.float64, ms.bfloat16)


def from_numpy(array: np.ndarray) -> Any:
    """A copy, since MindSpore's kernels may keep a reference to their inputs."""
    return array if in_worker else ms.Tensor(array)


def to_numpy(tensor: ms.Tensor) -> np.ndarray:
    """On the host, as a copy (a host sync): `asnumpy` shares memory that the next update overwrites. bfloat16 becomes
    float32, since NumPy lacks it."""
    if tensor.dtype == ms.bfloat16:
        tensor = tensor.astype(ms.float32)
    return np.array(tensor.asnumpy())


def stack(values: Sequence[ms.Tensor]) -> ms.Tensor:
    return ops.stack(tuple(values))


def detach(value: Any) -> Any:
    """Nested values, detached from the graph."""
    return map_tensors(value, is_tensor, ops.stop_gradient)


def in_half(value: Any, kind: str) -> Any:
    """Nested values with every floating-point tensor in float16 ("fp16") or bfloat16 ("bf16")."""
    return map_tensors(value, is_tensor, lambda tensor: tensor.astype(_HALF[kind]) if is_floating(tensor) else tensor)


def copy_into(target: np.ndarray, tensor: ms.Tensor) -> None:
    """Write a tensor into a NumPy array of the same shape."""
    np.copyto(target, tensor.asnumpy() if tensor.dtype != ms.bfloat16 else to_numpy(tensor))


def scalars(values: Sequence[ms.Tensor]) -> np.ndarray:
    """Scalars in float64."""
    return np.array([float(value.asnumpy().reshape(-1)[0]) for value in values])


def keep(tensors: Sequence[ms.Tensor], copies: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """Copies of tensors as arrays, in those of before if they are not None."""
    kept = [tensor.asnumpy() for tensor in tensors]
    for i, copy in enumerate(copies):
        if copy is None:
            kept[i] = kept[i].copy()
        else:
            np.copyto(copy, kept[i])
            kept[i] = copy
    return kept


def restore_copies(tensors: Sequence[ms.Tensor], copies: Sequence[np.ndarray], where: bool = True) -> None:
    """Write copies into their tensors in place. The flag is on the host here."""
    for tensor, copy in zip(tensors, copies, strict=True):
        if where:
            ops.assign(tensor, ms.Tensor(copy.copy(), tensor.dtype))


def float32_copies(tensors: Sequence[ms.Tensor]) -> list[ms.Tensor]:
    """Copies in float32 on their device."""
    return [
        ms.Parameter(tensor.astype(ms.float32).copy(), name=f"average.{i}", requires_grad=False)
        for i, tensor in enumerate(tensors)
    ]


def lerp(targets: Sequence[ms.Tensor], tensors: Sequence[ms.Tensor], weight: float) -> None:
    """Move each target by this share of its distance to the tensor, in place."""
    for target, tensor in zip(targets, tensors, strict=True):
        ops.assign_add(target, (tensor.astype(ms.float32) - target) * weight)


def assign(targets: Sequence[ms.Tensor], values: Sequence[ms.Tensor | np.ndarray]) -> None:
    """Write values into targets in place; each keeps its type."""
    for target, value in zip(targets, values, strict=True):
        value = ms.Tensor(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value
        ops.assign(target, value.astype(target.dtype).reshape(target.shape))


def equals(tensor: ms.Tensor, copy: np.ndarray) -> bool:
    """Whether a tensor has the values of a copy."""
    return np.array_equal(tensor.asnumpy(), copy)


def version(tensor: ms.Tensor) -> int:
    """MindSpore's tensors do not count what is written to them."""
    return 0


def size(tensor: ms.Tensor) -> int:
    return tensor.nbytes


def is_finite(tensor: ms.Tensor) -> bool:
    """Whether it has neither NaN nor infinity; tensors of integers do not."""
    array = to_numpy(tensor)
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def count_labels(labels: Any, shifted: bool, ignore_index: int | None = -100) -> int:
    """The number of labels that count in the loss. Labels are still on the host: no host sync."""
    if isinstance(labels, ms.Tensor):
        labels = labels.asnumpy()
    if not isinstance(labels, np.ndarray):
        return len(labels) if hasattr(labels, "__len__") else 1
    if labels.dtype.kind == "f":
        return labels.size
    if shifted and labels.ndim > 1:
        labels = labels[..., 1:]
    return int((labels != ignore_index).sum())


def row_losses(logits: ms.Tensor, labels: ms.Tensor, shift: bool, ignore_index: int) -> ms.Tensor:
    """The summed cross entropies of each row, without a graph and on the device."""
    logits = ops.stop_gradient(logits)
    if shift:
        logits, labels = logits[..., :-1, :], labels[..., 1:]
    scores = ops.log_softmax(logits.reshape(-1, logits.shape[-1]).astype(ms.float32))
    losses = ops.nll_loss(scores, labels.reshape(-1).astype(ms.int32), ignore_index=ignore_index, reduction="none")
    return losses.reshape(labels.shape[0], -1).sum(1)


def smoothed_loss(logits: ms.Tensor, labels: ms.Tensor, epsilon: float, shift: bool) -> ms.Tensor:
    """Cross entropy with label smoothing epsilon; labels of -100 are ignored."""
    if shift:
        logits, labels = logits[..., :-1, :], labels[..., 1:]
    # Not ops.cross_entropy: its logarithm is accurate to five digits only.
    scores = ops.log_softmax(logits.reshape(-1, logits.shape[-1]).astype(ms.float32))
    return ops.nll_loss(scores, labels.reshape(-1).astype(ms.int32), ignore_index=-100, label_smoothing=epsilon)


def split(value: Any, parts: int, rows: int) -> list[Any]:
    """A batch split into parts along its first axis; values without that axis are in all parts."""
    return common_split(value, parts, rows, lambda leaf: isinstance(leaf, (ms.Tensor, np.ndarray)))
