"""Conversion of tensors to and from NumPy. On a CPU NumPy does the small operations that the core uses: mindtorch lacks
some of their kernels, and its float() of a tensor is rounded to five digits."""

import ctypes
from collections.abc import Sequence
from typing import Any

import mindtorch
import numpy as np
import torch

from .._common.helpers import total
from ..torch.tensors import Tensor, detach, in_half, is_tensor, row_losses, smoothed_loss, split

__all__ = [
    "Tensor",
    "assign",
    "copy_into",
    "count_labels",
    "detach",
    "equals",
    "float32_copies",
    "from_numpy",
    "in_half",
    "is_finite",
    "is_tensor",
    "keep",
    "lerp",
    "memory_of",
    "restore_copies",
    "row_losses",
    "scalars",
    "size",
    "smoothed_loss",
    "split",
    "stack",
    "to_numpy",
    "total",
    "version",
    "write",
]


def from_numpy(array: np.ndarray) -> Tensor:
    return torch.tensor(np.ascontiguousarray(array))


def to_numpy(tensor: Tensor) -> np.ndarray:
    """On the host, without a graph (a host sync); bfloat16 becomes float32, since NumPy lacks it."""
    array = tensor.asnumpy()
    return array.astype(np.float32) if tensor.dtype == torch.bfloat16 else array


def memory_of(tensor: Tensor) -> np.ndarray:
    """A CPU tensor as an array over the same memory: writing to it changes the tensor."""
    dtype = np.dtype(mindtorch.dtype2np[tensor.dtype])
    size = int(np.prod(tensor.shape)) * dtype.itemsize
    if size == 0:
        return np.empty(tuple(tensor.shape), dtype)
    held: Any = (ctypes.c_char * size).from_address(tensor.data_ptr())
    return np.frombuffer(held, dtype=dtype).reshape(tuple(tensor.shape))


def write(tensor: Tensor, array: Any) -> None:
    """Set new values of a tensor in place; it keeps its dtype and device."""
    if tensor.device.type == "cpu":
        memory_of(tensor)[...] = array
    else:
        tensor.copy_(torch.tensor(np.asarray(array)).to(tensor.device).to(tensor.dtype))


def stack(values: Sequence[Tensor]) -> Tensor:
    return from_numpy(np.stack([to_numpy(value) for value in values]))


def copy_into(target: np.ndarray, tensor: Tensor) -> None:
    """Write a tensor into a NumPy array of the same shape."""
    np.copyto(target, to_numpy(tensor))


def scalars(values: Sequence[Tensor]) -> np.ndarray:
    """Scalars in float64."""
    return np.array([to_numpy(value).reshape(()) for value in values], dtype=np.float64)


def keep(tensors: Sequence[Tensor], copies: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """Copies of tensors as arrays."""
    return [to_numpy(tensor).copy() for tensor in tensors]


def restore_copies(tensors: Sequence[Tensor], copies: Sequence[np.ndarray], where: bool = True) -> None:
    """Write copies into their tensors in place. The flag is on the host here."""
    for tensor, copy in zip(tensors, copies, strict=True):
        if where:
            write(tensor, copy)


def float32_copies(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    """Copies in float32, as arrays."""
    return [to_numpy(tensor).astype(np.float32) for tensor in tensors]


def lerp(targets: Sequence[np.ndarray], tensors: Sequence[Tensor], weight: float) -> None:
    """Move each target by this share of its distance to the tensor, in place."""
    for target, tensor in zip(targets, tensors, strict=True):
        target += np.float32(weight) * (to_numpy(tensor).astype(np.float32) - target)


def assign(targets: Sequence[Any], values: Sequence[np.ndarray]) -> None:
    """Write values into targets in place; each keeps its type."""
    for target, value in zip(targets, values, strict=True):
        if isinstance(target, np.ndarray):
            np.copyto(target, value)
        else:
            write(target, value)


def equals(tensor: Tensor, copy: np.ndarray) -> bool:
    """Whether a tensor has the values of a copy."""
    return np.array_equal(to_numpy(tensor), copy)


def version(tensor: Tensor) -> int:
    """MindSpore's tensors do not count what is written to them."""
    return 0


def size(tensor: Tensor) -> int:
    return to_numpy(tensor).nbytes


def is_finite(tensor: Tensor) -> bool:
    """Whether it has neither NaN nor infinity; tensors of integers do not."""
    array = to_numpy(tensor)
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def count_labels(labels: Any, shifted: bool, ignore_index: int | None = -100) -> int:
    """The number of labels that count in the loss; all of them if ignore_index is None."""
    if not isinstance(labels, (Tensor, np.ndarray)):
        return len(labels) if hasattr(labels, "__len__") else 1
    array = labels if isinstance(labels, np.ndarray) else to_numpy(labels)
    if array.dtype.kind == "f":
        return array.size
    if shifted and array.ndim > 1:
        array = array[..., 1:]
    return array.size if ignore_index is None else int((array != ignore_index).sum())
