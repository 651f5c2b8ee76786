"""docs/arguments.md, written from the arguments themselves: `python -m oneloop.arguments.page [--check]`."""

import sys
from pathlib import Path
from typing import Any

from ..backends import registry
from . import Seq2SeqTrainingArguments
from .aliases import Alias
from .fields import declared
from .fixed import SETTLED
from .generated_page import keep
from .groups import GROUPS
from .refusal import Refusal
from .support import NOT_YET, answer, refusals, refused_by

PAGE = Path(__file__).parents[2] / "docs" / "arguments.md"
ANSWERS = {
    "works": "works",
    "works in part": "works, with [exceptions](#refused)",
    "idle": "for several processes",
    "by itself": "by itself",
    "refuses": "[refuses](#refused)",
    "later": "later",
}

OPENING = """\
# Arguments

<!-- Written by `python -m oneloop.arguments.page`; change the declarations in oneloop/arguments/, not this file. -->

Every argument of `TrainingArguments`, in Python (`TrainingArguments("output", learning_rate=1e-4)`) and on the
command line (`--learning_rate 1e-4`). Nothing is ignored in silence: one that comes to nothing because of another is
told of before the run. To each argument there is one of three answers:

- **works**: it changes what happens.
- **maps**: it is another spelling, and sets the argument in whose row it stands. It can be read and set under both
  names, for ever and without a warning. Two spellings with different values are an error.
- **refuses**: this framework, this machine or this release cannot do it. There is an error when the arguments meet
  the model, which says why and what to use instead.

"later" is a refusal that a later release lifts. "for several processes" is accepted, and leaves a single process
nothing to do. "by itself" is accepted too, and what it asks for is seen to in one way, whatever the value. An unknown
name is an error that suggests the nearest one, and a value of the wrong type or out of range is an error that shows
what is allowed. Numbers and dicts may be given as text (`"1e-4"`, `'{"min_lr": 1e-6}'`), lists as `"a,b"`.
Editors and type checkers know every argument in every spelling, what it accepts and what it holds afterwards.

"""

CLOSING = """\
## Other spellings that translate the value

| spelling | sets | how |
|---|---|---|
{translated}

Spellings that are only another name stand in the tables above, under "other spellings".

## Refused

What is refused, where, and what to use instead. "needs" names a package: the argument works once it is installed,
except where the row says that this release does not use it.

| argument | value | on | why | instead |
|---|---|---|---|---|
{refused}

Several processes are started by the framework's own launcher: see [distributed.md](distributed.md).

These, one of transformers and the others of PaddleNLP, have one answer: they can be read, and given as what is done
anyway. Any other value is refused.

| argument | can be given as | why, and what to use instead |
|---|---|---|
{names}
"""


def _code(value: Any) -> str:
    return f"`{value}`" if value != "" else '`""`'


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _default(rules: Any) -> str:
    if rules["shown"] is not None:
        return _cell(str(rules["shown"]))
    value = rules["default"]
    return _code(value() if callable(value) else value)


def _choices(rules: Any, name: str) -> str:
    if not rules["choices"] or name == "include_for_metrics":
        return ""
    refused = {refusal.shown for refusal in refused_by(name, registry.released()[0])}
    free = [_code(choice) for choice in rules["choices"] if choice not in refused]
    more = "; for the others see [Refused](#refused)" if len(free) < len(rules["choices"]) else ""
    return f" One of {', '.join(free)}{more}."


def _row(name: str, rules: Any, aliases: dict[str, Alias]) -> str:
    shown = rules["public"] or name
    others = [alias.name for alias in aliases.values() if alias.target == name and alias.name != shown]
    answers = " | ".join(ANSWERS[answer(shown, backend)] for backend in registry.released())
    what = _cell(rules["help"]) + _choices(rules, name)
    return f"| `{shown}` | {', '.join(map(_code, others))} | {_default(rules)} | {what} | {answers} |"


def _why(refusal: Refusal) -> str:
    where = f" (on {', '.join(refusal.devices)})" if refusal.devices else ""
    unused = "; not used by this release" if refusal.module and not refusal.driven else ""
    return "later" if refusal in NOT_YET else _cell(refusal.why) + unused + where


def render() -> str:
    """The page as text."""
    backends = registry.released()
    known, aliases = declared(Seq2SeqTrainingArguments), Seq2SeqTrainingArguments.__aliases__
    sections: dict[str, list[str]] = {}
    for name, (_, rules) in sorted(known.items(), key=lambda item: _order(item[1][1]["group"])):
        sections.setdefault(rules["group"], []).append(_row(name, rules, aliases))
    parts = [OPENING]
    for heading, rows in sections.items():
        parts.append(f"## {heading}\n\n")
        if heading == "Sequence to sequence":
            parts.append("These belong to `Seq2SeqTrainingArguments`, which has all the others too.\n\n")
        parts.append(f"| argument | other spellings | default | what it does | {' | '.join(backends)} |\n")
        parts.append("|---" * (4 + len(backends)) + "|\n" + "\n".join(rows) + "\n\n")
    translated = [
        f"| `{alias.name}` | `{known[alias.target][1]['public'] or alias.target}` | {_cell(alias.help)} |"
        for alias in aliases.values()
        if not alias.help.startswith("The same as") and alias.name != "device"
    ]
    shown = [rules["public"] or name for name, (_, rules) in known.items()]
    names = "\n".join(f"| `{name}` | {each.shown} | {_cell(each.why)} |" for name, each in SETTLED.items())
    parts.append(CLOSING.format(translated="\n".join(translated), refused="\n".join(_refused(shown)), names=names))
    return "".join(parts)


def _refused(names: list[str]) -> list[str]:
    """A row for each reason to refuse, with all the values that it concerns."""
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    for name in names:
        for refusal in (refusal for refusal in refusals() if refusal.argument == name):
            where = ", ".join(backend for backend in registry.released() if refusal.concerns(backend))
            rows.setdefault((name, where, _why(refusal), _cell(refusal.instead)), []).append(refusal.shown)
    return [
        f"| `{name}` | {', '.join(values)} | {where} | {why} | {instead} |"
        for (name, where, why, instead), values in rows.items()
        if where
    ]


def _order(group: str) -> int:
    headings = [next(iter(declared(each).values()))[1]["group"] for each in GROUPS]
    return headings.index(group) if group in headings else len(headings)


def main(words: list[str]) -> int:
    return keep(PAGE, render(), "oneloop.arguments.page", words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
