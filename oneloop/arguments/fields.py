"""How an argument is declared: one call of `arg`, which keeps everything known about it in the field's metadata."""

from collections.abc import Callable
from dataclasses import field
from enum import Enum
from functools import cache
from typing import Any

from . import values


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
        compare: bool = True,
        repr: bool = True,
    ) -> Any:
        """An argument with its default and one sentence about it.

        aliases: other names for the same thing. enum, choices: the closed list of values. convert: reads a value that
        its type alone cannot. low, high (included), below (excluded), never: the range of a number.
        none: None stands for the default. shown: how the docs print the default. public: the name that users see
        when it is not the field's own.
        """
        metadata = {
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
            "default": default,
        }
        how: dict[str, Any] = {"default_factory": default} if callable(default) else {"default": default}
        return field(metadata=metadata, compare=compare, repr=repr, **how)

    return arg


@cache
def declared(cls: Any) -> dict[str, tuple[Any, Any]]:
    """Name -> (type, metadata) of every argument made with `arg`, also where a subclass gave it a new default."""
    found: dict[str, tuple[Any, Any]] = {}
    for base in cls.__mro__:
        for name, item in base.__dict__.get("__dataclass_fields__", {}).items():
            if name not in found and "group" in item.metadata and "enum" in item.metadata:
                found[name] = (item.type, item.metadata)
    return found


class Group:
    """What the groups share: conversion of their values, and defaults that follow from other arguments."""

    def check(self) -> None:
        """Raise ArgumentError for values of this group that do not go together."""

    def convert_all(self) -> None:
        cls: Any = type(self)
        for name, (hint, rules) in declared(cls).items():
            value = values.convert(rules["public"] or name, getattr(self, name), hint, rules)
            setattr(self, name, value)

    def fill(self, name: str, value: Any) -> None:
        """Give an argument that the user left at None its value, and keep it up to date until the user sets it."""
        filled = self.__dict__.get("_filled", {})
        current = getattr(self, name)
        if current is None or (name in filled and filled[name] == current):
            setattr(self, name, value)
            self.__dict__["_filled"] = {**filled, name: value}  # a new dict: a shallow copy shares the old one
