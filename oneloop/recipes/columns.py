"""Which column has which role: as the recipe says, or by its name."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ArgumentError, DataError
from ..parser.options import nearest
from .files import Found
from .roles import ROLES
from .tasks import Form, Task

_LOOKED_AT = 100  # rows whose columns are known
_PLURALS = ("labels", "tags", "categories", "classes", "topics")


def names(found: Sequence[Found]) -> dict[str, Any]:
    """The columns of the first rows, each with a value; one that has several labels, if there is any."""
    columns: dict[str, Any] = {}
    for row in [each.row for each in found if each.row is not None][:_LOOKED_AT]:
        for name, value in row.items():
            if columns.get(name) is None or (_has_several(name, value) and not _has_several(name, columns[name])):
                columns[name] = value
    return columns


def choose(task: Task, found: Sequence[Found], given: Mapping[str, str]) -> dict[str, str]:
    """The column of each role of a task: those that are given, and the others by their names."""
    columns = names(found)
    _check(task, columns, given, found)
    for form in task.forms:
        if set(given) <= set(form.roles):
            chosen = _of_form(form, columns, given)
            if chosen is not None:
                return chosen
    wanted = " or ".join(" and ".join(form.required) for form in task.forms)
    example = " ".join(f"{role}=NAME" for role in task.forms[0].required)
    raise DataError(
        f"{task.name} needs columns for {wanted}; {found[0].file} has {_listed(columns)}. Say which is which: "
        f"`--columns {example}`, or `columns:` in the recipe."
    )


def inputs_of(form: Form, columns: Mapping[str, str], found: Sequence[Found]) -> dict[str, str]:
    """For predictions: the columns of a trained model; the target, and columns that may be missing, where they are."""
    there = names(found)
    missing = [name for role, name in columns.items() if role in form.inputs and name not in there]
    if missing:
        raise DataError(
            f"{found[0].file} has no column {missing[0]!r}, only {_listed(there)}. Name the columns as in training, or "
            f"say which is which: `--columns {' '.join(f'{role}=NAME' for role in form.inputs)}`."
        )
    return {role: name for role, name in columns.items() if name in there}


def _check(task: Task, columns: Mapping[str, Any], given: Mapping[str, str], found: Sequence[Found]) -> None:
    roles = list(dict.fromkeys(role for form in task.forms for role in form.roles))
    for role, name in given.items():
        if role not in roles:
            near = nearest(role, roles)
            hint = f" Did you mean {near}?" if near else ""
            raise ArgumentError(f"columns: {task.name} has no role {role!r}; its roles are {', '.join(roles)}.{hint}")
        if name not in columns:
            near = nearest(name, columns)
            hint = f" Did you mean {near!r}?" if near else ""
            raise DataError(f"columns: {found[0].file} has no column {name!r}, only {_listed(columns)}.{hint}")


def _of_form(form: Form, columns: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, str] | None:
    chosen = dict(given)
    by_name = {name.lower(): name for name in reversed(list(columns))}
    for role in form.required:
        if role not in chosen:
            free = (by_name.get(name) for name in ROLES[role].names)
            fits = [name for name in free if name is not None and name not in chosen.values()]
            found = next((name for name in fits if _may_be(role, name, columns[name])), None)
            if found is None:
                return None
            chosen[role] = found
    for role in form.optional:
        partner = _partner(chosen.get(form.inputs[0], ""))
        if role not in chosen and partner in by_name and by_name[partner] not in chosen.values():
            chosen[role] = by_name[partner]
    return {role: chosen[role] for role in form.roles if role in chosen}


_PAIRS = {
    "sentence1": "sentence2",
    "premise": "hypothesis",
    "question1": "question2",
    "text1": "text2",
    "text_a": "text_b",
    "query": "passage",
    "text": "text_pair",
}


def _partner(name: str) -> str:
    """The column of the second text, beside one of this name for the first."""
    return _PAIRS.get(name.lower(), "")


def _may_be(role: str, name: str, value: Any) -> bool:
    """Whether a value can be of that role: what tells one label from several, and text from a list of words."""
    if role == "label":
        return not isinstance(value, dict) and not _has_several(name, value)
    if role == "labels":
        return _has_several(name, value)
    if role in ("text", "prompt", "completion", "source", "target"):
        return isinstance(value, str)
    return True


def _has_several(name: str, value: Any) -> bool:
    """Whether a value has several labels: a list, one in JSON, or words between semicolons. A name in the singular says
    that a semicolon is a part of the label."""
    if not isinstance(value, str):
        return isinstance(value, (list, tuple))
    return value.lstrip().startswith("[") or (";" in value and name.lower() in _PLURALS)


def _listed(columns: Mapping[str, Any]) -> str:
    shown = [repr(name) for name in list(columns)[:20]]
    return ", ".join(shown) + (" and others" if len(columns) > 20 else "") or "no columns"
