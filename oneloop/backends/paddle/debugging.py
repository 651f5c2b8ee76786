"""debug="underflow_overflow": name the layer in which the first non-finite value appears."""

import math
from collections.abc import Callable
from typing import Any

import paddle

from ...errors import NonFiniteError


def _tensors(value: Any) -> list[paddle.Tensor]:
    if isinstance(value, paddle.Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for inner in value for tensor in _tensors(inner)]
    return []


def watch(model: paddle.nn.Layer, step: Callable[[], int]) -> Callable[[], None]:
    """Check the weights and the output of every layer in each forward pass; the value returned takes the watch off."""

    def check(name: str, layer: paddle.nn.Layer, what: str, values: list[paddle.Tensor]) -> None:
        for value in values:
            finite = paddle.isfinite(value)
            if not bool(finite.all()):
                bad = int((~finite).astype("int64").sum())
                raise NonFiniteError(
                    f"step {step()}: {bad} of {math.prod(value.shape)} values in the {what} of layer {name!r} "
                    f"({type(layer).__name__}) are not finite. The layers before it were fine. Look at its inputs, "
                    "lower the learning rate, or use bf16 instead of fp16."
                )

    def hook(name: str) -> Callable[..., None]:
        def after(layer: paddle.nn.Layer, inputs: Any, output: Any) -> None:
            check(name, layer, "weights", [p.detach() for p in layer.parameters(include_sublayers=False)])
            check(name, layer, "output", _tensors(output))

        return after

    layers = model.named_sublayers(include_self=True)
    handles = [layer.register_forward_post_hook(hook(name or "model")) for name, layer in layers]

    def remove() -> None:
        for handle in handles:
            handle.remove()

    return remove
