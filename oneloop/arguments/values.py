"""Convert and validate argument values given in Python, JSON, YAML or on a command line.

Only lossless conversions are made: "1e-4" to float, 1e3 to int, "a,b" to a list. True is never a number.
"""

import difflib
import math
import os
import re
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from .. import secrets
from ..errors import ArgumentError
from ..parser.strict_json import read_json
from ..parser.values import FALSE_WORDS, TRUE_WORDS

if TYPE_CHECKING:
    from .given import Config, Integer, JsonDict, Number, Text, Words

LARGEST = 2**63 - 1  # what frameworks and files store as an integer


def format_value(name: str, value: Any) -> str:
    """The value for an error message: secrets are masked, long values are shortened."""
    plain = value.value if isinstance(value, Enum) else value
    if secrets.is_secret(name):
        return secrets.mask(name)
    if isinstance(plain, str) and secrets.looks_random(plain):  # a key that was passed to the wrong argument
        return f"'{plain[:3]}...' ({len(plain)} characters)"
    try:
        text = secrets.clean_text(repr(secrets.clean(plain)))
    except ValueError:  # Python does not print integers of thousands of digits
        return f"({type(plain).__name__} with a number that is too long to print)"
    return text if len(text) <= 100 else text[:97] + "..."


def invalid(name: str, value: Any, expected: str) -> ArgumentError:
    return ArgumentError(f"Invalid {name}={format_value(name, value)}: expected {expected}.")


def to_bool(name: str, value: bool) -> bool:
    """A switch; also from the words of a command line and of YAML, from 0 and 1, and from NumPy's booleans."""
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    if isinstance(value, str) and value.strip().lower() in TRUE_WORDS | FALSE_WORDS:
        return value.strip().lower() in TRUE_WORDS
    if isinstance(value, Integral) and value in (0, 1):
        return value == 1
    raise invalid(name, value, "True or False")


def to_number(name: str, value: "Number", expected: str = "a number") -> int | float:
    """An int stays an int and a float a float; strings are parsed as numbers."""
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            try:
                value = float(value)
            except ValueError:
                raise invalid(name, value, expected) from None
    if isinstance(value, Integral) and not isinstance(value, bool):
        if abs(int(value)) > LARGEST:
            raise invalid(name, value, f"{expected} of at most 2**63 - 1")
        return int(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        raise invalid(name, value, expected)
    try:
        number = float(value)
    except OverflowError:  # a fraction
        raise invalid(name, value, expected) from None
    if math.isnan(number):
        raise invalid(name, value, expected)
    return number


def to_int(name: str, value: "Integer") -> int:
    number = to_number(name, value, "an integer")
    if math.isinf(number) or number != number // 1:
        raise invalid(name, value, "an integer")
    if abs(number) > LARGEST:
        raise invalid(name, value, "an integer of at most 2**63 - 1")
    return int(number)


def to_float(name: str, value: "Number") -> float:
    return float(to_number(name, value))


def to_text(name: str, value: "Text") -> str:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str):
        return value
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    raise invalid(name, value, "a string")


def to_words(name: str, value: "Words") -> list[str]:
    """A list of strings; also from "a,b", "a b" or a JSON list."""
    if isinstance(value, str):
        if value.lstrip().startswith("["):
            value = _json(name, value, "a list")
        else:
            value = [word for word in re.split(r"[\s,]+", value) if word]
    if not isinstance(value, list | tuple | set | frozenset):
        raise invalid(name, value, "a list of strings")
    return [to_text(name, word) for word in value]


def to_mapping(name: str, value: "JsonDict") -> dict[str, Any]:
    """A dict; also from a JSON string."""
    expected = "a dict, or a JSON string such as '{\"key\": 1}'"
    read = _json(name, value, expected) if isinstance(value, str) else value
    if not isinstance(read, Mapping):
        raise invalid(name, value, expected)
    return dict(read)


def to_json_values(name: str, text: str) -> Any:
    """The dict in a JSON string, whose strings are numbers or booleans where they are spelled like them."""

    def read(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: read(item) for key, item in value.items()}
        if not isinstance(value, str):
            return value
        if value.lower() in ("true", "false"):
            return value.lower() == "true"
        return to_number(name, value) if value.replace(".", "", 1).isdigit() else value

    return read(_json(name, text, "a dict"))


def to_config(name: str, value: "Config") -> dict[str, Any]:
    """A dict; also from a JSON string, the path of a JSON file, or an object with `to_dict`."""
    read: Any = value.to_dict() if hasattr(value, "to_dict") and not isinstance(value, type) else value
    if isinstance(read, os.PathLike) or (isinstance(read, str) and not read.lstrip().startswith("{")):
        path = os.path.expanduser(os.fspath(read))
        if not os.path.isfile(path):
            raise invalid(name, read, "a dict, a JSON string, or the path of an existing JSON file")
        try:
            with open(path, encoding="utf-8") as file:
                read = file.read()
        except UnicodeDecodeError as error:
            raise ArgumentError(f"Invalid {name}: {path} is not UTF-8 ({error}). Save it as UTF-8.") from None
    return to_mapping(name, read)


def to_steps(name: str, value: "Number") -> int | float:
    """A number of steps (integer), or a fraction of all steps (between 0 and 1)."""
    expected = "an integer number of steps, or a ratio of all steps between 0 and 1"
    number = to_number(name, value, expected)
    if not 0 <= number <= LARGEST or (number >= 1 and number != int(number)):
        raise invalid(name, value, expected)
    return number if 0 < number < 1 else int(number)


def to_weights(name: str, value: Any) -> Any:
    """Weights of datasets: a dict, a list, the same as JSON, or `wiki=0.7,code=0.3`."""
    expected = "weights by name, such as wiki=0.7,code=0.3 or JSON, or a list of [step, weights]"
    if isinstance(value, str) and value.strip()[:1] not in ("{", "["):
        pairs = [part.rpartition("=") for part in value.split(",")]
        if not all(key.strip() and equals for key, equals, _ in pairs):
            raise invalid(name, value, expected)
        value = {key.strip(): to_number(name, number, expected) for key, _, number in pairs}
        if len(value) < len(pairs):
            raise invalid(name, value, f"{expected}, each name once")
    elif isinstance(value, str):
        value = _json(name, value, expected)
    if value is not None and not isinstance(value, (Mapping, list, tuple)):
        raise invalid(name, value, expected)
    return value


def to_stop(name: str, value: Any) -> str | int:
    """The end of an epoch of a mixture."""
    if value in ("first_exhausted", "all_exhausted"):
        return value
    expected = "'first_exhausted', 'all_exhausted' or a number of samples"
    number = to_number(name, value, expected)
    if not 1 <= number <= LARGEST or number != int(number):
        raise invalid(name, value, expected)
    return int(number)


def _json(name: str, text: str, expected: str) -> Any:
    try:
        return read_json(text)
    except ValueError as error:
        raise ArgumentError(
            f"Invalid {name}={format_value(name, text)}: not JSON ({error}); expected {expected}."
        ) from None


def to_member(name: str, value: Any, choices: type[Enum] | tuple[Any, ...]) -> Any:
    """One of a fixed set of choices. YAML parses a bare `no` as False, so False means "no" where that is a choice."""
    allowed = [member.value for member in choices] if isinstance(choices, type) else list(choices)
    plain = value.value if isinstance(value, Enum) else value
    if plain is False and "no" in allowed:
        plain = "no"
    if isinstance(plain, bool) or plain not in allowed:
        raise invalid(name, value, _one_of(plain, allowed))
    return choices(plain) if isinstance(choices, type) else plain


# What people write for an optimizer, and the name of what they mean.
_COMMON_VALUES = {"adam": "adamw_torch", "adam_w": "adamw_torch", "momentum": "sgd", "adamw_fused": "adamw_torch_fused"}


def _one_of(value: Any, allowed: list[Any]) -> str:
    """The choices for an error message; of a long list, the closest matches first."""
    if len(allowed) <= 20:
        return "one of " + ", ".join(repr(choice) for choice in allowed)
    usual = _COMMON_VALUES.get(str(value).lower())
    near = [usual] if usual in allowed else difflib.get_close_matches(str(value).lower(), map(str, allowed), n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"one of {', '.join(map(str, allowed))}{hint}"


CONVERTERS: dict[Any, Callable[[str, Any], Any]] = {
    bool: to_bool,
    int: to_int,
    float: to_float,
    str: to_text,
    list: to_words,
    dict: to_mapping,
}


def convert(name: str, value: Any, hint: Any, rules: Mapping[str, Any]) -> Any:
    """The value to store for an argument with type `hint`; `rules` is the metadata written by `arg`."""
    if value is None:
        if type(None) in _members(hint):
            return None
        if rules["none"]:
            return rules["default"]() if callable(rules["default"]) else rules["default"]
        raise invalid(name, value, "a value other than None")
    if rules["enum"] is not None:
        return to_member(name, value, rules["enum"])
    if rules["convert"] is not None:
        value = rules["convert"](name, value)
    else:
        value = CONVERTERS[_kind(hint)](name, value)
    if rules["choices"] is not None and not isinstance(value, list):
        value = to_member(name, value, tuple(rules["choices"]))
    elif rules["choices"] is not None:
        value = [to_member(name, word, tuple(rules["choices"])) for word in value]
    _check_range(name, value, rules)
    return value


def _members(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


@cache  # a Trainer converts more than a hundred values
def _kind(hint: Any) -> Any:
    """The type of the values other than None, as it is in CONVERTERS."""
    kind = next(member for member in _members(hint) if member is not type(None))
    return typing.get_origin(kind) or kind


def _check_range(name: str, value: Any, rules: Mapping[str, Any]) -> None:
    low, high, below = rules["low"], rules["high"], rules["below"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    outside = (low is not None and value < low) or (high is not None and value > high)
    outside = outside or (below is not None and value >= below) or value in rules["never"]
    if outside or (rules["finite"] and math.isinf(value)):
        limits = [f"at least {low}"] if low is not None else []
        limits += [f"at most {high}"] if high is not None else []
        limits += [f"less than {below}"] if below is not None else []
        never = "".join(f", not {number}" for number in rules["never"])
        kind = "an integer" if isinstance(value, int) else "a finite number" if rules["finite"] else "a number"
        raise invalid(name, value, " ".join([kind, " and ".join(limits)]).strip() + never)
