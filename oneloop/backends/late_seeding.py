"""Seeds for frameworks that are imported after set_seed: `set_seed(11); import torch` seeds torch as it arrives.

A finder at the front of sys.meta_path, there only while a framework is missing, lets the framework be imported as ever
and seeds it the moment its package has been executed. So whatever seed a user sets after the import stays.
"""

import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from . import registry
from .base import Randomness
from .registry import BackendSpec

logger = logging.getLogger(__name__)

_waiting: dict[str, tuple[int, bool]] = {}  # backend -> the last seed, and whether algorithms are to be deterministic


def remember(spec: BackendSpec, seed: int, deterministic: bool) -> None:
    """Seed the framework of this backend once it is imported. full_determinism that was asked for once stays."""
    _waiting[spec.name] = (seed, deterministic or _waiting.get(spec.name, (0, False))[1])
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def forget(name: str) -> None:
    """It has been imported, and seeded with whatever was asked for."""
    _waiting.pop(name, None)
    if not _waiting and _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)


def apply(name: str, randomness: Randomness) -> None:
    """Seed a backend that is complete now, if its framework has arrived without being seeded."""
    found = _waiting.get(name)
    if found is None:
        return
    forget(name)
    seed, deterministic = found
    randomness.seed(seed)
    if deterministic:
        randomness.deterministic()


def _arrived(name: str) -> None:
    """The framework's package has just been executed, and nobody has drawn from its streams."""
    spec = registry.replacing(name)
    package = spec.module.rpartition(".")[0]
    modules = (module for module in sys.modules if module.startswith(f"{package}."))
    if spec.name != name or any(module.rpartition(".")[2] not in _WITHOUT_FRAMEWORK for module in modules):
        return  # the backend itself is what imports it, or replaces it: load() seeds when the backend is complete
    try:
        apply(name, importlib.import_module(spec.randomness))
    except Exception as error:  # the user's import has succeeded; only the seed is missing
        logger.warning("%s was imported after set_seed and could not be seeded: %s", spec.title, error)


_WITHOUT_FRAMEWORK = ("spec", "refusals", "optimizer_layout")


class _Finder:
    """Finds what the other finders find, with a loader that reports when it is done."""

    def __init__(self) -> None:
        self._asking = False

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if self._asking:
            return None
        backend = next((each for each in _waiting if registry.get(each).framework == name), None)
        if backend is None:
            return None
        self._asking = True
        try:
            found = importlib.util.find_spec(name)
        finally:
            self._asking = False
        if found is not None and found.loader is not None:
            found.loader = _Loader(found.loader, lambda: _arrived(backend))  # type: ignore[assignment]
        return found


class _Loader:
    """A framework's own loader, and a call after it. The module that it makes knows its own loader alone."""

    def __init__(self, loader: Any, after: Callable[[], None]) -> None:
        self._loader, self._after = loader, after

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._after()

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)


_FINDER: Any = _Finder()
