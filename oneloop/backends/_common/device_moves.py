"""Device functions that the backends share: choosing one by name, and moving nested batches. No framework."""

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
    """(kind, number) for the name of a device such as "gpu:1", or None, which means the best available.

    `kinds`: the names that users write, and the backend's own name; `titles`: the framework's name, if it differs.
    Without a number, the processes of a machine get consecutive devices.
    """
    index = ""
    if spec is None:
        kind = next((kind for kind in best_first if available(kind)), "cpu")
    else:
        name, _, index = str(spec).partition(":")
        if name not in kinds or (index and not index.isdigit()):
            raise ArgumentError(
                f"Invalid device={spec!r} for {framework}: expected {', '.join(kinds)}, optionally with a number, "
                "such as gpu:0"
            )
        kind = kinds[name]
    count = available(kind)
    if count == 0 or (index and int(index) >= count):
        raise ArgumentError(
            f"device={spec!r}, but {framework} finds {count} {titles.get(kind, kind)} device(s) on this machine. "
            "Remove device to use the best available, or use device='cpu'."
        )
    if kind in ("cpu", "mps"):
        return kind, None
    return kind, int(index) if index else world().local_rank % count


def map_batch(batch: Any, move: Callable[[Any], Any], from_array: Callable[[np.ndarray], Any]) -> Any:
    """Apply a function to every array and tensor of a nested batch; `move` returns other values unchanged."""
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
