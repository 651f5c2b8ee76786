"""signatures.pyi, written from the arguments themselves: `python -m oneloop.arguments.typing_stub [--check]`.

It tells editors and type checkers what the constructors take (every argument in every spelling, with the types that
are converted) and what the attributes hold afterwards. It is no part of a running program.

An argument whose stored type is also what is usually given (a number, a switch, text) is a plain field there, so that a
derived dataclass can declare it again with another default. The others are descriptors, which read and take different
types. The constructors themselves are written out, since a dataclass has one type for both.
"""

import json
import sys
import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass
from pathlib import Path
from typing import Any

from . import CompressionArguments, Seq2SeqTrainingArguments, TrainingArguments, values
from .aliases import Alias
from .compression import Compression
from .fields import declared, stored_fields
from .fixed import FIXED_ARGUMENTS
from .generated_page import write_or_check
from .paddleformers import NO_ATTRIBUTES
from .seq2seq import Generation

STUB = Path(__file__).with_name("signatures.pyi")
POSITIONAL = "output_dir"
MOST_LITERALS = 20  # a longer list of choices has a name of its own
PLAIN = ("bool", "Integer", "Number", "Text", "str")  # where a derived dataclass can declare the stored type again

OPENING = '''\
# Written by `python -m oneloop.arguments.typing_stub`; change the declarations in oneloop/arguments/, not this file.
# fmt: off
# ruff: noqa: E501
"""What the constructors of the arguments take and what their attributes hold, for editors and type checkers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ..enums import HubStrategy, IntervalStrategy, SaveStrategy, SchedulerType
from ..optim.catalog import OptimizerNames
from .accelerator import AcceleratorConfig
from .fields import Group
from .given import Argument, Config, Integer, JsonDict, Number, Text, Words

_DEFAULT: Any
'''
METHODS = """\
    def validate(self) -> None: ...
    def check_together(self) -> None: ...
"""


@dataclass(frozen=True)
class Entry:
    """One argument in one spelling: the types of what is stored and of what can be given, as source code."""

    name: str
    stored: str
    given: str
    default: str
    help: str
    is_filled: bool = False  # None can be given, and is replaced at once

    @property
    def is_plain(self) -> bool:
        """Whether a field of the stored type will do."""
        if self.is_filled:
            return False
        accepted = [part for part in self.given.split(" | ") if part != "None" and not part.startswith("Literal[")]
        is_choice = not accepted and self.stored in ("str", "str | None")
        return self.given == self.stored or is_choice or (len(accepted) == 1 and accepted[0] in PLAIN)

    def field(self) -> str:
        # A derived dataclass may declare `eval_strategy: str = "epoch"`: text that is converted to what is stored.
        is_text = not self.is_plain and "str" not in self.stored.split(" | ") and self.stored not in ("Any", "bool")
        stored = f"{self.stored} | Any" if is_text else self.stored
        kind = self.stored if self.is_plain else f"Argument[{stored}, {self.given}]"
        default = "field(default=_DEFAULT, kw_only=False)" if self.name == POSITIONAL else "..."
        return f'    {self.name}: {kind} = {default}\n    """{_quoted(self.help)}"""\n'

    def parameter(self) -> str:
        return f"        {self.name}: {self.given} = {self.default},\n"


def _quoted(text: str) -> str:
    """Text as it can stand in a docstring, also at its end."""
    text = text.replace("\\", "\\\\")
    return text + " " if text.endswith('"') else text


def _source(hint: Any) -> str:
    """A type as it is written. What can be any object is Any, since `object` has no attributes to read."""
    if isinstance(hint, str):
        return hint
    if isinstance(hint, types.UnionType):
        names = list(dict.fromkeys(_source(member) for member in typing.get_args(hint)))
        return " | ".join(name for name in names if name != "int" or "float" not in names)
    if hint in (Any, object):
        return "Any"
    if hint is type(None):
        return "None"
    return str(hint).replace("typing.", "") if typing.get_origin(hint) else hint.__name__


def _members(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def _or_none(source: str, is_optional: bool) -> str:
    return f"{source} | None" if is_optional and "None" not in source.split(" | ") and source != "Any" else source


def _converter(hint: Any) -> Callable[..., Any]:
    kind = next(member for member in _members(hint) if member is not type(None))
    return values.CONVERTERS[typing.get_origin(kind) or kind]


def _accepted(function: Callable[..., Any]) -> str:
    """What a conversion says that it takes."""
    hint = getattr(function, "__annotations__", {}).get("value", Any)
    return "object" if hint is object else _source(hint)


def _literals(choices: list[Any]) -> str:
    return f"Literal[{', '.join(map(_literal, choices))}]"


def _literal(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _alias(enum: type) -> str:
    """The name of the type of an enum's values, where they are many."""
    return f"{enum.__name__}Value"


def _given(hint: Any, rules: Any) -> str:
    """The types that an argument can be given as. There is no `str` beside the choices, which would admit any text."""
    choices, enum = rules["choices"], rules["enum"]
    if enum is not None:
        off = ["Literal[False]"] if "no" in choices else []  # YAML parses a bare `no` as False
        values_of = _literals(choices) if len(choices) <= MOST_LITERALS else _alias(enum)
        accepted = " | ".join([enum.__name__, values_of, *off])
    elif choices and typing.get_origin(hint) is not list:
        converted = _accepted(rules["convert"]).split(" | ") if rules["convert"] is not None else []
        accepted = " | ".join([_literals(choices), *(part for part in converted if part not in ("str", "Text"))])
    elif rules["convert"] is not None:
        accepted = _accepted(rules["convert"])
    else:
        accepted = _accepted(_converter(hint))
    return _or_none(accepted, type(None) in _members(hint) or rules["none"])


def _stored(hint: Any, rules: Any, is_filled: bool) -> str:
    """The type that an argument has once it is converted; `is_filled`: None never stays."""
    kept = [member for member in _members(hint) if member is not type(None)]
    if rules["enum"] is not None:
        source = rules["enum"].__name__
    elif rules["convert"] is not None:
        source = _source(getattr(rules["convert"], "__annotations__", {}).get("return", Any))
    else:
        source = " | ".join(map(_source, kept))
    return _or_none(source, len(kept) < len(_members(hint)) and not is_filled)


def _default(item: Field[Any]) -> str:
    return "..." if item.default is MISSING else _literal(item.default)


def _arguments(cls: type[TrainingArguments]) -> list[Entry]:
    """The arguments under the names that they are stored by."""
    known, made = declared(cls), cls("output")
    entries = []
    for item in stored_fields(cls):
        if item.name not in known:
            kind = _source(item.type)
            entries.append(Entry(item.name, kind, kind, _default(item), item.metadata["help"]))
            continue
        hint, rules = known[item.name]
        is_filled = item.default is None and getattr(made, item.name) is not None
        stored, given = _stored(hint, rules, is_filled), _given(hint, rules)
        entries.append(Entry(item.name, stored, given, _default(item), rules["help"], is_filled))
    return entries


def _spelling(alias: Alias, target: Entry) -> Entry:
    """Another spelling: it takes what its target takes, unless it translates; None is always ignored."""
    if alias.help == f"The same as {alias.target}.":
        return Entry(alias.name, target.stored, _or_none(target.given, True), "None", alias.help)
    if alias.name == "device":
        return Entry(alias.name, "Any", _or_none(target.given, True), "None", alias.help)
    accepted = getattr(alias.write, "__annotations__", {}).get("value", Any)
    given = accepted if isinstance(accepted, str) else _accepted(_converter(alias.type))
    stored = _or_none(_source(alias.type), alias.default is None)
    return Entry(alias.name, stored, _or_none(given, True), "None", alias.help)


def _fixed() -> list[Entry]:
    return [
        Entry(
            name, _source(each.hint), _source(each.hint), _literal(each.values[0]), f"{each.accepted_text}: {each.why}."
        )
        for name, each in FIXED_ARGUMENTS.items()
    ]


def _constructor(entries: list[Entry]) -> str:
    first, others = entries[0].parameter(), "".join(entry.parameter() for entry in entries[1:])
    helps = "".join(f"            {entry.name}: {_quoted(entry.help)}\n" for entry in entries)
    return (
        f"    def __init__(\n        self,\n{first}        *,\n{others}    ) -> None:\n"
        f'        """Arguments are passed by name, in any spelling.\n\n        Args:\n{helps}        """\n'
    )


def _class(name: str, base: str, entries: list[Entry], own: list[Entry], methods: str = "") -> str:
    declarations = "".join(entry.field() for entry in own if entry.name not in NO_ATTRIBUTES)
    return (
        f"\n@dataclass(init=False, kw_only=True)\nclass {name}({base}):\n"
        f"{declarations}\n{_constructor(entries)}{methods}"
    )


def _entries(cls: type[TrainingArguments]) -> list[Entry]:
    """Everything that the constructor of a class takes."""
    arguments = _arguments(cls)
    by_name = {entry.name: entry for entry in arguments}
    spellings = [_spelling(alias, by_name[alias.target]) for alias in cls.__aliases__.values()]
    return [*arguments, *spellings, *_fixed()]


def _aliases() -> str:
    """The long lists of choices."""
    enums = {rules["enum"]: rules["choices"] for _, rules in declared(TrainingArguments).values() if rules["enum"]}
    lines = [
        f"{_alias(enum)}: TypeAlias = {_literals(choices)}\n"
        for enum, choices in enums.items()
        if len(choices) > MOST_LITERALS
    ]
    return "\n" + "".join(lines) if lines else ""


def render() -> str:
    """The stub as text."""
    parts = [OPENING, _aliases()]
    entries = _entries(TrainingArguments)
    parts.append(_class("ArgumentFields", "Group", entries, entries, METHODS))
    for name, cls, group in (
        ("GenerationFields", Seq2SeqTrainingArguments, Generation),
        ("CompressionFields", CompressionArguments, Compression),
    ):
        entries = _entries(cls)
        own = [entry for entry in entries if entry.name in {item.name for item in stored_fields(group)}]
        parts.append(_class(name, "ArgumentFields", entries, own))
    return "".join(parts)


def main(words: list[str]) -> int:
    return write_or_check(STUB, render(), "oneloop.arguments.typing_stub", words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
