"""How an argument is declared: one call of `arg`, which keeps everything known about it beside the field.

The field's own metadata has the help alone. Parsers of other libraries pass a field's metadata to argparse as it is,
and write the type that they have narrowed into the field, so nothing here is read from either.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields
from enum import Enum
from functools import cache
from typing import Any

from . import values

_RULES: dict[Field, dict[str, Any]] = {}  # what `arg` was given, by the field that it made


def rules_of(item: Field) -> Mapping[str, Any] | None:
    """What is known of an argument made with `arg`; None for any other field."""
    return _RULES.get(item)


def declare(group: str) -> Callable[..., Any]:
    """The `arg` of one group of arguments; `group` is its heading in --help and in docs/arguments.md."""

    def arg(
        default: Any,
        help: str,
        *,
        aliases: tuple[str, ...] = (),
        enum: type[Enum] | None = None,
        choices: tuple[Any, ...] | None = None,
        convert: Callable[[str, Any], Any] | None = None,
        low: float | None = None,
        high: float | None = None,
        below: float | None = None,
        never: tuple[float, ...] = (),
        finite: bool = True,
        none: bool = False,
        shown: str | None = None,
        public: str | None = None,
        hint: Any = None,
        overridable: bool = False,
        per_process: bool = False,
        compare: bool = True,
        repr: bool = True,
    ) -> Any:
        """An argument with its default and one sentence about it.

        aliases: other names for the same thing. enum, choices: the closed list of values. convert: reads a value that
        its type alone cannot. low, high (included), below (excluded), never: the range of a number.
        none: None stands for the default. shown: how the docs print the default. public: the name that users see
        when it is not the field's own. hint: the type, where argparse and the parsers built on it could not take it as
        an annotation (they know no `str | bool | None`). overridable: a field of this name that a subclass, or another
        dataclass of a parser, declares is theirs: libraries and scripts have had it for long. per_process: the
        processes of a run may have different values.
        """
        rules = {
            "help": help,
            "group": group,
            "aliases": aliases,
            "enum": enum,
            "choices": [member.value for member in enum] if enum is not None else choices and list(choices),
            "convert": convert,
            "low": low,
            "high": high,
            "below": below,
            "never": never,
            "finite": finite,
            "none": none,
            "shown": shown,
            "public": public,
            "hint": hint,
            "overridable": overridable,
            "per_process": per_process,
            "default": default,
        }
        how: dict[str, Any] = {"default_factory": default} if callable(default) else {"default": default}
        made = field(metadata={"help": help.replace("%", "%%")}, compare=compare, repr=repr, **how)  # for argparse
        _RULES[made] = rules
        return made

    return arg


def stored_fields(cls: Any) -> list[Field]:
    """The arguments of a class or an object that are stored, without spellings of them that are fields too."""
    spelled = getattr(cls, "__spelled_fields__", {})
    return [item for item in fields(cls) if item.init and spelled.get(item.name) is not item]


@cache
def declared(cls: Any) -> dict[str, tuple[Any, Any]]:
    """Name -> (type, rules) of every argument made with `arg`, also where a subclass gave it a new default."""
    found: dict[str, tuple[Any, Any]] = {}
    for base in cls.__mro__:
        for name, item in base.__dict__.get("__dataclass_fields__", {}).items():
            if name not in found and item in _RULES and not is_redeclared(cls, name, item):
                hint = _RULES[item]["hint"]
                found[name] = (_annotation(base, item) if hint is None else hint, _RULES[item])
    return found


def is_redeclared(cls: Any, name: str, item: Field) -> bool:
    """Whether a subclass has declared a field of its own in place of this argument."""
    return bool(_RULES[item]["overridable"]) and cls.__dataclass_fields__.get(name) is not item


def _annotation(cls: Any, item: Field) -> Any:
    """The type that an argument was declared with."""
    for base in cls.__mro__:
        own = base.__dict__.get("__dataclass_fields__", {})
        if own.get(item.name) is item and item.name in (hints := inspect.get_annotations(base)):
            return hints[item.name]
    return item.type


def user_set_names(args: Any, given: Mapping[str, Any]) -> tuple[str, ...]:
    """The arguments that were given to the constructor and differ from the defaults of its class."""

    def differs(item: Field) -> bool:
        default = item.default if item.default_factory is MISSING else item.default_factory()
        return given[item.name] != default and getattr(args, item.name) != default

    return tuple(item.name for item in stored_fields(args) if item.name in given and differs(item))


def was_set_by_user(args: Any, name: str) -> bool:
    """Whether a script has given this argument. Libraries derive classes with other defaults and assign values
    afterwards, which users do not know of."""
    return name in args.__dict__.get("_given", ())


class Group:
    """What the groups share: conversion of their values, and defaults that follow from other arguments."""

    __rules__ = staticmethod(rules_of)

    def check(self) -> None:
        """Raise ArgumentError for values of this group that do not go together."""

    def convert_all(self) -> None:
        cls: Any = type(self)
        for name, (hint, rules) in declared(cls).items():
            value = values.convert(rules["public"] or name, getattr(self, name), hint, rules)
            setattr(self, name, value)

    def fill(self, name: str, value: Any) -> None:
        """Give an argument that the user left at None its value, and keep it up to date until the user sets it."""
        filled = self.__dict__.get("_defaulted", {})
        current = getattr(self, name)
        if current is None or (name in filled and filled[name] == current):
            setattr(self, name, value)
            self.__dict__["_defaulted"] = {**filled, name: value}  # a new dict: a shallow copy shares the old one
