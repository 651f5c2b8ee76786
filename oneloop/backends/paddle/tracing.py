"""Records what the layers of a model compute: hooks on layers and on gradients, and digests of tensors."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import paddle
from paddle import nn

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

_INTEGERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}  # by bytes


def watch(model: nn.Layer, before: Before, after: After) -> Callable[[], None]:
    """Call functions before and after the forward pass of every layer; see watch_layers."""
    return watch_layers(
        unwrap(model).named_sublayers(include_self=True), nn.Layer.register_forward_post_hook, before, after
    )


def is_floating(value: Any) -> bool:
    return isinstance(value, paddle.Tensor) and value.is_floating_point() and not value.is_selected_rows()


def has_gradient(tensor: paddle.Tensor) -> bool:
    """Whether a gradient of it is going to be computed."""
    return not tensor.stop_gradient


def alias(tensor: paddle.Tensor) -> paddle.Tensor:
    """The same values as another node of the graph: its gradient is that of one use of the tensor."""
    return paddle.assign(tensor)  # reshape to the same shape is no node of its own


def on_gradient(tensor: paddle.Tensor, function: Callable[[paddle.Tensor], Any]) -> None:
    """Call the function with the gradient of a tensor; it may return another one."""
    tensor.register_hook(function)


def dtype_of(tensor: paddle.Tensor) -> str:
    return str(tensor.dtype).rpartition(".")[2]


@contextlib.contextmanager
def computing(tensor: paddle.Tensor) -> Iterator[None]:
    """A context for digests: no graph, no autocast."""
    with paddle.no_grad(), paddle.amp.auto_cast(enable=False):
        yield


def constant(array: np.ndarray, like: paddle.Tensor) -> paddle.Tensor:
    """An array as a tensor on the device of another."""
    return paddle.to_tensor(array, place=like.place)


def digest(
    tensor: paddle.Tensor,
    factors: ProjectionFactors,
    constants: tuple[Any, Any] | None = None,
    only_projections: bool = False,
) -> paddle.Tensor:
    """The digest of a plain tensor, on its device. `constants`: the factors as tensors."""
    with computing(tensor):
        left, right = constants or (constant(rows, tensor) for rows in factors.rows)
        x = tensor.detach().reshape(list(factors.shape))
        x = x if x.dtype == paddle.float64 else x.astype("float32")
        left, right = left.astype(x.dtype), right.astype(x.dtype)
        if not math.prod(x.shape):
            return paddle.zeros([4 + PROJECTIONS])
        sums, bad = ((left @ x) * right).sum(1), paddle.zeros([], x.dtype)
        if not x.place.is_cpu_place() or not math.isfinite(float(sums.sum())):  # elsewhere, looking is a host sync
            finite = paddle.isfinite(x)
            bad = (~finite).astype(x.dtype).sum()
            x = paddle.where(finite, x, paddle.zeros_like(x))
            sums = ((left @ x) * right).sum(1)
        if only_projections:
            return paddle.concat([paddle.zeros([3], x.dtype), sums]).astype("float32")
        first = paddle.stack([paddle.linalg.norm(x), paddle.maximum(-x.min(), x.max()), bad])
        return paddle.concat([first, sums]).astype("float32")


def read(vectors: Sequence[paddle.Tensor]) -> np.ndarray:
    """Vectors of equal lengths as the rows of an array. A host sync."""
    return paddle.stack(list(vectors)).numpy().astype(np.float64) if vectors else np.empty((0, 0))


def repeated(part: paddle.Tensor, shape: list[int]) -> paddle.Tensor:
    """A tensor of this shape with values of a vector, which is repeated if they do not suffice."""
    count, size = math.prod(shape), part.shape[0]
    return (part if count <= size else paddle.tile(part, [-(-count // size)]))[:count].reshape(shape)


def noisy(tensor: paddle.Tensor, noise: tuple[paddle.Tensor, paddle.Tensor], relative: float) -> paddle.Tensor:
    """The tensor with rounding errors, half of which are relative to each value, and half to the norm of its row. Its
    gradient is that of the tensor."""
    with computing(tensor):
        x, factor = tensor.detach().astype("float32"), relative * math.sqrt(0.5)
        size = (x * x).mean(-1, keepdim=True).sqrt() if x.ndim else x
        change = noise[1] * (size * factor) + x * noise[0] * factor
        if not x.place.is_cpu_place() or not bool(paddle.isfinite(size).all()):
            change = paddle.where(paddle.isfinite(change), change, paddle.zeros_like(change))
        change = change.astype(tensor.dtype)
    return tensor + change


def write_noisy(
    target: paddle.Tensor,
    before: paddle.Tensor,
    noise: tuple[paddle.Tensor, paddle.Tensor],
    relative: float,
    absolute: Any,
) -> None:
    """Write a plain tensor with errors relative to each value, and errors of the same size for all."""
    with computing(target):
        first, second = (repeated(part, list(before.shape)) for part in noise)
        x = before.detach().astype("float32")
        write(target, x + x * first * relative + second * absolute)


def gradient_of(parameter: paddle.Tensor) -> paddle.Tensor | None:
    gradient = parameter.grad
    return None if gradient is None or gradient.is_selected_rows() else gradient


def copy(tensor: paddle.Tensor) -> paddle.Tensor:
    return tensor.detach().clone()


def write(target: paddle.Tensor, value: paddle.Tensor) -> None:
    """Write values into a plain tensor in place."""
    with paddle.no_grad():
        paddle.assign(value.astype(target.dtype), target)


def difference(tensor: paddle.Tensor, before: paddle.Tensor) -> paddle.Tensor:
    with paddle.no_grad():
        return tensor.detach().astype("float32") - before.astype("float32")


def spread(update: paddle.Tensor, gradients: paddle.Tensor, noise: paddle.Tensor) -> paddle.Tensor:
    """How much an update may change by noise of this size in each gradient, of which the sampled ones are given."""
    with computing(update):
        return common.spread_of(update, gradients.detach().astype("float32"), noise)


def moments(optimizer: Any, model: nn.Layer) -> dict[str, dict[str, paddle.Tensor]]:
    """State of the optimizer by parameter and common name: what has the shape of the parameter."""
    shapes = {name: p.shape for name, p in unwrap(model).named_parameters()}
    return common.moments_by_shape(weights.optimizer_state(optimizer, model)[0], shapes, LAYOUT.words)


def same_bytes(one: paddle.Tensor, other: paddle.Tensor) -> bool:
    """Whether two tensors have the same bytes; NaNs may be equal. A host sync."""
    if list(one.shape) != list(other.shape) or one.dtype != other.dtype:
        return False
    return not math.prod(one.shape) or bool((_bits(one) == _bits(other)).all())


def fingerprint(tensor: paddle.Tensor) -> paddle.Tensor:
    """Two integers that depend on every bit of a tensor, on its device."""
    with computing(tensor):
        numbers = partial(paddle.arange, dtype="int64")
        return paddle.stack(common.fold(_bits(tensor), lambda part: part.astype("int64"), numbers))


def _bits(tensor: paddle.Tensor) -> paddle.Tensor:
    flat = tensor.detach().reshape([-1])
    return flat.view(_INTEGERS[flat.element_size()])
