"""debug="underflow_overflow": report the layer in which the first non-finite value appears."""

import math
from collections.abc import Callable
from typing import Any

import paddle

from .._common import nan_hooks


def _is_floating(value: Any) -> bool:
    return isinstance(value, paddle.Tensor) and value.is_floating_point()


def _count(value: paddle.Tensor) -> tuple[int, int]:
    finite = paddle.isfinite(value)
    return (0 if bool(finite.all()) else int((~finite).astype("int64").sum())), math.prod(value.shape)


def watch(model: paddle.nn.Layer, step: Callable[[], int]) -> Callable[[], None]:
    """Check every layer in each forward pass; the returned function removes the hooks."""
    return nan_hooks.watch_layers(
        model.named_sublayers(include_self=True),
        step,
        listen=lambda layer, function: layer.register_forward_post_hook(function),
        weights_of=lambda layer: [p.detach() for p in layer.parameters(include_sublayers=False)],
        is_floating=_is_floating,
        count=_count,
        advice="Check its inputs, lower the learning rate, or use bf16 instead of fp16",
    )
