"""Which backend: determined by the type of the model; before there is a model, by the launcher's variables and by
what is already imported."""

import importlib
from typing import TYPE_CHECKING, Any, cast

from .. import behaviour
from ..distributed.world import world
from ..errors import ModelError, UnsupportedError
from . import late_seeding, registry

if TYPE_CHECKING:
    from .base import Backend


def load(name: str) -> "Backend":
    """The backend of that name, or the one that replaces it in this process."""
    backend = cast("Backend", importlib.import_module(registry.replacing(name).module))
    late_seeding.apply(name, backend.randomness)
    return backend


def name_of(model: Any) -> str | None:
    """The backend of an object's class, from its base classes, without importing anything."""
    spec = registry.of_model_class(type(model))
    return None if spec is None else spec.name


def of_model(model: Any) -> "Backend":
    """The backend of this model, or an error that lists the supported model classes."""
    name, kind = name_of(model), type(model)
    if name is None:
        _refuse_module(kind)
        raise ModelError(
            f"the model is a {kind.__module__}.{kind.__qualname__}; expected an instance of "
            f"{', '.join(registry.get(each).model_class for each in registry.names())}. Pass the model object itself"
            + (" (you passed a class: call it first)." if isinstance(model, type) else ".")
        )
    stand_in = registry.active()
    if stand_in is not None and name in stand_in.unsupported_replacements:
        raise UnsupportedError(stand_in.unsupported_replacements[name].format(model=kind.__name__))
    return load(name)


def _refuse_module(kind: type) -> None:
    for spec in registry.specs():
        for prefix, message in spec.unsupported_modules.items():
            if any(base.__module__.startswith(f"{prefix}.") for base in kind.__mro__):
                raise UnsupportedError(message.format(model=kind.__name__))


def guess() -> str | None:
    """The backend that arguments should assume before there is a model; None if it cannot be determined."""
    stand_in = registry.active()
    if stand_in is not None:
        return stand_in.name
    launcher = world().launcher
    if launcher:
        return launcher
    listed = [spec for spec in registry.specs() if spec.listed]
    imported = [spec for spec in listed if spec.is_imported]
    meant = [spec for spec in imported if spec.name == behaviour.current().framework]
    found = next(iter((*meant, *imported)), None) or next((spec for spec in listed if spec.is_installed), None)
    return None if found is None else found.name


def default_backend() -> "Backend":
    """The backend without a model: the result of guess(), or the first one, whose import error says what is missing."""
    return load(guess() or registry.names()[0])


def of_optimizer(optimizer: Any) -> "Backend":
    """The backend of an optimizer, from the module of its class."""
    for base in type(optimizer).__mro__:
        spec = registry.of_module(base.__module__)
        if spec is not None:
            return load(spec.name)
    return default_backend()
