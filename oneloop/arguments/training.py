"""TrainingArguments: all groups, their common defaults, and serialization."""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass
from enum import Enum
from typing import Any, ClassVar, TypeVar

from .. import behaviour, secrets
from ..extension import of_arguments
from . import accelerate_launch, docstrings, fixed, paddleformers, values
from .accelerator import AcceleratorConfig
from .aliases import FIELDS, Alias, ArgumentsMeta, as_field, attribute, collect
from .fields import declared, stored_fields
from .run import progress_is_visible
from .setters import Setters

Self = TypeVar("Self", bound="TrainingArguments")


class TrainingArguments(Setters, metaclass=ArgumentsMeta):
    """The arguments of a training run; docs/arguments.md explains each of them.

    Arguments are passed by name, in any spelling of transformers 4.25 to 5.22 or PaddleNLP, and can be changed by
    assignment. Derive a dataclass from this class to add your own.
    """

    __aliases__: ClassVar[dict[str, Alias]] = {}
    __elsewhere__: ClassVar[dict[str, str]] = {}
    __fixed_arguments__: ClassVar[dict[str, fixed.FixedArgument]] = {}
    __spelled_fields__: ClassVar[dict[str, Field]] = {}

    # Fields that take a dict also as JSON on a command line; a subclass adds its own.
    _VALID_DICT_FIELDS: ClassVar[list[str]] = [
        *("accelerator_config", "fsdp_config", "deepspeed", "gradient_checkpointing_kwargs", "lr_scheduler_kwargs")
    ]

    def __post_init__(self) -> None:
        self._register_secrets()
        for name in self._VALID_DICT_FIELDS:
            value = getattr(self, name, None)
            if isinstance(value, str) and value.lstrip().startswith("{"):
                setattr(self, name, values.to_json_values(name, value))
        accelerate_launch.apply(self)
        self.validate()
        of_arguments().created(self)

    def _register_secrets(self) -> None:
        """Hide the secrets among the values from now on. What stands for one in a file is not taken for a value."""
        for item in stored_fields(self):
            value = getattr(self, item.name)
            if isinstance(value, str) and secrets.is_mask(item.name, value):
                setattr(self, item.name, None if item.default is MISSING else item.default)
            secrets.remember(item.name, value)

    def check_together(self) -> None:
        super().check_together()
        if self.device_spec == "cpu" and behaviour.current().pins_no_memory_on_cpu:
            self.dataloader_pin_memory = False
        self.fill("disable_tqdm", not progress_is_visible() or self.get_process_log_level() > logging.WARNING)

    # -- serialization ------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Every argument by its stored name, as plain data; a secret is replaced by its name in angle brackets."""
        known = declared(type(self))
        plain = {}
        for item in stored_fields(self):
            value = getattr(self, item.name)
            secrets.remember(item.name, value)  # it may have been assigned
            name = (known[item.name][1]["public"] if item.name in known else None) or item.name
            plain[name] = _plain(value)
        return secrets.clean(plain)

    def to_json_string(self) -> str:
        return json.dumps(self.to_dict(), indent=2, default=str)

    def to_sanitized_dict(self) -> dict[str, Any]:
        """For writers that accept hyperparameters only as numbers and strings."""
        flat = {
            **self.to_dict(),
            "train_batch_size": self.train_batch_size,
            "eval_batch_size": self.eval_batch_size,
        }
        return {name: value if type(value) in (bool, int, float, str) else str(value) for name, value in flat.items()}

    @classmethod
    def from_dict(cls: type[Self], given: Mapping[str, Any]) -> Self:
        """From the output of `to_dict`, or from any dict of arguments, including aliases."""
        return cls(**given)

    def __str__(self) -> str:
        lines = "".join(f"    {name}={value!r},\n" for name, value in self.to_dict().items())
        return f"{type(self).__name__}(\n{lines})"

    __repr__ = __str__

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__repr__" not in cls.__dict__:  # the one that dataclass would make shows the secrets among its fields
            cls.__repr__ = TrainingArguments.__repr__  # type: ignore[method-assign]


# Called, not written as a decorator: a type checker would take it for the constructor's signature, which for it is in
# signatures.pyi, with every spelling and every type that is accepted.
dataclass(repr=False)(TrainingArguments)


def _plain(value: Any) -> Any:
    if isinstance(value, AcceleratorConfig) and value == AcceleratorConfig():
        return None  # as if nothing was given
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):  # whose names may be those of secrets
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "to_dict") and not isinstance(value, type):
        return value.to_dict()
    return value


def complete(cls: type[TrainingArguments]) -> None:
    """Add the aliases to the class, as a table and as attributes."""
    cls.__aliases__ = collect(cls)
    cls.__fixed_arguments__ = fixed.FIXED_ARGUMENTS
    for name in fixed.FIXED_ARGUMENTS:
        if not hasattr(cls, name) and name not in paddleformers.NO_ATTRIBUTES:
            setattr(cls, name, fixed.attribute(name))
    for alias in cls.__aliases__.values():
        if alias.name != "device":  # its attribute is in properties.py: it reads as the framework's device object
            setattr(cls, alias.name, attribute(alias))
    cls.__spelled_fields__ = {name: as_field(cls.__aliases__[name]) for name in FIELDS}
    cls.__dataclass_fields__.update(cls.__spelled_fields__)
    cls.__annotations__ = {**cls.__annotations__, **{name: cls.__aliases__[name].type for name in FIELDS}}
    docstrings.describe(cls)


complete(TrainingArguments)
