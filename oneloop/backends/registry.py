"""The registry of backends, and their properties that are known without importing a framework.

A backend is a package with a `spec.py` that has one BackendSpec, and a module with the attributes of base.Backend,
named by `spec.module`. oneloop's own are listed in BUILT_IN. Another package adds one with an entry point:

    [project.entry-points."oneloop.backends"]
    mybackend = "mypackage.spec:SPEC"

Vocabulary: a *framework* is the package of the models (`import torch`); a *backend* is the code here that uses it.
Nothing outside of oneloop/backends has a table of frameworks: whatever differs is a field of the spec, or a function
of the backend.
"""

import functools
import importlib
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedError

if TYPE_CHECKING:
    from ..distributed.world import World

logger = logging.getLogger(__name__)

BUILT_IN = ("torch", "paddle", "mindspore", "mindtorch")  # folders beside this file, in the order of the pages
GROUP = "oneloop.backends"  # of entry points: "package.spec:SPEC"


@dataclass(frozen=True, eq=False)
class BackendSpec:
    """The properties of a backend that are known before it is loaded. A spec.py must not import a framework.

    Names of the form "package.module:NAME" are imported when needed.
    """

    name: str
    module: str  # with the attributes of base.Backend
    title: str  # PyTorch
    framework: str  # the name that users import
    model_class: str  # for error messages: torch.nn.Module
    model_bases: tuple[str, ...]  # by qualified name, with * in the module: a model has one of them among its bases
    short_title: str = ""  # where the title is long; the title by default
    distributions: tuple[str, ...] = ()  # that contain the framework, as the package index calls them
    install: str = ""  # the command that installs it
    devices: tuple[str, ...] = ("cpu",)  # kinds that it drives, in its own words
    tensor_format: str = ""  # the value of return_tensors that asks for its tensors: "pt"
    collator_method: str = ""  # a collator's method that makes its batches, where there is a name for it: torch_call
    parallel: bool = False  # runs on several processes: Backend.parallel is there
    sharding: bool = False  # shards state across processes
    deepspeed: bool = False
    launcher: Callable[[], "World | None"] | None = None  # reads the variables of its launcher; None: not started by it
    launcher_is_last: bool = False  # its variables have common names, which other launchers may set as well
    listed: bool = True  # has a column in the pages, and may be chosen where no model has been seen
    active_when_imported: str = ""  # once this module is imported, the backend stands in for those it replaces
    replaces: tuple[str, ...] = ()
    # Models that are refused, with the message, where {model} is the name of the class: by the backend that would be
    # replaced, and by the package that a base class comes from.
    unsupported_replacements: Mapping[str, str] = field(default_factory=dict)
    unsupported_modules: Mapping[str, str] = field(default_factory=dict)
    unsupported: str = ""  # "module:UNSUPPORTED", a tuple of arguments.refusal.UnsupportedValue
    inherits: str = ""  # the backend whose unsupported values are its own too
    handled_by_backend: tuple[str, ...] = ()  # arguments that it sees to in one way, whatever is given
    optimizer_layout: str = ""  # "module:LAYOUT", an OptimizerLayout: what its checkpoints hold, for other frameworks
    acceptance_model: str = ""  # "module:CLASS", of the weights of its layers: the model that oneloop accept trains
    # The module that is Backend.randomness, imported alone when the framework arrives after set_seed; by default
    # the one of this name beside `module`.
    randomness: str = ""
    prepare: Callable[[], None] | None = None  # called once, before the framework computes anything

    def __post_init__(self) -> None:
        if not self.short_title:
            object.__setattr__(self, "short_title", self.title)
        if not self.randomness:
            object.__setattr__(self, "randomness", f"{self.module.rpartition('.')[0]}.randomness")
        if not self.install:
            object.__setattr__(self, "install", f"pip install {(*self.distributions, self.framework)[0]}")

    @property
    def is_imported(self) -> bool:
        return self.framework in sys.modules

    @property
    def is_installed(self) -> bool:
        try:
            return find_spec(self.framework) is not None
        except (ImportError, ValueError):
            return False

    @property
    def is_active(self) -> bool:
        """Whether it replaces other backends in this process."""
        return bool(self.active_when_imported) and self.active_when_imported in sys.modules

    def has_model(self, cls: type) -> bool:
        """Whether this is a class of its models, from the base classes, without importing anything."""
        return any(_matches(base, pattern) for base in cls.__mro__ for pattern in self.model_bases)

    def owns(self, module: str) -> bool:
        """Whether a module of that name is part of the framework."""
        return module == self.framework or module.startswith(f"{self.framework}.")


def _matches(cls: type, pattern: str) -> bool:
    module, _, name = pattern.rpartition(".")
    return cls.__qualname__ == name and fnmatchcase(cls.__module__, module)


@dataclass(frozen=True)
class OptimizerLayout:
    """The layout of the optimizer's state in a backend's checkpoints, for runs that resume on another framework.

    The common words are torch's: exp_avg, exp_avg_sq, momentum_buffer. `words`: own word -> common one. `counters`: own
    words that are no moments and follow from the number of updates. `step(stored, name, updates)`: how many updates a
    parameter has had, where the run has made so many. `counts(steps, own)`: the counters by key, as arrays, from
    {name: (updates or None, whether it is one of the Adams)} and the description of the optimizer that takes them.
    """

    words: Mapping[str, str]
    counters: tuple[str, ...]
    step: Callable[[Mapping[str, Any], str, int], int]
    counts: Callable[[Mapping[str, tuple[int | None, bool]], Mapping[str, Any]], dict[str, Any]]


# -- the registered backends

_registered: dict[str, BackendSpec] = {}


def register(spec: BackendSpec) -> None:
    """Add a backend for this process. One that is installed registers itself by an entry point instead."""
    if spec.name in BUILT_IN:
        raise ValueError(f"cannot register {spec.name!r}: oneloop has a built-in backend of this name")
    _registered[spec.name] = spec
    _forget()


def unregister(name: str) -> None:
    """Remove a backend that was added with register."""
    _registered.pop(name, None)
    _forget()


def _forget() -> None:
    for cached in (specs, names, launchers, _by_format):
        cached.cache_clear()


@functools.cache
def _found() -> tuple[BackendSpec, ...]:
    """oneloop's own and those of entry points, cached per process."""
    own = [resolve(f"{__package__}.{name}.spec:SPEC") for name in BUILT_IN]
    return (*own, *_from_entry_points({spec.name for spec in own}))


def _from_entry_points(taken: set[str]) -> Iterable[BackendSpec]:
    for point in entry_points(group=GROUP):
        try:
            spec = point.load()
        except Exception as error:  # a broken package must not affect other backends
            logger.warning("Cannot load the backend %r (%s): %s", point.name, point.value, error)
            continue
        if not isinstance(spec, BackendSpec) or spec.name in taken:
            logger.warning(
                "Skipping the backend %r (%s): expected a BackendSpec with a new name", point.name, point.value
            )
            continue
        taken.add(spec.name)
        yield spec


@functools.cache
def specs() -> tuple[BackendSpec, ...]:
    """All registered backends, oneloop's own first."""
    every = {spec.name: spec for spec in _found()} | _registered
    for spec in every.values():
        _prepare(spec)
    return tuple(every.values())


@functools.cache
def _prepare(spec: BackendSpec) -> None:
    if spec.prepare is not None:
        spec.prepare()


def get(name: str) -> BackendSpec:
    for spec in specs():
        if spec.name == name:
            return spec
    raise UnsupportedError(f"unknown backend {name!r}; oneloop has {', '.join(names())}")


@functools.cache
def names() -> tuple[str, ...]:
    """Backends that a user may select; without those that only replace others."""
    return tuple(spec.name for spec in specs() if spec.listed)


def released() -> tuple[str, ...]:
    """The backends of this package, which the pages in docs/ describe."""
    return tuple(name for name in names() if name in BUILT_IN)


def acceptable() -> tuple[str, ...]:
    """Backends that `oneloop accept` can try."""
    return tuple(spec.name for spec in specs() if spec.listed and spec.acceptance_model)


def parallel() -> tuple[str, ...]:
    """Backends that run on several processes."""
    return tuple(spec.name for spec in specs() if spec.parallel)


def resolve(path: str) -> Any:
    """Import "package.module:NAME"."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


# -- queries over all of them


def active() -> BackendSpec | None:
    """The backend that replaces others in this process."""
    return next((spec for spec in specs() if spec.is_active), None)


def replacing(name: str) -> BackendSpec:
    """The backend of that name, or the one that currently replaces it."""
    stand_in = active()
    return stand_in if stand_in is not None and name in stand_in.replaces else get(name)


def of_model_class(cls: type) -> BackendSpec | None:
    return next((spec for spec in specs() if spec.has_model(cls)), None)


def of_module(module: str) -> BackendSpec | None:
    """The backend whose framework a module belongs to."""
    return next((spec for spec in specs() if spec.owns(module)), None)


def is_framework_module(module: str) -> bool:
    return any(spec.owns(module) for spec in specs() if spec.listed)


@functools.cache
def launchers() -> tuple[Callable[[], "World | None"], ...]:
    """The functions that read the launchers' variables; those with common names come last."""
    found = sorted((spec for spec in specs() if spec.launcher is not None), key=lambda spec: spec.launcher_is_last)
    return tuple(spec.launcher for spec in found if spec.launcher is not None)


@functools.cache
def _by_format() -> dict[str, BackendSpec]:
    found: dict[str, BackendSpec] = {}
    for spec in specs():
        if spec.tensor_format:
            found.setdefault(spec.tensor_format, spec)
    return found


def tensor_formats() -> dict[str, BackendSpec]:
    """The values of return_tensors, with the backend of each."""
    return dict(_by_format())


def tensor_format(name: str) -> str:
    """The value of return_tensors for a backend; NumPy's if it has no own value."""
    return get(name).tensor_format or "np"


def distributions() -> dict[str, tuple[str, ...]]:
    """The frameworks by the name that is imported, with the distributions that contain them."""
    return {spec.framework: spec.distributions for spec in specs() if spec.distributions}


def optimizer_layout(name: str) -> OptimizerLayout:
    """The layout of the optimizer's state in checkpoints of that backend."""
    path = get(name).optimizer_layout
    if not path:
        raise UnsupportedError(
            f"the optimizer state of {name} cannot be converted to other frameworks; resume with the same framework"
        )
    return resolve(path)
