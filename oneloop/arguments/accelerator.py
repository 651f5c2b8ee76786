"""accelerator_config: the options of accelerate, as an object whose fields scripts read and set."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from .. import behaviour
from ..distributed.world import world
from ..errors import ClassGivenError, ConflictError
from . import values

if TYPE_CHECKING:
    from .given import Config

# Field -> (the values that oneloop supports, what to do instead of other values)
SUPPORTED: dict[str, tuple[tuple[Any, ...], str]] = {
    "split_batches": ((False, None), "set per_device_train_batch_size, the batch size of one process"),
    "dispatch_batches": ((False, None), "leave it out: each process loads its own data"),
    "even_batches": ((True, None), "leave it out"),
    "use_seedable_sampler": ((True, None), "leave it out: the order of the data is always determined by data_seed"),
    "non_blocking": ((True, False, None), "leave it out"),
    "gradient_accumulation_kwargs": ((None, {}), "set gradient_accumulation_steps"),
    "use_configured_state": ((False, None), "leave it out: there is no accelerate state to use"),
}
# What may be accepted all the same, because it changes no result: on one process, or anywhere.
_NO_EFFECT_SINGLE_PROCESS = ("split_batches", "dispatch_batches", "even_batches", "use_configured_state")
_NO_EFFECT = ("use_seedable_sampler", "gradient_accumulation_kwargs")


def is_supported(config: "AcceleratorConfig", key: str) -> bool:
    """Whether a run can have this value of a field."""
    value = getattr(config, key)
    if value is None or value in SUPPORTED[key][0]:
        return True
    if not behaviour.current().accepts_options_without_effect:
        return False
    return key in _NO_EFFECT or (key in _NO_EFFECT_SINGLE_PROCESS and world().size == 1)


def accumulation_steps(args: Any) -> None:
    """Take `num_steps` of gradient_accumulation_kwargs as gradient_accumulation_steps, where that is expected."""
    given = args.accelerator_config.gradient_accumulation_kwargs or {}
    if not behaviour.current().accumulation_from_accelerator_config or "num_steps" not in given:
        return
    if args.gradient_accumulation_steps > 1:
        raise ConflictError(
            f"The `AcceleratorConfig`'s `num_steps` is set but so is gradient_accumulation_steps="
            f"{args.gradient_accumulation_steps}: set one of them."
        )
    args.gradient_accumulation_steps = given["num_steps"]
    # The steps are an argument now: a Trainer made later with these arguments has nothing left to take.
    rest = {key: value for key, value in given.items() if key != "num_steps"}
    args.accelerator_config.gradient_accumulation_kwargs = rest or None


@dataclass
class AcceleratorConfig:
    """Options of accelerate. `Trainer` refuses those values that it does not support."""

    split_batches: bool = False
    dispatch_batches: bool | None = None
    even_batches: bool = True
    use_seedable_sampler: bool = True
    non_blocking: bool | None = None  # False: a copy to the device waits until it is done
    gradient_accumulation_kwargs: dict[str, Any] | None = None
    use_configured_state: bool = False

    @classmethod
    def from_json_file(cls, json_file: str | os.PathLike[str]) -> "AcceleratorConfig":
        """From a JSON file with one object."""
        return to_accelerator("accelerator_config", os.fspath(json_file))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def pop(self, key: str, default: Any = None) -> Any:
        """The value of a field, which gets its default again."""
        value = getattr(self, key, default)
        if hasattr(self, key):
            setattr(self, key, getattr(type(self), key))
        return value


def to_accelerator(name: str, value: "Config") -> AcceleratorConfig:
    """An AcceleratorConfig stays the same object; also from a dict, a JSON string, or the path of a JSON file."""
    if isinstance(value, AcceleratorConfig):
        return value
    if isinstance(value, type):
        raise ClassGivenError(
            f"Tried passing in a callable to `accelerator_config`: the class {value.__name__}. Expected an instance of "
            "it, a dict or a JSON file."
        )
    config: Mapping[str, Any] = values.to_config(name, value)
    known = [item.name for item in fields(AcceleratorConfig)]
    for key in config:
        if key not in known:
            raise values.invalid(f"{name}[{key!r}]", config[key], "one of the keys " + ", ".join(known))
    return AcceleratorConfig(**config)
