"""Convert command-line words, or values from a file, to the type of a field's annotation."""

from __future__ import annotations

import collections.abc
import enum
import os
import pathlib
import types
import typing
from collections.abc import Callable, Collection
from typing import Any

from .strict_json import read_json

# What means True and False in words, here and wherever else arguments and variables are read.
TRUE_WORDS = frozenset({"true", "yes", "on", "t", "y", "1"})
FALSE_WORDS = frozenset({"false", "no", "off", "f", "n", "0"})

_MISSING = object()
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_CONTAINERS: dict[Any, Callable[[list[Any]], Any]] = {
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    collections.abc.Sequence: list,
    collections.abc.MutableSequence: list,
    collections.abc.Collection: list,
    collections.abc.Iterable: list,
    collections.abc.Set: set,
}
_NAMES = {bool: "true or false", int: "an integer", float: "a number", str: "a string", dict: "a JSON object"}
_LABELS = {bool: "BOOL", int: "INT", float: "FLOAT", str: "TEXT", dict: "JSON", pathlib.Path: "PATH"}


def alternatives(hint: Any) -> list[Any]:
    """The types a value may have: unions flattened, Annotated and NewType unwrapped, a missing type is str."""
    if hint is None:
        return [types.NoneType]
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return alternatives(typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        return [member for part in typing.get_args(hint) for member in alternatives(part)]
    if hasattr(hint, "__supertype__"):
        return alternatives(hint.__supertype__)
    if hint is Any or hint is object or isinstance(hint, typing.TypeVar):
        return [str]
    return [pathlib.Path if hint is os.PathLike or origin is os.PathLike else hint]


class ValueType:
    """What one annotation accepts, and the conversions to it. Conversions raise ValueError with a reason."""

    def __init__(self, hint: Any, listed: Collection[Any] = ()) -> None:
        # "none" is a value where it is among a field's choices or in a list of words, as in `--report_to none`.
        self.none_words = {"None", "none"} - set(map(str, listed))
        self.optional = False
        self.literals: list[Any] = []
        self.enums: list[type[enum.Enum]] = []
        self.scalars: list[Any] = []
        self.mapping: Any = None
        self.container: Any = None
        for member in alternatives(hint):
            self._sort_in(member)
        if self.container and any(str in kind.scalars for kind in self._elements()):
            self.none_words.discard("none")

    def _sort_in(self, member: Any) -> None:
        origin = typing.get_origin(member) or member
        if member is types.NoneType:
            self.optional = True
        elif origin is typing.Literal:
            values = typing.get_args(member)
            self.optional |= None in values
            self.literals += [value for value in values if value is not None]
        elif isinstance(member, type) and issubclass(member, enum.Enum):
            self.enums.append(member)
        elif origin in _MAPPINGS:
            self.mapping = self.mapping or member
        elif origin in _CONTAINERS:
            self.container = self.container or member
        else:
            self.scalars.append(origin)

    @property
    def is_switch(self) -> bool:
        """True if the bare option (`--x`) means True."""
        return bool in self.scalars

    @property
    def nargs(self) -> str | None:
        """The `nargs` of the option for argparse."""
        return "*" if self.container else "?" if self.is_switch else None

    @property
    def choices(self) -> list[Any]:
        """The values of Literals and Enums."""
        return self.literals + [member.value for kind in self.enums for member in kind]

    @property
    def label(self) -> str:
        """The metavar in `--help`."""
        kinds = ["CHOICE"] if self.choices else []
        kinds += [_LABELS.get(kind) or getattr(kind, "__name__", str(kind)).upper() for kind in self.scalars]
        kinds += ["JSON"] if self.mapping else []
        kinds += [kind.label for kind in self._elements()] if self.container else []
        return "|".join(dict.fromkeys(kinds))

    @property
    def expected(self) -> str:
        """A description of the accepted types, for error messages."""
        words = ["one of " + ", ".join(map(str, self.choices))] if self.choices else []
        words += [_NAMES.get(kind) or f"a valid {getattr(kind, '__name__', kind)}" for kind in self.scalars]
        words += [_NAMES[dict]] if self.mapping else []
        words += [f"a list (each element {self._elements()[0].expected})"] if self.container else []
        words += ["none"] if self.optional else []
        return " or ".join(words)

    def from_words(self, words: str | list[str] | None) -> Any:
        """The value of an option followed by these words (None: the bare option)."""
        if words is None or (words == [] and self.is_switch):
            return True
        if isinstance(words, list) and len(words) != 1:
            return self._contain(words, ValueType.from_text)
        return self.from_text(words if isinstance(words, str) else words[0])

    def from_text(self, text: str) -> Any:
        """The value of one word."""
        if self.optional and text in self.none_words:
            return None
        for convert in (self._choice, self._json, self._scalar):
            value = convert(text)
            if value is not _MISSING:
                return value
        # "[" starts JSON: what failed to parse is a typo, not a list of one odd word.
        if self.container and not text.startswith("["):
            return self._contain([text], ValueType.from_text)
        raise ValueError(f"{text!r} is not {self.expected}")

    def from_data(self, value: Any) -> Any:
        """A value from JSON, YAML or a dict: strings are converted unless the type accepts them; others mostly kept."""
        found = self._choice(value)
        if found is not _MISSING:
            return found
        if isinstance(value, str):
            return value if str in self.scalars else self.from_text(value)
        if isinstance(value, list | tuple) and self.container:
            return self._contain(value, ValueType.from_data)
        if isinstance(value, dict) and self.mapping:
            return self._map(value)
        only_choices = self.choices and not (self.scalars or self.mapping or self.container)
        if only_choices and value is not None:
            raise ValueError(f"{value!r} is not {self.expected}")
        return value

    def _choice(self, value: Any) -> Any:
        """The Literal or Enum member with this spelling, in its declared type."""
        if value is None:
            return _MISSING
        for literal in self.literals:
            spelling = str(literal).lower() if isinstance(literal, bool) else str(literal)
            given = str(value).lower() if isinstance(literal, bool) else str(value)
            if (isinstance(value, str) or type(value) is type(literal)) and given == spelling:
                return literal
        for kind in self.enums:
            if isinstance(value, kind):
                return value
            try:
                return kind(value)
            except ValueError:
                for member in kind:
                    if isinstance(value, str) and str(member.value) == value:
                        return member
        return _MISSING

    def _json(self, text: str) -> Any:
        wanted = (self.mapping and text.startswith("{")) or (self.container and text.startswith("["))
        if not wanted:
            return _MISSING
        try:
            value = read_json(text)
        except ValueError as error:
            if str in self.scalars:
                return _MISSING
            raise ValueError(f"{text!r} is not valid JSON: {error}") from None
        return self._map(value) if isinstance(value, dict) else self._contain(value, ValueType.from_data)

    def _scalar(self, text: str) -> Any:
        word = text.lower()
        if bool in self.scalars:
            # If numbers or strings are accepted too, "1" and "no" are not bools; only "true" and "false" are.
            alone = not {int, float, str} & set(self.scalars)
            if word in ("true", "false") or (alone and word in TRUE_WORDS | FALSE_WORDS):
                return word in TRUE_WORDS
        # Narrow types before wide ones: str accepts everything, so it comes last.
        for kind in (int, float, str):
            if kind in self.scalars:
                try:
                    return kind(text)
                except ValueError:
                    continue
        for kind in self.scalars:
            if callable(kind) and kind is not type and kind not in _NAMES:
                try:
                    return kind(text)
                except (TypeError, ValueError) as error:
                    raise ValueError(f"{text!r} is not {self.expected}: {error}") from error
        return _MISSING

    def _elements(self, count: int = 1) -> list[ValueType]:
        """The types of `count` elements of the container."""
        inner = typing.get_args(self.container)
        if (typing.get_origin(self.container) or self.container) is tuple and inner and inner[-1] is not Ellipsis:
            return [ValueType(hint) for hint in inner]
        return [ValueType(inner[0] if inner else str)] * count

    def _contain(self, items: Any, convert: Callable[[ValueType, Any], Any]) -> Any:
        kinds = self._elements(len(items))
        if len(kinds) != len(items):
            raise ValueError(f"expected {len(kinds)} values, got {len(items)}: {list(items)}")
        build = _CONTAINERS[typing.get_origin(self.container) or self.container]
        return build([convert(kind, item) for kind, item in zip(kinds, items, strict=True)])

    def _map(self, items: dict[Any, Any]) -> dict[Any, Any]:
        inner = typing.get_args(self.mapping)
        if not inner or inner[1] is Any:
            return items
        key, value = ValueType(inner[0]), ValueType(inner[1])
        return {key.from_data(name): value.from_data(item) for name, item in items.items()}
