"""A value of an argument that is not supported, as data: the class that `support` and the backends share."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ..backends import registry
from ..backends.registry import BackendSpec
from ..optim.catalog import OPTIMIZERS, families_with_targets
from . import packages
from .values import format_value


class Section(IntEnum):
    """The position of a refusal in error messages and on the page; within a section, those of single backends come
    first."""

    MACHINE = 10  # missing hardware or drivers
    ENGINE = 20  # DeepSpeed
    EVERYWHERE = 30  # not supported on any framework
    PACKAGES = 40  # optimizers of other packages
    WRITERS = 50
    FRAMEWORK = 60  # not supported by one framework
    SHARDING = 70  # what cannot be combined with sharding
    SHARDING_OPTIONS = 75
    LATER = 80  # what a later release will support


@dataclass(frozen=True)
class UnsupportedValue:
    """An unsupported value of an argument.

    shown: the unsupported values, for the page. when: whether these arguments have such a value. backends, where: the
    backends that do not support it (neither: all of them; those of a backend's own file belong to that backend).
    devices: where it is not supported (empty: everywhere). module, package: not supported while this is not installed
    and, unless `driven`, also if it is, because this release does not use it.
    """

    argument: str
    value_text: str
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
        """Whether it applies to this backend."""
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
        # As the user wrote it; resolving args.device would fail before this can be explained.
        stored = "device_spec" if self.argument == "device" else self.argument
        name = args.__dict__.get("_spelling_of", {}).get(stored, self.argument)
        value = format_value(name, getattr(args, stored if name == "device" else name))
        start = f"{name}={value} cannot be used on {backend} with the device {device}: "
        if self.missing and self.driven:
            return f"{name}={value} needs the package {self.package}, which is not installed. Instead: {self.instead}."
        if self.missing:
            return start + (
                f"it needs the package {self.package}, which is not installed, and this release would not use it yet. "
                f"Instead: {self.instead}."
            )
        if self.module:
            return (
                start + f"{self.package} is installed, but this release does not use it yet. Instead: {self.instead}."
            )
        return start + f"{self.why}. Instead: {self.instead}."


# -- unsupported values that several backends share


def other_optimizers(title: str, but: tuple[str, ...] = ()) -> tuple[UnsupportedValue, ...]:
    """Optimizers of torch, or of packages for torch."""

    def unsupported(name: str) -> UnsupportedValue:
        return UnsupportedValue(
            "optim", name, lambda args: args.optim == name, f"{title} has no such optimizer",
            'optim="adamw", "sgd", "rmsprop" or "adagrad"',
        )  # fmt: skip

    return tuple(unsupported(name) for name, row in OPTIMIZERS.items() if not row.everywhere and name not in but)


def target_modules(title: str) -> UnsupportedValue:
    return UnsupportedValue(
        "optim_target_modules", "any", lambda args: bool(args.optim_target_modules),
        f"it is for {families_with_targets()}, which {title} does not have", "remove it",
    )  # fmt: skip


def static_graph(title: str, processes: Callable[[], int]) -> UnsupportedValue:
    return UnsupportedValue(
        "ddp_static_graph", "True, on several processes", lambda args: args.ddp_static_graph and processes() > 1,
        f"{title}'s data parallelism has no such option", "remove it",
    )  # fmt: skip


def fsdp_config() -> UnsupportedValue:
    return UnsupportedValue(
        "fsdp_config", "any", lambda args: any((args.fsdp_config or {}).values()), "it is for torch's FSDP",
        "remove it",
    )  # fmt: skip


def unsupported_drawn_order(title: str) -> UnsupportedValue:
    return UnsupportedValue(
        "data_order", "transformers, with group_by_length",
        lambda args: args.data_order == "transformers" and args.train_sampling_strategy == "group_by_length",
        f"transformers draws this order from torch's default generator, in turn with dropout, and {title} has none",
        'data_order="oneloop"',
    )  # fmt: skip


TRACING = ("trace_steps", "verify_steps")  # arguments that look at what layers compute


def unsupported_tracing(
    with_what: str, when: Callable[[Any], bool], why: str, instead: str, section: Section = Section.FRAMEWORK
) -> tuple[UnsupportedValue, ...]:
    """What these arguments cannot be combined with."""

    def one(name: str) -> UnsupportedValue:
        applies = lambda args: bool(getattr(args, name)) and when(args)  # noqa: E731
        return UnsupportedValue(name, with_what, applies, why, instead, section=section)

    return tuple(one(name) for name in TRACING)


def unsupported_weight_average(
    name: str, with_what: str, shards: Callable[[Any], bool], instead: str, section: Section = Section.FRAMEWORK
) -> UnsupportedValue:
    """An average of the weights, where processes have parts of them that are no tensors of their own."""
    return UnsupportedValue(
        name, f"with {with_what}", lambda args: getattr(args, name) is not None and shards(args),
        "the average needs whole weights, which are sharded", instead, section=section,
    )  # fmt: skip


def whole_logits(title: str) -> tuple[UnsupportedValue, UnsupportedValue]:
    return (
        UnsupportedValue(
            "chunked_loss", "True", lambda args: bool(args.chunked_loss), f"{title} has whole logits in this release",
            "remove it",
        ),
        UnsupportedValue(
            "chunked_loss_layer", "any", lambda args: args.chunked_loss_layer is not None,
            f"{title} has whole logits in this release", "remove it",
        ),
    )  # fmt: skip


def no_invariance(title: str) -> UnsupportedValue:
    return UnsupportedValue(
        "world_invariant", "True", lambda args: args.world_invariant,
        f"on {title}, gradients are added up in an order that depends on the number of processes", "remove it",
    )  # fmt: skip
