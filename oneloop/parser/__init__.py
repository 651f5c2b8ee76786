"""Dataclasses from the command line, a dict, a JSON file or a YAML file."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar, cast, overload

from .. import behaviour
from ..errors import ArgumentError, OneloopError, UnknownArgumentError
from ..secrets import clean, clean_text
from . import files
from .help import NOTE, FieldAction, HelpFormatter, NegationAction, describe, summary
from .options import Option, collect, nearest, spellings

__all__ = ["ArgumentParser", "HfArgumentParser", "PdArgumentParser"]

# Marks the start of one source's words (an args file, then the command line), so that later sources override earlier.
_SOURCE = "--oneloop-args-source"
_NEGATIVE_NUMBER = re.compile(r"-(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?$|-inf$")


class UnknownWordsError(ArgumentError):
    """Words on the command line that are no options."""


Made = TypeVar("Made", bound=tuple[Any, ...])
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")


class ArgumentParser(argparse.ArgumentParser, Generic[Made]):
    """An argparse parser with an option for every field and alias of the given dataclasses.

    Accepts dataclasses one by one or as one list or tuple; other keywords are passed to `argparse.ArgumentParser`. Only
    values that were given are passed to a dataclass's constructor: defaults stay with the dataclass.
    """

    if not TYPE_CHECKING:  # it would hide the overloads of __init__

        def __new__(cls, *classes: Any, dataclass_types: Any = None, **kwargs: Any) -> Any:
            """Another parser, if one is expected, reads dataclasses that have nothing of oneloop."""
            given = [*classes, dataclass_types] if dataclass_types is not None else classes
            expected = behaviour.current().parser
            theirs = expected() if expected is not None and cls is ArgumentParser else None
            if theirs is None or any(isinstance(each, Iterator) for each in given):  # which __init__ reads
                return super().__new__(cls)
            listed = _flatten(given)
            ours = any(hasattr(each, "__aliases__") for each in listed)
            return super().__new__(cls) if ours else theirs(listed, **kwargs)

    # Up to four dataclasses are known to a type checker by their number and types.
    @overload
    def __init__(self: ArgumentParser[tuple[A]], first: type[A], /, **kwargs: Any) -> None: ...
    @overload
    def __init__(self: ArgumentParser[tuple[A]], classes: tuple[type[A]], /, **kwargs: Any) -> None: ...
    @overload
    def __init__(self: ArgumentParser[tuple[A, B]], first: type[A], second: type[B], /, **kwargs: Any) -> None: ...
    @overload
    def __init__(self: ArgumentParser[tuple[A, B]], classes: tuple[type[A], type[B]], /, **kwargs: Any) -> None: ...
    @overload
    def __init__(
        self: ArgumentParser[tuple[A, B, C]], first: type[A], second: type[B], third: type[C], /, **kwargs: Any
    ) -> None: ...
    @overload
    def __init__(
        self: ArgumentParser[tuple[A, B, C]], classes: tuple[type[A], type[B], type[C]], /, **kwargs: Any
    ) -> None: ...
    @overload
    def __init__(
        self: ArgumentParser[tuple[A, B, C, D]],
        first: type[A],
        second: type[B],
        third: type[C],
        fourth: type[D],
        /,
        **kwargs: Any,
    ) -> None: ...
    @overload
    def __init__(
        self: ArgumentParser[tuple[A, B, C, D]], classes: tuple[type[A], type[B], type[C], type[D]], /, **kwargs: Any
    ) -> None: ...
    @overload
    def __init__(
        self: ArgumentParser[tuple[Any, ...]], *classes: Any, dataclass_types: Any = None, **kwargs: Any
    ) -> None: ...
    def __init__(self, *classes: Any, dataclass_types: Any = None, **kwargs: Any) -> None:  # type: ignore[misc]
        kwargs.setdefault("formatter_class", HelpFormatter)
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("epilog", NOTE)
        super().__init__(**kwargs)
        # argparse before 3.14 parses -1e-5 as an option.
        self._negative_number_matcher = _NEGATIVE_NUMBER
        listed = [] if dataclass_types is None else [dataclass_types]
        self.dataclass_types: list[Any] = _flatten(classes) + _flatten(listed)
        self._fields: dict[str, Option] = {option.name: option for option in collect(self.dataclass_types)}
        self._add_fields()
        self.add_argument(_SOURCE, action=_SourceAction, help=argparse.SUPPRESS, default=argparse.SUPPRESS)

    def _add_fields(self) -> None:
        groups: dict[tuple[type, str], Any] = {}
        for option in self._fields.values():
            heading = option.metadata.get("group") or ""
            key = (option.owner, heading)
            if key not in groups:
                title = f"{option.owner.__name__} / {heading}" if heading else option.owner.__name__
                first = all(owner is not option.owner for owner, _ in groups)
                groups[key] = self.add_argument_group(title, summary(option.owner) if first else None)
            shown = argparse.SUPPRESS if option.is_alias or option.hidden else None
            common = {"dest": option.name, "option": option}
            try:
                groups[key].add_argument(
                    *option.flags, action=FieldAction, nargs=option.type.nargs, help=shown, **common
                )
            except argparse.ArgumentError as error:
                raise ArgumentError(
                    f"{option.owner.__name__}.{option.field.name} needs an option that the parser already has "
                    f"({error}). Rename the field, or pass add_help=False if it should replace --help."
                ) from error
            no = f"no_{option.name}"
            if option.type.is_switch and not option.name.startswith("no_") and no not in self._fields:
                hidden = argparse.SUPPRESS
                groups[key].add_argument(*spellings(no), action=NegationAction, nargs=0, help=hidden, **common)

    def error(self, message: str) -> NoReturn:
        super().error(clean_text(message))

    def format_help(self) -> str:
        # Not in the constructor: default factories may be slow, and most runs never show the help.
        for action in self._actions:
            if isinstance(action, FieldAction) and action.help is not argparse.SUPPRESS:
                action.help = describe(action.option)
        return super().format_help()

    @overload
    def parse_args_into_dataclasses(
        self,
        args: Sequence[str] | None = None,
        return_remaining_strings: Literal[False] = False,
        look_for_args_file: bool = True,
        args_filename: str | os.PathLike[str] | None = None,
        args_file_flag: str | None = None,
    ) -> Made: ...
    @overload
    def parse_args_into_dataclasses(
        self,
        args: Sequence[str] | None = None,
        return_remaining_strings: bool = False,
        look_for_args_file: bool = True,
        args_filename: str | os.PathLike[str] | None = None,
        args_file_flag: str | None = None,
    ) -> tuple[Any, ...]: ...
    def parse_args_into_dataclasses(
        self,
        args: Sequence[str] | None = None,
        return_remaining_strings: bool = False,
        look_for_args_file: bool = True,
        args_filename: str | os.PathLike[str] | None = None,
        args_file_flag: str | None = None,
    ) -> tuple[Any, ...]:
        """One instance per dataclass, in order, from the command line (or `args`).

        Args files are read before the command line, which overrides them: `args_filename`, or otherwise
        (`look_for_args_file`) the file named like the script with the suffix `.args`; then the files given on the
        command line with `args_file_flag`, which may be repeated. Options added with `add_argument` are returned as a
        namespace after the dataclasses; with `return_remaining_strings`, unknown words are returned last as a list
        instead of raising an error.
        """
        words = sys.argv[1:] if args is None else args
        try:
            sources = files.read_sources(words, look_for_args_file, args_filename, args_file_flag)
            namespace, rest = super().parse_known_args(_join(sources))
            if rest and not return_remaining_strings:
                self._fail_on(rest, sources)
            made = self._build(self._take(namespace), "option", "--")
        except UnknownWordsError:
            raise
        except OneloopError as error:
            self.error(str(error))
        extra = [namespace] if vars(namespace) else []
        return (*made, *extra, rest) if return_remaining_strings else (*made, *extra)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """argparse's method. Where it is expected, the namespace has the defaults of the dataclasses too."""
        found, rest = super().parse_known_args(args, namespace)
        if behaviour.current().namespace_has_defaults:
            for option in self._fields.values():
                if (
                    not option.is_alias
                    and not option.hidden
                    and not option.required
                    and not hasattr(found, option.name)
                ):
                    setattr(found, option.name, option.default)
        return found, rest

    def parse_dict(self, args: Mapping[str, Any], allow_extra_keys: bool = False) -> Made:
        """One instance per dataclass from a dict of names (or aliases) and values; an unknown key is an error."""
        return cast(Made, tuple(self._build(self._from_data(args, allow_extra_keys), "key")))

    def parse_given(
        self, args: Sequence[str], data: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], set[str], argparse.Namespace]:
        """What is given in a mapping, such as that of a file, and on the command line, which overrides it. No dataclass
        is built.

        Returns the values by the names that were used, the fields that they set, and the options of `add_argument`.
        """
        try:
            stored = self._from_data({} if data is None else data, False, "see --help for all of them.")
            namespace, rest = super().parse_known_args(list(args))
            if rest:
                self.error(self._unknown_words(rest, []))
            namespace._args_sources = [stored]
            given = self._take(namespace)
        except OneloopError as error:
            self.error(str(error))
        return given, {self._fields[name].field.name for name in given}, namespace

    def owner(self, name: str) -> type:
        """The dataclass that has a field or alias of this name."""
        return self._fields[name].owner

    def parse_json_file(self, json_file: str | os.PathLike[str], allow_extra_keys: bool = False) -> Made:
        """One instance per dataclass from a JSON file with one object; see parse_dict."""
        return self._parse_file(json_file, files.read_json(json_file), allow_extra_keys)

    @overload
    def parse_json_file_and_cmd_lines(self, return_remaining_strings: Literal[False] = False) -> Made: ...
    @overload
    def parse_json_file_and_cmd_lines(self, return_remaining_strings: bool = False) -> tuple[Any, ...]: ...
    def parse_json_file_and_cmd_lines(self, return_remaining_strings: bool = False) -> tuple[Any, ...]:
        """From `script.py settings.json --option value ...`: the command line overrides the file."""
        if len(sys.argv) < 2 or not sys.argv[1].endswith(".json"):
            self.error("the first argument must be a JSON file: script.py settings.json --option value")
        try:
            stored = self._from_data(files.read_json(sys.argv[1]), False)
            namespace, rest = super().parse_known_args(sys.argv[2:])
            if rest and not return_remaining_strings:
                self._fail_on(rest, [])
            namespace._args_sources = [stored]
            made = self._build(self._take(namespace), "option", "--")
        except UnknownWordsError:
            raise
        except OneloopError as error:
            self.error(str(error))
        return (*made, rest) if return_remaining_strings else tuple(made)

    def parse_yaml_file(self, yaml_file: str | os.PathLike[str], allow_extra_keys: bool = False) -> Made:
        """One instance per dataclass from a YAML file with one mapping; see parse_dict. Requires PyYAML."""
        return self._parse_file(yaml_file, files.read_yaml(yaml_file), allow_extra_keys)

    def _parse_file(self, path: str | os.PathLike[str], data: Mapping[str, Any], allow_extra_keys: bool) -> Made:
        try:
            return self.parse_dict(data, allow_extra_keys)
        except ArgumentError as error:
            error.args = (f"{os.fspath(path)}: {error}",)
            raise

    def _from_data(
        self,
        data: Mapping[str, Any],
        allow_extra_keys: bool,
        advice: str = "pass allow_extra_keys=True to ignore other keys.",
    ) -> dict[str, Any]:
        given: dict[str, Any] = {}
        unknown, wrong = [], []
        for key, value in data.items():
            option = self._fields.get(str(key).replace("-", "_"))
            if option is None:
                hint = self._hint(str(key), {name: repr(name) for name in self._fields})
                unknown.append(f"{key!r}{hint}")
                continue
            try:
                given[option.name] = option.from_data(value)
            except ValueError as error:
                wrong.append(f"{key}: {error}")
        if unknown and not allow_extra_keys:
            raise UnknownArgumentError(
                f"unknown {'keys' if len(unknown) > 1 else 'key'} {', '.join(unknown)}. "
                f"Expected fields of {self._owners()}; {advice}"
            )
        if wrong:
            raise ArgumentError("; ".join(wrong))
        return given

    def _build(self, given: dict[str, Any], noun: str, prefix: str = "") -> list[Any]:
        """Build the dataclasses from values by name; checks for missing and conflicting values."""
        reached = {self._fields[name].field.name for name in given}
        required = [option.name for option in self._fields.values() if option.required and not option.is_alias]
        missing = [prefix + name for name in required if name not in reached]
        if missing:
            plural = "s are" if len(missing) > 1 else " is"
            raise ArgumentError(f"the following {noun}{plural} required: {', '.join(missing)}")
        keywords: dict[type, dict[str, Any]] = {cls: {} for cls in self.dataclass_types}
        spelt: dict[tuple[type, str], str] = {}
        for name, value in given.items():
            option = self._fields[name]
            taken = keywords[option.owner].setdefault(option.keyword, value)
            first = spelt.setdefault((option.owner, option.keyword), name)
            if first != name and taken != value:
                raise ArgumentError(
                    f"{prefix}{first} and {prefix}{name} are aliases of one argument, but have different values: "
                    f"{clean(taken, first)!r} and {clean(value, name)!r}. Pass one of them."
                )
        return [cls(**keywords[cls]) for cls in self.dataclass_types]

    def _pop(self, namespace: argparse.Namespace) -> dict[str, Any]:
        """Remove the values of fields from a namespace; options added with add_argument remain."""
        held = vars(namespace)
        return {name: held.pop(name) for name in list(held) if name in self._fields}

    def _take(self, namespace: argparse.Namespace) -> dict[str, Any]:
        """The given values; each source overrides those before it, whichever aliases they use."""
        earlier = vars(namespace).pop("_args_sources", [])
        vars(namespace).pop("_args_file", None)
        given: dict[str, Any] = {}
        for source in [*earlier, self._pop(namespace)]:
            fields = {self._fields[name].field.name for name in source if not self._fields[name].merges}
            kept = {name: value for name, value in given.items() if self._fields[name].field.name not in fields}
            given = {**kept, **source}
        return given

    def _fail_on(self, rest: list[str], sources: list[files.Source]) -> NoReturn:
        """Exit because of unknown words, or raise a ValueError where that is expected."""
        message = self._unknown_words(rest, sources)
        if behaviour.current().unknown_words_raise:
            raise UnknownWordsError(message)
        self.error(message)

    def _unknown_words(self, rest: list[str], sources: list[files.Source]) -> str:
        flags = [flag for flag in self._option_string_actions if flag.startswith("--") and flag != _SOURCE]
        # Reversed, so that of --max_steps and --max-steps the first registered is the one suggested.
        names = {flag[2:].replace("-", "_"): flag for flag in reversed(flags)}
        messages = []
        for word in rest:
            if word.startswith("-") and word != "--" and not _NEGATIVE_NUMBER.match(word):
                flag = word.split("=")[0]
                hint = self._hint(flag.lstrip("-"), names)
                where = next((f" in {source.path}" for source in sources if source.path and word in source.words), "")
                messages.append(f"unknown option {flag}{where}{hint}")
            elif not messages:
                # Words after an unknown option are its values: report only the option.
                messages.append(f"unexpected argument {word!r}")
        return f"{'; '.join(messages)}. See --help for all options."

    def _hint(self, name: str, shown: dict[str, str]) -> str:
        """A suggestion for an unknown name; `shown` maps the known names to how they are printed."""
        name = name.replace("-", "_")
        for cls in self.dataclass_types:
            if name in getattr(cls, "__elsewhere__", {}):
                return f" (it belongs to {cls.__elsewhere__[name]})"
        near = nearest(name, shown)
        return f" (did you mean {shown[near]}?)" if near else ""

    def _owners(self) -> str:
        return ", ".join(cls.__name__ for cls in self.dataclass_types)


class _SourceAction(argparse.Action):
    """Stores the values of the sources so far, and the name of the source that follows."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        namespace._args_sources = [*getattr(namespace, "_args_sources", []), parser._pop(namespace)]
        namespace._args_file = values


def _join(sources: list[files.Source]) -> list[str]:
    if len(sources) == 1:
        return sources[0].words
    return [word for source in sources for word in (f"{_SOURCE}={source.path}", *source.words)]


def _flatten(classes: Iterable[Any]) -> list[Any]:
    return [item for entry in classes for item in (entry if isinstance(entry, Iterable) else [entry])]


HfArgumentParser = ArgumentParser
PdArgumentParser = ArgumentParser
