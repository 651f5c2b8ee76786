"""Projections that GaLore and APOLLO keep in their state as objects: to plain data for a checkpoint, and back."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from ...errors import CheckpointError
from ...formats.schema import shown

# Classes by module. A checkpoint can name no others.
_CLASSES = {
    "galore_torch.galore_projector": "GaLoreProjector",
    "apollo_torch.svd_projector": "GaLoreProjector",
    "apollo_torch.random_projector": "GradientProjector",
}
_ATTRIBUTES = {"rank", "verbose", "update_proj_gap", "scale", "ortho_matrix", "proj_type", "seed", "svd_count"}


def is_projector(value: Any) -> bool:
    module = type(value).__module__
    return _CLASSES.get(module) == type(value).__name__ and module in sys.modules


def packed(value: Any, pack: Callable[[Any, str], Any]) -> dict[str, Any]:
    """Plain data; `pack` does the same to an attribute, given by its name."""
    attributes = {name: pack(inner, name) for name, inner in vars(value).items()}
    return {"projector": {"module": type(value).__module__, "attributes": attributes}}


def unpacked(data: Any, unpack: Callable[[Any], Any], source: str) -> Any:
    """A projector from the data of `packed`."""
    module = data.get("module") if isinstance(data, dict) else None
    attributes = data.get("attributes") if isinstance(data, dict) else None
    if module not in _CLASSES or not isinstance(attributes, dict) or not set(attributes) <= _ATTRIBUTES:
        raise CheckpointError(f"the optimizer state in {source} has a projection that cannot be read: {shown(data)}")
    cls = getattr(import_module(module), _CLASSES[module])
    return _made(cls, {name: unpack(inner) for name, inner in attributes.items()})


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """A projector with the results of the function in place of its attributes."""
    return _made(type(value), {name: function(inner) for name, inner in vars(value).items()})


def _made(cls: Any, attributes: dict[str, Any]) -> Any:
    made = cls.__new__(cls)
    vars(made).update(attributes)
    return made
