"""The options of dataclasses: one per field and one per alias."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import sys
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from .. import behaviour
from ..errors import ArgumentError
from .values import ValueType


@dataclasses.dataclass(slots=True)
class Option:
    """One option: a field, or an alias of it."""

    owner: type
    name: str
    field: dataclasses.Field[Any]
    metadata: Mapping[str, Any]
    type: ValueType
    keyword: str
    """The parameter of `owner`'s constructor."""
    flags: list[str]
    merges: bool = False
    """Adds to the field's value instead of replacing it."""
    aliases: list[str] = dataclasses.field(default_factory=list)
    """Flags of the aliases; only on the field's main option."""
    hidden: bool = False
    """Accepted, but not shown in the help."""

    @property
    def is_alias(self) -> bool:
        return self.name != self.field.name

    @property
    def required(self) -> bool:
        return self.field.default is dataclasses.MISSING and self.field.default_factory is dataclasses.MISSING

    @property
    def default(self) -> Any:
        factory = self.field.default_factory
        return self.field.default if factory is dataclasses.MISSING else factory()

    @property
    def converts(self) -> bool:
        """Whether the dataclass converts strings itself (as oneloop's do), so it may accept what this parser cannot."""
        return "convert" in self.metadata

    def from_words(self, words: str | list[str] | None) -> Any:
        """The value of this option on the command line; raises ValueError if it is invalid."""
        word = words[0] if isinstance(words, list) and len(words) == 1 else words
        try:
            value = self._check(self.type.from_words(words))
        except ValueError:
            if self.converts:
                return word
            raise
        # "a,b" is one word here, but may be a list for the dataclass.
        return word if self.converts and value == [word] else value

    def from_data(self, value: Any) -> Any:
        """The value of this option in a dict or a file; raises ValueError if it is invalid."""
        return value if self.converts else self._check(self.type.from_data(value))

    def _check(self, value: Any) -> Any:
        choices = None if self.converts else self.metadata.get("choices")
        for item in value if isinstance(value, list | tuple | set | frozenset) else [value]:
            plain = item.value if isinstance(item, enum.Enum) else item
            if choices and plain is not None and plain not in choices and item not in choices:
                raise ValueError(f"{plain!r} is not one of {', '.join(map(str, choices))}")
        return value


def collect(classes: Iterable[type]) -> list[Option]:
    """The options of all these dataclasses. Two fields with the same name are an error; a field overrides another
    class's alias, and both override an argument with a fixed value."""
    classes = list(classes)
    found: dict[str, Option] = {}
    per_class = _without_unknown([_options_of(cls) for cls in classes])
    for option in (option for options in per_class for option in options if not option.is_alias):
        _refuse_twins(found.get(option.name), option)
        found[option.name] = option
    for option in (option for options in per_class for option in options if option.is_alias):
        holder = found.get(option.name)
        if holder is not None and not holder.is_alias:
            continue
        _refuse_twins(holder, option)
        found[option.name] = option
    flags: dict[str, Option] = {}
    for option in found.values():
        for flag in option.flags:
            _refuse_twins(flags.get(flag), option, flag)
            flags[flag] = option
        if option.is_alias:
            found[option.field.name].aliases.append(f"--{option.name}")
    for cls in classes:
        for name, fixed_argument in getattr(cls, "__fixed_arguments__", {}).items():
            if name not in found:
                found[name] = _fixed_option(cls, name, fixed_argument)
    return list(found.values())


def _fixed_option(cls: type, name: str, fixed_argument: Any) -> Option:
    field: dataclasses.Field[Any] = dataclasses.field(default=fixed_argument.values[0])
    field.name = name
    return Option(cls, name, field, {}, ValueType(fixed_argument.hint), name, spellings(name), hidden=True)


def _without_unknown(per_class: list[list[Option]]) -> list[list[Option]]:
    """A script's field may override an argument of oneloop with the same name, which then keeps its default: any, if
    that is the behaviour, and otherwise those whose names scripts often have for their own (`overridable`)."""
    any_name = behaviour.current().script_fields_win
    own = {option.name for options in per_class for option in options if not _is_of_oneloop(option)}

    def gives_way(option: Option) -> bool:
        return _is_of_oneloop(option) and option.field.name in own and (any_name or option.metadata["overridable"])

    return [[option for option in options if not gives_way(option)] for options in per_class]


def _is_of_oneloop(option: Option) -> bool:
    return "group" in option.metadata and "enum" in option.metadata


def _refuse_twins(holder: Option | None, option: Option, flag: str | None = None) -> None:
    if holder is not None:
        kinds = " and ".join(f"{each.owner.__name__}.{each.field.name}" for each in (holder, option))
        raise ArgumentError(
            f"{kinds} would both define the option {flag or '--' + option.name}. "
            "Rename one of them, or use one parser per class."
        )


def _options_of(cls: type) -> list[Option]:
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise TypeError(
            f"ArgumentParser expects dataclasses (types, not instances), got {cls!r}. "
            "Decorate the class with @dataclass, or add single options with add_argument."
        )
    hints = _Hints(cls)
    own, spelled = getattr(cls, "__aliases__", {}), getattr(cls, "__spelled_fields__", {})
    options: dict[str, Option] = {}
    for field in dataclasses.fields(cls):
        if not field.init or spelled.get(field.name) is field:
            continue
        metadata = _metadata(cls, field)
        hint = metadata.get("hint")
        kind = ValueType(hints[field] if hint is None else hint, metadata.get("choices") or ())
        main = Option(cls, field.name, field, metadata, kind, field.name, spellings(field.name))
        options[field.name] = main
        for alias in metadata.get("aliases") or ():
            name = alias.lstrip("-").replace("-", "_")
            if alias.startswith("-") and not alias.startswith("--"):
                main.flags.append(alias)
            elif name not in own and name not in options:
                options[name] = Option(cls, name, field, metadata, kind, field.name, spellings(name))
    for name, alias in own.items():
        target = options.get(alias.target)
        if target is None or name in options:
            continue
        hint = getattr(alias, "type", None)
        listed = target.metadata.get("choices") or ()
        kind = target.type if hint is None else ValueType(hints.evaluate(hint, name), listed)
        merges = getattr(alias, "merges", False)
        options[name] = Option(cls, name, target.field, target.metadata, kind, name, spellings(name), merges)
    return list(options.values())


def _metadata(cls: type, field: dataclasses.Field[Any]) -> Mapping[str, Any]:
    """A field's metadata; if a subclass only changed the default, that of the class it was inherited from."""
    rules_of = getattr(cls, "__rules__", _no_rules)
    own = rules_of(field) or field.metadata
    if own:
        return own
    for base in cls.__mro__[1:]:
        inherited = vars(base).get("__dataclass_fields__", {}).get(field.name)
        known = None if inherited is None else rules_of(inherited) or inherited.metadata
        if known:
            return {**known, "shown": None}
    return {}


def _no_rules(field: dataclasses.Field[Any]) -> None:
    """A dataclass that is not oneloop's has metadata alone."""


def spellings(name: str) -> list[str]:
    """The flags for a name: as written, and with dashes."""
    return list(dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"]))


class _Hints:
    """The annotations of a dataclass as objects, also if they are written as strings."""

    def __init__(self, cls: type) -> None:
        self.cls = cls
        try:
            self.known = typing.get_type_hints(cls, include_extras=True)
        except Exception:
            # One unresolvable annotation (perhaps not even of an option) must not affect the others.
            self.known = {}

    def __getitem__(self, field: dataclasses.Field[Any]) -> Any:
        return self.known[field.name] if field.name in self.known else self.evaluate(field.type, field.name)

    def evaluate(self, hint: Any, name: str) -> Any:
        if not isinstance(hint, str):
            return hint
        for base in self.cls.__mro__:
            try:
                return eval(hint, dict(vars(sys.modules[base.__module__])), dict(vars(base)))
            except Exception:
                continue
        raise ArgumentError(
            f"the annotation {hint!r} of {self.cls.__name__}.{name} cannot be resolved. Import its names at the top of "
            "the module that defines the class (not inside a function, nor only under TYPE_CHECKING)."
        )


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The closest known name, if any is close enough."""
    pool = list(names)
    close = difflib.get_close_matches(name, pool, n=1)
    if close:
        return close[0]
    # "batch_size" is far from "per_device_train_batch_size" in edit distance, yet is part of it.
    return next((other for other in sorted(pool, key=len) if len(name) > 3 and name in other), None)
