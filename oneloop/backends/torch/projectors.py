"""GaLore and APOLLO, which project the gradients of some layers to a lower rank: their options, and the projections
that they keep in their state as objects, to plain data for a checkpoint and back."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import nn

from ...errors import CheckpointError
from ...formats.schema import format_short
from ...optim import catalog
from .optimizers import class_of
from .target_groups import TargetGroups, linear_weights

# Options of the groups whose gradients are projected, with the usual defaults.
_GALORE = {"rank": 128, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"}
_APOLLO = _GALORE | {"proj": "random", "scale_type": "channel", "scale": 1.0}

# Classes by module. A checkpoint can name no others.
_CLASSES = {
    "galore_torch.galore_projector": "GaLoreProjector",
    "apollo_torch.svd_projector": "GaLoreProjector",
    "apollo_torch.random_projector": "GradientProjector",
}
_ATTRIBUTES = {"rank", "verbose", "update_proj_gap", "scale", "ortho_matrix", "proj_type", "seed", "svd_count"}


def class_and_options(
    args: Any, model: nn.Module | None, options: dict[str, Any], extra: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Some of optim_args are for the groups whose gradients are projected."""
    optimizer = catalog.chosen(args)
    assert optimizer is not None
    defaults = _GALORE if optimizer.family == "GaLore" else _APOLLO
    cls = class_of(optimizer)
    of_targets = {key: extra.get(key, value) for key, value in defaults.items()}
    options |= {} if optimizer.betas else {"scale_parameter": False, "relative_step": False}
    if optimizer.name == "galore_adamw":
        options["no_deprecation_warning"] = True
    options |= {key: value for key, value in extra.items() if key not in of_targets}
    if model is not None:
        targets = linear_weights(model, args.optim_target_modules, optimizer.name)
        options["params"] = TargetGroups(model, targets, of_targets, args.weight_decay)
    return cls, options


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
        raise CheckpointError(
            f"the optimizer state in {source} has a projection that cannot be read: {format_short(data)}"
        )
    cls = getattr(import_module(module), _CLASSES[module])
    return _made(cls, {name: unpack(inner) for name, inner in attributes.items()})


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """A projector with the results of the function in place of its attributes."""
    return _made(type(value), {name: function(inner) for name, inner in vars(value).items()})


def _made(cls: Any, attributes: dict[str, Any]) -> Any:
    made = cls.__new__(cls)
    vars(made).update(attributes)
    return made
