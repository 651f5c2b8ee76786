"""The search of a recipe: a space of training arguments, as data."""

from collections.abc import Mapping
from typing import Any

from ..errors import ArgumentError


def check(space: Mapping[str, Any] | None) -> None:
    """Raise an error for a space that is not one."""
    for name, values in (space or {}).items():
        if isinstance(values, list) and values:
            continue
        if (
            isinstance(values, Mapping)
            and {"low", "high"} <= set(values) <= {"low", "high", "log"}
            and all(isinstance(values[end], (int, float)) for end in ("low", "high"))
        ):
            continue
        raise ArgumentError(
            f"search: {name}: expected a list of values, or low and high (and log: true); found {values!r}."
        )
    if space is not None and not space:
        raise ArgumentError("search: expected arguments to search for, such as learning_rate.")


def suggest(trial: Any, space: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a trial of Optuna."""
    values = {}
    for name, choices in space.items():
        if isinstance(choices, list):
            values[name] = trial.suggest_categorical(name, choices)
        elif isinstance(choices["low"], int) and isinstance(choices["high"], int):
            values[name] = trial.suggest_int(name, choices["low"], choices["high"], log=choices.get("log", False))
        else:
            values[name] = trial.suggest_float(name, choices["low"], choices["high"], log=choices.get("log", False))
    return values
