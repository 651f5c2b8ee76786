"""debug="underflow_overflow": report the layer in which the first non-finite value appears. No framework."""

from collections.abc import Callable, Iterable
from typing import Any

from ...errors import NonFiniteError

ADVICE = "Check its inputs, or lower the learning rate"


def tensors_in(value: Any, is_floating: Callable[[Any], bool]) -> list[Any]:
    """The floating-point tensors of a layer's output, however nested."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for inner in value for tensor in tensors_in(inner, is_floating)]
    return [value] if is_floating(value) else []


def watch_layers(
    layers: Iterable[tuple[str, Any]],
    step: Callable[[], int],
    *,
    listen: Callable[[Any, Callable[..., None]], Any],
    weights_of: Callable[[Any], list[Any]],
    is_floating: Callable[[Any], bool],
    count: Callable[[Any], tuple[int, int]],
    advice: str = ADVICE,
) -> Callable[[], None]:
    """Check the weights and the output of every layer in each forward pass; the returned function removes the hooks.

    `listen(layer, function)` calls the function after the layer and returns a handle with `remove()`; `count(tensor)`
    returns how many of its values are not finite, and how many there are. It is a host sync for each layer.
    """

    def check(name: str, layer: Any, what: str, values: list[Any]) -> None:
        for value in values:
            bad, size = count(value)
            if bad:
                raise NonFiniteError(
                    f"step {step()}: {bad} of {size} values in the {what} of layer {name!r} ({type(layer).__name__}) "
                    f"are not finite. The layers before it are finite. {advice}."
                )

    def hook(name: str) -> Callable[..., None]:
        def after(layer: Any, inputs: Any, output: Any) -> None:
            check(name, layer, "weights", weights_of(layer))
            check(name, layer, "output", tensors_in(output, is_floating))

        return after

    handles = [listen(layer, hook(name or "model")) for name, layer in layers]

    def remove() -> None:
        for handle in handles:
            handle.remove()

    return remove
