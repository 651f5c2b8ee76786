"""The import hook that replaces another library's Trainer with oneloop's, for the script and everything it imports."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NoReturn

from ..checkpoint import store
from ..errors import UnsupportedError
from . import mode, trl_launcher
from .redirected_names import LIBRARIES, MODULES, REFUSED, RENAMED, REWRITING, TITLES, WITHOUT_LIBRARY, Module


def redirect(*libraries: str, stand_in: Iterable[str] = ("transformers", "paddlenlp", "paddleformers")) -> None:
    """Replace the Trainer of these libraries (default: all) with oneloop's in all later imports.

    Call it before the library is imported; modules that have already imported the library's Trainer keep it. stand_in:
    libraries whose Trainer can be imported even if the library is not installed. mindnlp is only included if named,
    because importing it replaces torch with MindSpore.
    """
    finder = next((each for each in sys.meta_path if isinstance(each, Finder)), None)
    if finder is None:
        finder = Finder()
        sys.meta_path.insert(0, finder)
    for library in libraries or LIBRARIES:
        finder.add(library, library in stand_in)
        mode.emulate(library)


# -- names


# Names of oneloop that it does not export, and their modules.
_INTERNAL = dict.fromkeys(("DEFAULT_CALLBACKS", "DEFAULT_PROGRESS_CALLBACK"), "oneloop.trainer.setup")


# Names of transformers.trainer that libraries such as ms-swift replace: the Trainer then uses what they assign.
_REPLACEABLE = dict.fromkeys((*_INTERNAL, "PrinterCallback"), "oneloop.trainer.setup")


def _own(name: str) -> Any:
    import oneloop

    if name in _INTERNAL:
        return getattr(importlib.import_module(_INTERNAL[name]), name)
    return getattr(oneloop, RENAMED.get(name, name))


def _send_nothing(*args: Any, **kwargs: Any) -> None:
    """Replaces transformers' send_example_telemetry, which version 5 has removed."""


def _never(*args: Any, **kwargs: Any) -> bool:
    return False


def _offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _logger() -> logging.Logger:
    return logging.getLogger("paddlenlp")


# Small functions that newer versions have removed, by name; created when needed.
_SMALL = {
    "send_example_telemetry": lambda: _send_nothing,
    "is_torch_tpu_available": lambda: _never,
    "is_offline_mode": lambda: _offline,
    "logger": _logger,
    "PREFIX_CHECKPOINT_DIR": lambda: store.PREFIX,
}


def _missing(name: str) -> Any:
    return _SMALL[name]() if name in _SMALL else _own(name)


def refuse(name: str, why: str) -> NoReturn:
    raise UnsupportedError(f"{name} is not supported under oneloop: {why}.")


class _Refused(type):
    """The class of an unsupported name: it can be imported, but any use raises an error."""

    def __new__(cls, name: str, bases: tuple, body: dict) -> Any:
        if bases:
            refuse(bases[0].__name__, bases[0].__dict__["_why"])
        return super().__new__(cls, name, bases, body)

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        refuse(cls.__name__, cls.__dict__["_why"])

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("__") and name != "__dataclass_fields__":
            raise AttributeError(name)
        refuse(cls.__name__, cls.__dict__["_why"])


def _refused(name: str) -> Any:
    return _Refused(name, (), {"_why": REFUSED[name]})


# -- modules


class LazyModule(ModuleType):
    """A module with oneloop's names; for all others, the library's module is executed."""

    _plan: Module
    _spec: importlib.machinery.ModuleSpec | None  # of the library's module; None if there is none
    _real: ModuleType | None

    def _library_module(self) -> ModuleType | None:
        if self._real is None and self._spec is not None and self._spec.loader is not None:
            self._real = importlib.util.module_from_spec(self._spec)
            try:
                self._spec.loader.exec_module(self._real)
            except BaseException:
                self._real = None
                raise
        return self._real

    def __getattr__(self, name: str) -> Any:
        if name in self._plan.names.split() or RENAMED.get(name) in self._plan.names.split():
            value = _own(name)
        elif name in self._plan.refused.split():
            value = _refused(name)
        elif name == "__all__":
            real = self._library_module()
            names = getattr(real, "__all__", None) or [each for each in vars(real or self) if not each.startswith("_")]
            return sorted({*names, *self._plan.names.split()})
        elif name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        else:
            value = self._from_library(name)
        setattr(self, name, value)
        return value

    def _from_library(self, name: str) -> Any:
        real = self._library_module()
        if real is not None and hasattr(real, name):
            return getattr(real, name)
        if name in self._plan.missing.split():
            return _missing(name)
        more = "" if real is not None else f"; {_install_hint(self.__name__)}"
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}{more}")

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__name__ == "transformers.trainer" and name in _REPLACEABLE:
            setattr(importlib.import_module(_REPLACEABLE[name]), name, value)
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *self._plan.names.split(), *dir(self._real)})


def _install_hint(module: str) -> str:
    root = module.partition(".")[0]
    return (
        f"{TITLES[root]} is not installed or has no such module, and oneloop only replaces its Trainer: "
        f"pip install {root}, or use the framework directly"
    )


class LazyModuleLoader(importlib.abc.Loader):
    def __init__(self, plan: Module, real: importlib.machinery.ModuleSpec | None) -> None:
        self.plan, self.real = plan, real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = LazyModule(spec.name)
        module._plan, module._spec, module._real = self.plan, self.real, None
        if self.real is not None and self.real.origin:
            module.__file__ = self.real.origin
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Does nothing: names are looked up on access."""


class PatchLoader(importlib.abc.Loader):
    """Executes the library's module and then sets oneloop's names on it."""

    def __init__(self, plan: Module, real: importlib.machinery.ModuleSpec) -> None:
        self.plan, self.real = plan, real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        loader: Any = self.real.loader
        return loader.create_module(self.real)

    def exec_module(self, module: ModuleType) -> None:
        loader: Any = self.real.loader
        with _unchanged():
            loader.exec_module(module)
        patch(sys.modules.get(module.__name__, module), self.plan)  # transformers replaces itself in sys.modules

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real.loader, name)  # such as get_data, for code that reads package files


class RefusingLoader(importlib.abc.Loader):
    """Raises when the package is imported; asking whether it is installed raises nothing."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> NoReturn:
        refuse(module.__name__, REWRITING[module.__name__])


@contextmanager
def _unchanged() -> Iterator[None]:
    """Restore oneloop's Trainer: MindNLP sets its own training_step on what it takes for transformers' Trainer."""
    classes = [_own("Trainer"), _own("Seq2SeqTrainer")]
    before = [dict(vars(cls)) for cls in classes]
    try:
        yield
    finally:
        for cls, was in zip(classes, before):
            for name, value in list(vars(cls).items()):
                if name not in was:
                    delattr(cls, name)
                elif was[name] is not value:
                    setattr(cls, name, was[name])


def patch(module: ModuleType, plan: Module) -> None:
    for name in plan.replaced.split():
        setattr(module, name, getattr(trl_launcher, name))
    for name in plan.names.split():
        setattr(module, name, _own(name))
    for name in plan.refused.split():
        setattr(module, name, _refused(name))
    known = dir(module) if plan.missing else ()
    for name in plan.missing.split():
        if name not in known:
            setattr(module, name, _missing(name))


class Finder(importlib.abc.MetaPathFinder):
    """The first finder; handles only modules of the selected libraries."""

    def __init__(self) -> None:
        self.plans: dict[str, Module] = {}
        self.absent: set[str] = set()  # libraries that are not installed

    def add(self, library: str, stand_in: bool) -> None:
        self.plans |= MODULES[library]
        if stand_in and library not in sys.modules and _find(library, None, self) is None:
            self.absent.add(library)
            self.plans.setdefault(library, Module("", opened=True))
            self.plans |= WITHOUT_LIBRARY[library]
        for name in [each for each in self.plans if each in sys.modules]:
            self._renew(name)

    def _renew(self, name: str) -> None:
        """Patch a module that was already imported."""
        module, plan = sys.modules[name], self.plans[name]
        if isinstance(module, LazyModule):
            return
        if plan.is_lazy:
            del sys.modules[name]
            new = importlib.import_module(name)
            parent, _, last = name.rpartition(".")
            setattr(sys.modules[parent], last, new)
        else:
            patch(module, plan)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        plan = self.plans.get(fullname)
        root = fullname.partition(".")[0]
        if fullname in REWRITING:
            real = _find(fullname, path, self)
            return None if real is None else importlib.machinery.ModuleSpec(fullname, RefusingLoader())
        if plan is None:
            if root in self.absent:
                raise ModuleNotFoundError(f"No module named {fullname!r}: {_install_hint(fullname)}", name=fullname)
            return None
        real = _find(fullname, path, self)
        if real is None and (plan.replaced or (not plan.names and not plan.refused and root not in self.absent)):
            return None
        loader = LazyModuleLoader(plan, real) if plan.is_lazy or real is None else PatchLoader(plan, real)
        places = real.submodule_search_locations if real is not None else ([] if plan.opened else None)
        spec = importlib.machinery.ModuleSpec(fullname, loader, origin=real.origin if real is not None else None)
        spec.submodule_search_locations = places
        spec.has_location = real is not None and real.has_location
        return spec


def _find(name: str, path: Any, without: Finder) -> importlib.machinery.ModuleSpec | None:
    others: Iterable[Any] = [each for each in sys.meta_path if each is not without]
    for finder in others:
        found = finder.find_spec(name, path, None) if hasattr(finder, "find_spec") else None
        if found is not None:
            return found
    return None
