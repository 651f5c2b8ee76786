"""Functions around the forward passes of layers, on frameworks whose layers have hooks with keyword arguments."""

from collections.abc import Callable, Iterable
from typing import Any

Before = Callable[[str, Any, tuple, dict], tuple[tuple, dict] | None]
After = Callable[[str, Any, Any], Any]


def watch_layers(
    layers: Iterable[tuple[str, Any]], register_after: Callable[..., Any], before: Before, after: After
) -> Callable[[], None]:
    """Call functions before and after the forward pass of every layer: with its name, the layer and its arguments,
    which they may replace, or its output, for which they may return another. `register_after` is the framework's
    method for hooks after a forward pass. The returned function removes them."""

    def hooks(name: str) -> tuple[Callable, Callable]:
        return (
            lambda layer, args, kwargs: before(name, layer, args, kwargs),
            lambda layer, args, kwargs, output: after(name, layer, output),
        )

    handles = []
    for name, layer in layers:
        first, last = hooks(name)
        handles.append(layer.register_forward_pre_hook(first, with_kwargs=True))
        handles.append(register_after(layer, last, with_kwargs=True))

    def remove() -> None:
        for handle in handles:
            handle.remove()

    return remove
