"""Seeds frameworks that are imported after set_seed: `set_seed(11); import torch` seeds torch on import.

A finder at the front of sys.meta_path, present only while a framework is not imported, lets the framework be imported
as usual and seeds it right after its package is executed. A seed that the user sets after the import is kept.
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
    """Seed the framework of this backend once it is imported. full_determinism, once requested, is kept."""
    _waiting[spec.name] = (seed, deterministic or _waiting.get(spec.name, (0, False))[1])
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def mark_seeded(name: str) -> None:
    """Called when it has been imported and seeded."""
    _waiting.pop(name, None)
    if not _waiting and _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)


def apply(name: str, randomness: Randomness) -> None:
    """Seed a backend after loading, if its framework was imported without being seeded."""
    found = _waiting.get(name)
    if found is None:
        return
    mark_seeded(name)
    seed, deterministic = found
    randomness.seed(seed)
    if deterministic:
        randomness.deterministic()


def _on_imported(name: str) -> None:
    """Called right after the framework's package is executed, before any random number is drawn."""
    spec = registry.replacing(name)
    package = spec.module.rpartition(".")[0]
    modules = (module for module in sys.modules if module.startswith(f"{package}."))
    if spec.name != name or any(module.rpartition(".")[2] not in _WITHOUT_FRAMEWORK for module in modules):
        return  # the backend itself is what imports it, or replaces it: load() seeds when the backend is complete
    try:
        apply(name, importlib.import_module(spec.randomness))
    except Exception as error:  # the user's import has succeeded; only the seed is missing
        logger.warning("Cannot seed %s, which was imported after set_seed: %s", spec.title, error)


_WITHOUT_FRAMEWORK = ("spec", "unsupported", "optimizer_layout")


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
            found.loader = _Loader(found.loader, lambda: _on_imported(backend))  # type: ignore[assignment]
        return found


class _Loader:
    """A framework's own loader, followed by a call. The module only references its own loader."""

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
