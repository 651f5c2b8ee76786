"""Which layers of a model are unsharded and resharded together (the FSDP units).

Named classes take precedence, then a minimum size, then the _no_split_modules of the model, then the
elements of module lists. Everything else belongs to the unit of the model itself, and so do the parts of an adapter
outside the base model.
"""

import re
from collections.abc import Iterable
from typing import Any

from torch import nn

from ...errors import ArgumentError, UnsupportedError
from .models import _blocks, base_of

_CONTAINERS = (nn.ModuleList, nn.ModuleDict)  # they have no forward pass in which to unshard


def units(model: nn.Module, config: dict[str, Any]) -> list[nn.Module]:
    """The layers, inner ones before those around them."""
    classes, least = class_names(config), int(config.get("min_num_params") or 0)
    base = base_of(model)
    if config.get("auto_wrap_policy") == "NO_WRAP":
        return []
    if classes:
        found = _of_classes(base, classes)
        if not found:
            present = sorted({type(m).__name__ for m in model.modules() if next(m.parameters(), None) is not None})
            raise ArgumentError(
                f"fsdp_config: transformer_layer_cls_to_wrap has {', '.join(classes)}, but the model has no such "
                f"layer. It has {', '.join(present)}; use some of these."
            )
    elif least:
        found = _of_size(base, least)
    else:
        found = _of_classes(base, getattr(base, "_no_split_modules", None) or ()) or _blocks(base)
    return [module for module in found if module not in (model, base) and not _shares(model, module)]


def ignored(model: nn.Module, config: dict[str, Any]) -> set[nn.Parameter]:
    """Parameters of modules whose names fsdp_config matches: every process keeps them whole."""
    pattern = config.get("ignored_modules")
    if not pattern:
        return set()
    try:
        found = [m for name, m in model.named_modules() if re.fullmatch(pattern, name)]
    except (re.error, TypeError) as error:
        raise ArgumentError(f"fsdp_config: ignored_modules={pattern!r} is no regular expression: {error}") from error
    if not found:
        raise ArgumentError(f"fsdp_config: ignored_modules={pattern!r} matches no module of the model")
    return {p for module in found for p in module.parameters()}


def check_types(model: nn.Module, units: list[nn.Module], ignored: set[nn.Parameter]) -> None:
    """Raise an error if the gradients of a unit have several types: FSDP2 reduces them as one tensor."""
    left = {id(p): name for name, p in model.named_parameters() if p.requires_grad and p not in ignored}
    for unit in [*units, model]:  # inner ones first, so each parameter is counted in the innermost
        types: dict[str, str] = {}
        for p in unit.parameters():
            name = left.pop(id(p), None)
            if name is not None:
                types.setdefault(str(p.dtype).removeprefix("torch."), name)
        if len(types) > 1:
            found = " and ".join(f"{dtype} ({name})" for dtype, name in types.items())
            raise UnsupportedError(
                f"trainable parameters that are sharded together have several types: {found}. Sharding stage2 and "
                "stage3 need one: convert them, for example the modules in modules_to_save to the type of the adapter, "
                "or use sharding='stage1'."
            )


def class_names(config: dict[str, Any]) -> list[str]:
    given = config.get("transformer_layer_cls_to_wrap") or []
    return [name.strip() for name in given.split(",") if name.strip()] if isinstance(given, str) else list(given)


def _of_classes(model: nn.Module, names: Iterable[str]) -> list[nn.Module]:
    return [m for m in reversed(list(model.modules())) if type(m).__name__ in set(names)]


def _of_size(module: nn.Module, least: int) -> list[nn.Module]:
    """Bottom-up: a module is a unit if it has that many parameters outside of the units inside it."""
    found: list[nn.Module] = []

    def visit(module: nn.Module) -> int:
        taken = sum(visit(child) for child in module.children())
        own = sum(p.numel() for p in module.parameters()) - taken
        if own < least or isinstance(module, _CONTAINERS):
            return taken
        found.append(module)
        return taken + own

    visit(module)
    return found


def _shares(model: nn.Module, module: nn.Module) -> bool:
    """Whether a parameter of the layer is tied to one outside it: tied parameters must be in the same unit."""
    inside = {id(p) for p in module.parameters()}
    within = {id(m) for m in module.modules()}
    outside = (p for m in model.modules() if id(m) not in within for p in m.parameters(recurse=False))
    return any(id(p) in inside for p in outside)
