"""Records what the layers of a model compute: hooks on layers and on gradients, and digests of tensors."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from ...formats.digests import PROJECTIONS, ProjectionFactors
from .._common import tracing as common
from .._common.tracing import After, Before, watch_layers
from .._common.tracing import output_piece as output_piece
from .._common.tracing import piece as piece
from .._common.tracing import rms_of as rms_of
from .._common.tracing import sampled as sampled
from . import weights
from .models import unwrap
from .optimizer_layout import LAYOUT
from .tensors import is_floating as _is_floating
from .tensors import to_numpy


def watch(model: nn.Cell, before: Before, after: After) -> Callable[[], None]:
    """Call functions before and after the forward pass of every layer; see watch_layers."""
    return watch_layers(unwrap(model).cells_and_names(), nn.Cell.register_forward_hook, before, after)


def is_floating(value: Any) -> bool:
    return isinstance(value, ms.Tensor) and _is_floating(value)


def has_gradient(tensor: ms.Tensor) -> bool:
    """Whether a gradient of it is going to be computed."""
    return bool(tensor._requires_grad)


def alias(tensor: ms.Tensor) -> ms.Tensor:
    """The same values as another node of the graph: its gradient is that of one use of the tensor."""
    return ops.reshape(tensor, tensor.shape)


def on_gradient(tensor: ms.Tensor, function: Callable[[ms.Tensor], Any]) -> None:
    """Call the function with the gradient of a tensor; it may return another one."""
    tensor.register_hook(function)


def dtype_of(tensor: ms.Tensor) -> str:
    return str(tensor.dtype).lower()


@contextlib.contextmanager
def computing(tensor: ms.Tensor) -> Iterator[None]:
    """A context for digests: no graph."""
    with ms.no_grad() if hasattr(ms, "no_grad") else contextlib.nullcontext():
        yield


def constant(array: np.ndarray, like: ms.Tensor) -> ms.Tensor:
    """An array as a tensor."""
    return ms.Tensor(array)


def digest(
    tensor: ms.Tensor,
    factors: ProjectionFactors,
    constants: tuple[Any, Any] | None = None,
    only_projections: bool = False,
) -> Any:
    """The digest of a plain tensor. On a CPU, where reading a tensor costs nothing, NumPy computes it, and nothing is
    recorded for the gradient."""
    if ms.get_context("device_target") == "CPU":
        return _digest_on_host(to_numpy(tensor), factors, only_projections)
    left, right = constants or (constant(rows, tensor) for rows in factors.rows)
    x = ops.stop_gradient(tensor).reshape(factors.shape).astype(ms.float32)
    if not math.prod(x.shape):
        return ops.zeros((4 + PROJECTIONS,), ms.float32)
    finite = ops.isfinite(x)
    bad = ops.logical_not(finite).astype(ms.float32).sum()
    x = ops.where(finite, x, ops.zeros_like(x))
    first = [(x * x).sum().sqrt().reshape(1), x.abs().max().reshape(1), bad.reshape(1)]
    return ops.cat([*first, (ops.matmul(left, x) * right).sum(1)])


def _digest_on_host(array: np.ndarray, factors: ProjectionFactors, only_projections: bool) -> np.ndarray:
    x = array.reshape(factors.shape)
    x = x if x.dtype == np.float64 else x.astype(np.float32)
    if not x.size:
        return np.zeros(4 + PROJECTIONS)
    left, right = factors.rows

    def sums_of(values: np.ndarray) -> np.ndarray:
        return ((left.astype(values.dtype) @ values) * right.astype(np.float64)).sum(1)

    with np.errstate(invalid="ignore"):
        bad, sums = 0, sums_of(x)
    if not math.isfinite(sums.sum()):
        finite = np.isfinite(x)
        bad = x.size - np.count_nonzero(finite)
        x = np.where(finite, x, np.zeros((), x.dtype))
        sums = sums_of(x)
    if only_projections:
        return np.concatenate([np.zeros(3), sums])
    return np.array([float(np.linalg.norm(x)), max(-x.min(), x.max()), bad, *sums])


def read(vectors: Sequence[Any]) -> np.ndarray:
    """Vectors of equal lengths as the rows of an array. A host sync."""
    if not vectors:
        return np.empty((0, 0))
    if all(isinstance(vector, np.ndarray) for vector in vectors):
        return np.stack(list(vectors)).astype(np.float64)
    return ops.stack(list(vectors)).asnumpy().astype(np.float64)


def repeated(part: ms.Tensor, shape: list[int]) -> ms.Tensor:
    """A tensor of this shape with values of a vector, which is repeated if they do not suffice."""
    count, size = math.prod(shape), part.shape[0]
    return (part if count <= size else ops.tile(part, (-(-count // size),)))[:count].reshape(shape)


def noisy(tensor: ms.Tensor, noise: tuple[ms.Tensor, ms.Tensor], relative: float) -> ms.Tensor:
    """The tensor with rounding errors, half of which are relative to each value, and half to the norm of its row. Its
    gradient is that of the tensor."""
    x, factor = ops.stop_gradient(tensor).astype(ms.float32), relative * math.sqrt(0.5)
    size = ops.sqrt((x * x).mean(-1, keep_dims=True)) if len(x.shape) else x
    change = noise[1] * (size * factor) + x * noise[0] * factor
    change = ops.where(ops.isfinite(change), change, ops.zeros_like(change))
    return tensor + ops.stop_gradient(change.astype(tensor.dtype))


def write_noisy(
    target: ms.Tensor, before: ms.Tensor, noise: tuple[ms.Tensor, ms.Tensor], relative: float, absolute: Any
) -> None:
    """Write a plain tensor with errors relative to each value, and errors of the same size for all."""
    first, second = (repeated(part, list(before.shape)) for part in noise)
    x = ops.stop_gradient(before).astype(ms.float32)
    write(target, x + x * first * relative + second * float(absolute))


def gradient_of(parameter: ms.Parameter) -> ms.Tensor | None:
    return getattr(parameter, "grad", None)


def copy(tensor: ms.Tensor) -> ms.Tensor:
    return ms.Tensor(np.array(tensor.asnumpy())) if tensor.dtype != ms.bfloat16 else tensor.copy()


def write(target: ms.Tensor, value: ms.Tensor) -> None:
    """Write values into a tensor in place."""
    ops.assign(target, value.astype(target.dtype))


def difference(tensor: ms.Tensor, before: ms.Tensor) -> ms.Tensor:
    return ops.stop_gradient(tensor).astype(ms.float32) - before.astype(ms.float32)


def spread(update: ms.Tensor, gradients: ms.Tensor, noise: Any) -> Any:
    """How much an update may change by noise of this size in each gradient, of which the sampled ones are given."""
    change, own = (to_numpy(tensor).astype(np.float64) for tensor in (update, gradients))
    return ms.Tensor(np.float32(common.spread_of(change, own, float(noise))))


def moments(optimizer: Any, model: nn.Cell) -> dict[str, dict[str, Any]]:
    """State of the optimizer by parameter and common name: what has the shape of the parameter."""
    shapes = {name: p.shape for name, p in unwrap(model).parameters_and_names()}
    found = common.moments_by_shape(weights.optimizer_state(optimizer, model)[0], shapes, LAYOUT.words)
    return {
        name: {word: value if isinstance(value, ms.Tensor) else ms.Tensor(value) for word, value in state.items()}
        for name, state in found.items()
    }


def same_bytes(one: ms.Tensor, other: ms.Tensor) -> bool:
    """Whether two tensors have the same bytes; NaNs may be equal. A host sync."""
    first, second = to_numpy(one), to_numpy(other)
    return one.dtype == other.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()


def fingerprint(tensor: ms.Tensor) -> np.ndarray:
    """Two integers that depend on every bit of a tensor."""
    content = to_numpy(tensor).tobytes()
    words = np.frombuffer(content, np.int32 if len(content) % 4 == 0 else np.uint8)
    with np.errstate(over="ignore"):
        return np.array(common.fold(words, lambda part: part.astype(np.int64), np.arange))
