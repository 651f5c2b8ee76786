"""What `--help` shows: one entry per field, with type, choices, default and other spellings."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import json
from collections.abc import Iterable
from typing import Any

from .options import Option

NOTE = (
    "Names may be written with dashes or underscores. A switch is set by --x or --x true and unset by --no_x or "
    "--x false. Lists are words (--x a b) or JSON; dictionaries are JSON; none unsets what may be unset."
)


class FieldAction(argparse.Action):
    """Stores the converted value of one option; what is not given leaves no trace in the namespace."""

    def __init__(self, option_strings: list[str], dest: str, option: Option, **kwargs: Any) -> None:
        super().__init__(option_strings, dest, default=argparse.SUPPRESS, metavar=option.type.label, **kwargs)
        self.option = option

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        try:
            setattr(namespace, self.dest, self.option.from_words(values))
        except ValueError as error:
            raise argparse.ArgumentError(None, f"argument {option_string}: {error}{in_file(namespace)}") from error


class NegationAction(FieldAction):
    """`--no_x`."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, False)


def in_file(namespace: argparse.Namespace) -> str:
    """Where the words being parsed come from, when not from the command line."""
    path = getattr(namespace, "_args_file", "")
    return f" (in {path})" if path else ""


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """argparse's own layout, with a usage line that stays short and one spelling in front of each entry."""

    def __init__(self, prog: str, max_help_position: int = 30, **kwargs: Any) -> None:
        super().__init__(prog, max_help_position=max_help_position, **kwargs)

    def add_usage(self, usage: str | None, actions: Iterable[argparse.Action], groups: Any, prefix: Any = None) -> None:
        if usage is None:
            words = ["%(prog)s"]
            for action in actions:
                if not action.option_strings and action.help is not argparse.SUPPRESS:
                    words.append(str(action.metavar or action.dest).replace("%", "%%"))
                elif isinstance(action, FieldAction) and not action.option.is_alias and _is_required(action.option):
                    words.append(f"{_public(action.option)} {action.metavar}")
                elif action.required:
                    words.append(f"{action.option_strings[0]} {action.metavar or action.dest.upper()}")
            usage = " ".join([*words, "[options]"])
        super().add_usage(usage, actions, groups, prefix)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not isinstance(action, FieldAction):
            return super()._format_action_invocation(action)
        short = [flag for flag in action.option_strings if not flag.startswith("--")]
        value = {"?": "[{}]", "*": "{} ..."}.get(str(action.nargs), "{}").format(action.metavar)
        return ", ".join([*short, f"{_public(action.option)} {value}"])


def describe(option: Option) -> str:
    """The help text of one option, safe for argparse's %-formatting."""
    listed = option.metadata.get("choices") or option.type.choices
    notes = [f"one of: {', '.join(_plain(choice) for choice in listed)}"] if listed else []
    notes.append("required" if _is_required(option) else f"default: {_default(option)}")
    others = [flag for flag in option.aliases if flag != _public(option)]
    notes += [f"also: {', '.join(others)}"] if others else []
    text = str(option.metadata.get("help") or "").strip()
    text = f"{text} ({'; '.join(notes)})".strip()
    # Help written for plain argparse doubles its percent signs; both ways of writing end up as one sign.
    return text.replace("%%", "%").replace("%", "%%")


def _public(option: Option) -> str:
    """The spelling to show: the field's own, unless its metadata prefers another."""
    flag = f"--{option.metadata.get('public')}"
    return flag if flag in option.aliases else f"--{option.name}"


def _is_required(option: Option) -> bool:
    return option.required or option.metadata.get("shown") == "required"


def summary(cls: type) -> str | None:
    """The first line of a class's own docstring (dataclasses invent one from the signature: not that)."""
    text = (cls.__doc__ or "").strip()
    return None if not text or text.startswith(f"{cls.__name__}(") else text.splitlines()[0]


def _default(option: Option) -> str:
    field = option.field
    if option.metadata.get("shown"):
        return str(option.metadata["shown"])
    if field.default_factory is dataclasses.MISSING:
        return _plain(field.default)
    try:
        return _plain(field.default_factory())
    except Exception:
        return "made when the program runs"


def _plain(value: Any) -> str:
    """A value as one would write it on the command line."""
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, dict):
        try:
            return json.dumps(value, ensure_ascii=False)
        except TypeError:
            return str(value)
    if isinstance(value, list | tuple) and value:
        return " ".join(_plain(item) for item in value)
    return str(value) or '""'
