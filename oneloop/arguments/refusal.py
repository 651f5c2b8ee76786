"""One thing that an argument cannot do on a backend, as data: the word that `support` and the backends share."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ..backends import registry
from ..backends.registry import BackendSpec
from . import packages
from .values import show


class Section(IntEnum):
    """Where a refusal is in error messages and on the page; within a section, those of single backends come
    first."""

    MACHINE = 10  # what is not here: hardware, drivers
    ENGINE = 20  # DeepSpeed
    EVERYWHERE = 30  # what is not done on any framework
    PACKAGES = 40  # optimizers of other packages
    WRITERS = 50
    FRAMEWORK = 60  # what one framework cannot do
    SHARDING = 70  # what dividing state among processes cannot be together with
    SHARDING_OPTIONS = 75
    LATER = 80  # what a later release brings


@dataclass(frozen=True)
class Refusal:
    """One thing that an argument cannot do.

    shown: the refused values, for the page. when: whether these arguments ask for it. backends, where: the backends
    that refuse it (neither: all of them; those of a backend's own file belong to that backend). devices: where it is
    refused (empty: everywhere). module, package: refused while this is not installed, and, unless `driven`, also when
    it is, because nothing in this release would use it.
    """

    argument: str
    shown: str
    when: Callable[[Any], bool]
    why: str
    instead: str
    devices: tuple[str, ...] = ()
    module: str = ""
    package: str = ""
    driven: bool = False
    section: Section = Section.FRAMEWORK
    backends: tuple[str, ...] = ()
    where: Callable[[BackendSpec], bool] | None = None

    def concerns(self, backend: str) -> bool:
        """Whether it is this backend that refuses."""
        if self.backends:
            return backend in self.backends
        return self.where is None or self.where(registry.get(backend))

    def applies(self, args: Any, backend: str, device: str) -> bool:
        here = self.concerns(backend) and (not self.devices or device in self.devices)
        return here and self.when(args) and not (self.driven and self.module and packages.installed(self.module))

    @property
    def missing(self) -> bool:
        return bool(self.module) and not packages.installed(self.module)

    def explain(self, args: Any, backend: str, device: str) -> str:
        # The user's own spelling; args.device itself would be resolved, and fail, before this can be explained.
        stored = "device_spec" if self.argument == "device" else self.argument
        name = args.__dict__.get("_said", {}).get(stored, self.argument)
        value = show(name, getattr(args, stored if name == "device" else name))
        start = f"{name}={value} cannot be used on {backend} with the device {device}: "
        if self.missing:
            unused = "" if self.driven else ", and which this release would not use yet"
            return start + (
                f"it needs the package {self.package}, which is not installed{unused}. Instead: {self.instead}."
            )
        if self.module:
            return (
                start + f"{self.package} is installed, but this release does not use it yet. Instead: {self.instead}."
            )
        return start + f"{self.why}. Instead: {self.instead}."


# -- what the files of several backends say alike


def other_optimizer(name: str, title: str) -> Refusal:
    """An optimizer of torch, or of a package for torch."""
    return Refusal(
        "optim", name, lambda args: args.optim == name, f"{title} has no such optimizer",
        'optim="adamw", "sgd", "rmsprop" or "adagrad"',
    )  # fmt: skip


def static_graph(title: str, processes: Callable[[], int]) -> Refusal:
    return Refusal(
        "ddp_static_graph", "True, on several processes", lambda args: args.ddp_static_graph and processes() > 1,
        f"{title}'s data parallelism has no such promise to build on", "leave it out",
    )  # fmt: skip


def fsdp_config() -> Refusal:
    return Refusal(
        "fsdp_config", "any", lambda args: any((args.fsdp_config or {}).values()), "it is for FSDP of torch",
        "leave it out",
    )  # fmt: skip
