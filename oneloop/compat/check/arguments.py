"""Checks arguments: keywords, command lines and JSON files, against the tables of supported values."""

import ast
import contextlib
import difflib
import json
from pathlib import Path
from typing import Any, NoReturn

from ...arguments import Seq2SeqTrainingArguments, TrainingArguments
from ...arguments.compression import FIELDS as COMPRESSION
from ...arguments.compression import WHY
from ...arguments.fields import declared
from ...arguments.fixed import FIXED_ARGUMENTS
from ...arguments.support import unsupported_by
from ...arguments.unsupported import UnsupportedValue
from ...errors import ArgumentError, OneloopError
from ...parser import ArgumentParser
from ...parser.values import FALSE_WORDS
from .classes import Classes
from .findings import Finding

# Arguments that work, but with a different result than in the script's library.
CHANGES = {
    "gradient_accumulation_steps": "updates equal those of the undivided batch: micro-batches are weighted by labels",
    "load_best_model_at_end": "the best model is saved at each improvement: eval_steps and save_steps need not match",
    "overwrite_output_dir": "nothing is deleted; old checkpoints are kept",
    "fp16_opt_level": "O2 is O1 on torch: the weights stay in float32",
    "ignore_data_skip": "a resume computes its position in the data instead of skipping, so there is no time to save",
    "save_only_model": "as there, a run cannot be resumed from such a checkpoint",
}
_NOT_READ = object()


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ArgumentError(message)


class Arguments:
    """Checks the arguments of a script that runs on this framework."""

    def __init__(self, framework: str, classes: Classes, parsed: set[str] | None = None) -> None:
        """parsed: the classes that the command line is parsed into, if it accepts no other options; see parsers.py."""
        self.framework, self.classes, self.parsed = framework, classes, parsed
        self.cls: Any = Seq2SeqTrainingArguments
        self.compression = COMPRESSION if "CompressionArguments" in classes.library_names() else frozenset()
        arguments = declared(self.cls)
        own = {*classes.fields(), *classes.library_fields()}
        self.yielded = {name for name, (_, rules) in arguments.items() if rules["overridable"] and name in own}
        self.known = {
            rules["public"] or name: name for name, (_, rules) in arguments.items() if name not in self.yielded
        }

    # -- in a call

    def of_call(self, file: str, call: ast.Call, plain: bool = False) -> list[Finding]:
        """The keywords of TrainingArguments(...) or of a subclass; plain: of TrainingArguments itself."""
        found, values, read_all = [], {}, True
        lines = {}
        for keyword in call.keywords:
            line = keyword.value.lineno
            if keyword.arg is None:
                found.append(
                    Finding(file, line, "argument", f"**{ast.unparse(keyword.value)}", "unseen", "a dict: not checked")
                )
                read_all = False
                continue
            lines[keyword.arg] = line
            value = _literal(keyword.value)
            if value is _NOT_READ:
                read_all = False
            else:
                values[keyword.arg] = value
        if call.args and "output_dir" not in values:
            values["output_dir"] = "output"
        refused = self._refused(values, read_all)
        for name, line in lines.items():
            if plain and name in TrainingArguments.__elsewhere__:
                text = f"it belongs to {TrainingArguments.__elsewhere__[name]}"
                found.append(Finding(file, line, "argument", name, "refused", text))
            else:
                found.append(self._finding(file, line, name, values.get(name, _NOT_READ), refused))
        found += [
            Finding(file, call.lineno, "argument", "together", answer, text) for answer, text in refused.get("", [])
        ]
        return found

    def _finding(self, file: str, line: int, name: str, value: Any, refused: dict[str, list]) -> Finding:
        answer, text = self._answer(name, value)
        target = self._stored(name)
        for verdict, why in refused.get(self._public(target), []) if answer != "refused" else []:
            answer, text = verdict, why
            if verdict == "refused":
                break
        return Finding(file, line, "argument", name, answer, text)

    def _stored(self, name: str) -> str:
        alias = self.cls.__aliases__.get(name)
        return name if alias is None else alias.target

    def _public(self, stored: str) -> str:
        known = declared(self.cls)
        return (known[stored][1]["public"] or stored) if stored in known else stored

    def _answer(self, name: str, value: Any) -> tuple[str, str]:
        """The finding for a name, before its value is checked together with the others."""
        if name in FIXED_ARGUMENTS and name not in self.classes.fields():
            return _fixed_finding(name, value)
        if name in self.known or name in self.known.values():
            change = CHANGES.get(name)
            idle = value is None or value is False or (type(value) is int and value == 1)
            return ("changes", change) if change and not idle else ("works", "")
        if name in self.cls.__aliases__:
            alias = self.cls.__aliases__[name]
            is_other_name = alias.help.startswith("The same as")
            return "maps", self._public(alias.target) if is_other_name else alias.help.removesuffix(".")
        if name in self.compression:
            return self._of_compression(name, value)
        if name in self.classes.fields():
            return "works", "a field of the script"
        if owner := self.classes.library_field(name):
            return "works", f"a field of {owner}"
        if near := difflib.get_close_matches(name, self.classes.library_fields(), 1, cutoff=0.8):
            return "refused", f"no class that the script imports has it; did you mean {near[0]!r}?"
        try:
            self.cls(output_dir="output", **{name: None})
        except OneloopError as error:
            return "refused", str(error).replace(self.cls.__name__, "TrainingArguments")
        return "works", ""

    def _of_compression(self, name: str, value: Any) -> tuple[str, str]:
        if name != "do_compress":
            return "works", "only for model compression, which is not supported"
        if value is _NOT_READ:
            return "depends", f"refused if True: {WHY}"
        return ("refused", WHY) if value else ("works", "")

    def _refused(self, values: dict[str, Any], read_all: bool) -> dict[str, list[tuple[str, str]]]:
        """By public name of the argument, and "" for all together: the findings for these values."""
        given = {name: value for name, value in values.items() if name in self.known or name in self.cls.__aliases__}
        given.setdefault("output_dir", "output")
        try:
            args = self.cls(**given)
        except OneloopError as error:
            unseen = f"depends on values that are not literals: {error}"
            return self._reasons_one_by_one(given) | {"": [("refused", str(error)) if read_all else ("unseen", unseen)]}
        return self._met(args)

    def _reasons_one_by_one(self, given: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
        """The same where the arguments contradict one another: for each of them alone."""
        found: dict[str, list[tuple[str, str]]] = {}
        for name, value in given.items():
            with contextlib.suppress(OneloopError):  # what needs another argument is said of all together
                found |= self._met(self.cls(**{"output_dir": "output", name: value}))
        return found

    def _met(self, args: Any) -> dict[str, list[tuple[str, str]]]:
        """By public name of the argument: why it is refused, here or on some devices."""
        found: dict[str, list[tuple[str, str]]] = {}
        for unsupported in unsupported_by(self.framework):
            verdict = _verdict(unsupported)
            if verdict is not None and unsupported.concerns(self.framework) and unsupported.when(args):
                found.setdefault(unsupported.argument, []).append(verdict)
        return found

    # -- after the script's name

    def of_command_line(self, words: list[str]) -> list[Finding]:
        """The words after the script's name; a single JSON file is read as the script would."""
        place = "command line"
        if not words:
            return []
        if words[0].endswith(".json") and len(words) == 1:
            return self._of_json(words[0])
        # In PaddleNLP scripts, the script's field overrides an argument of the same name; see parser/options.py.
        overriding = self.classes.fields(beside=True) & set(self.known) if self.framework == "paddle" else set()
        fixed_argument = {name for name in FIXED_ARGUMENTS if name not in self.classes.fields()}
        overriding |= self.yielded
        given = _without(overriding | fixed_argument, words)
        given = given if "--output_dir" in given else ["--output_dir", "output", *given]
        try:
            parser = _Parser(self.cls, add_help=False)
            args, *_, rest = parser.parse_args_into_dataclasses(given, True, look_for_args_file=False)
        except ArgumentError as error:
            return [Finding(place, 0, "argument", "together", "refused", str(error))]
        met, others = self._met(args), {*_options(rest), *overriding}
        found = []
        for name in _options(words):
            elsewhere = TrainingArguments.__elsewhere__.get(name)
            if name in fixed_argument:
                found.append(
                    Finding(place, 0, "argument", name, *_fixed_finding(name, _option_value(parser, name, words)))
                )
            elif name in others:
                found.append(self._foreign(place, name, _is_switched_on(name, words)))
            elif elsewhere and self.parsed is not None and elsewhere not in self.parsed:
                text = f"it belongs to {elsewhere}, which the script does not parse"
                found.append(Finding(place, 0, "argument", name, "refused", text))
            else:
                known = name in self.known or name in self.cls.__aliases__
                plain = name if known else name.removeprefix("no_")
                found.append(self._finding(place, 0, plain, getattr(args, plain), met))
        return found

    def _foreign(self, place: str, name: str, value: Any = _NOT_READ) -> Finding:
        if name in self.compression:
            return Finding(place, 0, "argument", name, *self._of_compression(name, value))
        if name in self.classes.fields() or name.removeprefix("no_") in self.classes.fields():
            return Finding(place, 0, "argument", name, "works", "a field of the script")
        if owner := self.classes.library_field(name) or self.classes.library_field(name.removeprefix("no_")):
            return Finding(place, 0, "argument", name, "works", f"a field of {owner}")
        text = "neither an argument of oneloop nor a field of a class in the files that were read"
        if self.parsed is None:
            return Finding(place, 0, "argument", name, "unseen", text)
        fields = [*self.classes.fields(), *self.classes.library_fields()]
        near = difflib.get_close_matches(name, [*self.known, *self.cls.__aliases__, *fields], 1)
        return Finding(place, 0, "argument", name, "refused", text + (f"; did you mean {near[0]}?" if near else ""))

    def _of_json(self, name: str) -> list[Finding]:
        path = Path(name)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ArgumentError(f"{name} cannot be read as JSON: {error}") from error
        values = {key: value for key, value in data.items() if key in self.known or key in self.cls.__aliases__}
        refused = self._refused(values, True)
        found = [
            self._finding(name, 0, key, value, refused) if key in values else self._foreign(name, key, value)
            for key, value in data.items()
        ]
        return found + [Finding(name, 0, "argument", "together", *each) for each in refused.get("", [])]


def _verdict(unsupported: UnsupportedValue) -> tuple[str, str] | None:
    text = f"{unsupported.why}. Instead: {unsupported.instead}"
    if unsupported.devices:
        return "depends", f"on {', '.join(unsupported.devices)}: {text}"
    if unsupported.driven and unsupported.module:
        return ("depends", f"{text} (not installed here)") if unsupported.missing else None
    return "refused", text


def _literal(node: ast.AST) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return _NOT_READ


def _without(names: set[str], words: list[str]) -> list[str]:
    """A command line without these options and their values."""
    kept, dropping = [], False
    for word in words:
        if word.startswith("--"):
            dropping = word[2:].partition("=")[0].replace("-", "_") in names
        if not dropping:
            kept.append(word)
    return kept


def _fixed_finding(name: str, value: Any) -> tuple[str, str]:
    fixed_argument = FIXED_ARGUMENTS[name]
    if value is _NOT_READ:
        return "depends", f"refused unless {fixed_argument.accepted_text}: {fixed_argument.why}"
    return ("works", "") if fixed_argument.accepts(value) else ("refused", fixed_argument.why)


def _option_value(parser: ArgumentParser, name: str, words: list[str]) -> Any:
    """The value of an option, or its words if they are invalid."""
    following = _words_of(name, words)
    try:
        return parser._fields[name].from_words(following or None)
    except ValueError:
        return following


def _words_of(name: str, words: list[str]) -> list[str]:
    """The words after an option; if it is given twice, after the last one."""
    found: list[str] = []
    taking = False
    for word in words:
        if word.startswith("--"):
            said, _, value = word[2:].partition("=")
            taking = said.replace("-", "_") == name
            found = [value] * bool(value) if taking else found
        elif taking:
            found.append(word)
    return found


def _is_switched_on(name: str, words: list[str]) -> bool:
    """Whether a boolean option is on: bare, or with any value other than false."""
    for word, following in zip(words, [*words[1:], ""]):
        if word == f"--{name}":
            return following.lower() not in FALSE_WORDS
        if word.startswith(f"--{name}="):
            return word.partition("=")[2].lower() not in FALSE_WORDS
    return False


def _options(words: list[str]) -> list[str]:
    """The names of the options among some words."""
    return [word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")]
