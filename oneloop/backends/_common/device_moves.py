"""What the backends share about devices: choosing one by its name, and moving nested batches. No framework."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from ...distributed.world import world
from ...errors import ArgumentError


def choose(
    spec: Any,
    kinds: dict[str, str],
    best_first: tuple[str, ...],
    available: Callable[[str], int],
    framework: str,
    titles: Mapping[str, str] = MappingProxyType({}),
) -> tuple[str, int | None]:
    """(kind, number) for a device's name such as "gpu:1", or None, which means the best there is.

    `kinds`: what users write, and the backend's own word for it; `titles`: the framework's, where it is another.
    Without a number, processes of a machine take turns.
    """
    index = ""
    if spec is None:
        kind = next((kind for kind in best_first if available(kind)), "cpu")
    else:
        name, _, index = str(spec).partition(":")
        if name not in kinds or (index and not index.isdigit()):
            raise ArgumentError(
                f"device={spec!r} is not a device of {framework}; use {', '.join(kinds)}, or one of several by its "
                "number, such as gpu:0"
            )
        kind = kinds[name]
    count = available(kind)
    if count == 0 or (index and int(index) >= count):
        raise ArgumentError(
            f"device={spec!r}, but {framework} sees {count} {titles.get(kind, kind)} device(s) on this machine. Leave "
            "device out to take the best there is, or use device='cpu'."
        )
    if kind in ("cpu", "mps"):
        return kind, None
    return kind, int(index) if index else world().local_rank % count


def map_batch(batch: Any, move: Callable[[Any], Any], from_array: Callable[[np.ndarray], Any]) -> Any:
    """Every array and tensor of a nested batch through a function; `move` returns what is no tensor as it is."""
    if isinstance(batch, Mapping):
        moved = {key: map_batch(value, move, from_array) for key, value in batch.items()}
        kind: Any = type(batch)
        return moved if kind is dict else kind(moved)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_batch(value, move, from_array) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(map_batch(value, move, from_array) for value in batch)
    if isinstance(batch, np.ndarray):
        return from_array(batch) if batch.dtype.kind in "biuf" else batch
    return move(batch)
