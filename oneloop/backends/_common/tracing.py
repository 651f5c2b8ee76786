"""Functions around the forward passes of layers, on frameworks whose layers have hooks with keyword arguments, and what
else the recording of steps shares."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...formats.digests import FIRST, PROJECTIONS

SAMPLED = 1 << 17  # values of a large tensor, for what is only estimated
BLOCK, FACTOR = 1 << 17, 0x9E3779B97F4A7C1

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


# -- pieces of tensors that are not divided over processes


def piece(tensor: Any) -> tuple[Any, list[int], list[int]]:
    """What this process has of a tensor: a plain tensor, the index of its first element along each axis, and the full
    shape."""
    return tensor, [0] * len(tensor.shape), list(tensor.shape)


def output_piece(layer: Any, tensor: Any) -> tuple[Any, list[int], list[int]]:
    """The same for an output of a layer."""
    return piece(tensor)


# -- numbers, on tensors of any framework and arrays


def sampled(tensor: Any) -> Any:
    """The values of a tensor in a row; of a large one, every so many: an odd number, so that no column is left out."""
    every = max(1, math.prod(tensor.shape) // SAMPLED) | 1
    return tensor.reshape([-1])[::every]


def spread_of(update: Any, gradients: Any, noise: Any) -> Any:
    """How much an update may change by noise of this size in each gradient, of which some are given: by its share of
    small gradients, of which not even the sign is known."""
    change = sampled(update)
    share = noise / (abs(gradients) + noise).clip(min=1e-38)
    return ((2.0 * change * share) ** 2).sum() ** 0.5 * (math.prod(update.shape) / max(1, change.shape[0])) ** 0.5


def rms_of(vector: Any, others: Sequence[Any], count: int) -> Any:
    """From the digest of a tensor and those of its repetitions with noise: the noise of one value, where it is."""
    places = slice(FIRST, FIRST + PROJECTIONS)
    squares = sum(((other[places] - vector[places]) ** 2).mean() for other in others)
    return (squares / (len(others) * max(1, count))) ** 0.5


def fold(words: Any, widen: Callable[[Any], Any], numbers: Callable[[int], Any]) -> list[Any]:
    """Two numbers that depend on every bit and the place of each of these integers, which `widen` makes 64 bits long.
    `numbers(n)`: 0 to n-1. In blocks: large tensors in between cost more than the arithmetic."""
    size, found = int(words.shape[0]), [numbers(1).sum()] * 2
    for block, start in enumerate(range(0, size, BLOCK)):
        wide = widen(words[start : start + BLOCK])
        width = math.gcd(len(wide), 1024)
        rows = wide.reshape([len(wide) // width, width])
        for i, each in enumerate((rows.sum(0), rows.sum(1))):
            # Factors are odd, so that none of them takes a bit away.
            total = (each * (numbers(len(each)) * 2 + 1) * FACTOR).sum()
            found[i] = found[i] + total * (2 * block + 1)
    return found


def moments_by_shape(
    state: Mapping[str, Any], shapes: Mapping[str, Sequence[int]], words: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """From the state of an optimizer, "layer.weight:word": by parameter and common name, what has its shape."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in state.items():
        name, word = key.rsplit(":", 1)
        if word in words and list(value.shape) == list(shapes.get(name, ())):
            found.setdefault(name, {})[words[word]] = value
    return found
