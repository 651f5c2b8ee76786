"""Rules for values that were read from JSON: types and ranges. A rule raises Mismatch, which names the place.

`record({"step": integer()}, {"reason": text()})` accepts objects with an integer `step`, maybe a text `reason`, and
other fields, which are of no concern.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import CheckpointError

Rule = Callable[[Any, str], None]
MOST = 2**53  # of counts: larger ones are no longer exact in every JSON reader


class Mismatch(ValueError):
    """A value that does not follow its rule."""


def check(value: Any, rule: Rule, source: Any) -> Any:
    """The value, if it follows the rule; otherwise a CheckpointError."""
    try:
        rule(value, "")
    except Mismatch as error:
        raise CheckpointError(f"{source} is not valid: {error}") from error
    return value


def _expect(good: bool, value: Any, place: str, expected: str) -> None:
    if not good:
        raise Mismatch(f"{place or 'it'} is {format_short(value)}, expected {expected}")


def format_short(value: Any) -> str:
    """A value, short enough for a message."""
    if isinstance(value, (dict, list)):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    try:
        words = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        words = "a very large integer"
    words = words.encode("ascii", "backslashreplace").decode("ascii")
    return words if len(words) <= 60 else f"{words[:57]}..."


def anything(value: Any, place: str) -> None:
    """Every value."""


def flag(value: Any, place: str) -> None:
    _expect(isinstance(value, bool), value, place, "true or false")


def is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_finite(value: Any) -> bool:
    """Whether this is a number that a float can hold, neither NaN nor infinite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def integer(low: int = 0, high: int = MOST) -> Rule:
    def rule(value: Any, place: str) -> None:
        _expect(is_integer(value) and low <= value <= high, value, place, f"an integer from {low} to {high}")

    return rule


def number(low: float = -math.inf, high: float = math.inf, above: float = -math.inf) -> Rule:
    """A finite number; `above` is a bound that is itself too low."""
    words = [f"of at least {low:g}"] * (low > -math.inf) + [f"above {above:g}"] * (above > -math.inf)
    words += [f"up to {high:g}"] * (high < math.inf)

    def rule(value: Any, place: str) -> None:
        good = is_finite(value) and low <= value <= high and value > above
        _expect(good, value, place, " ".join(["a finite number", *words]))

    return rule


def any_number(value: Any, place: str) -> None:
    """A number, also NaN or an infinity, which may be written as text: a metric."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    _expect(good or value in ("nan", "inf", "-inf"), value, place, "a number")


def hex_number(value: Any, place: str) -> None:
    """A float as float.hex() writes it, also NaN or an infinity."""
    try:
        float.fromhex(value)
    except (TypeError, ValueError, OverflowError):
        _expect(False, value, place, "a hexadecimal number")


def text(pattern: str = "", expected: str = "text") -> Rule:
    compiled = re.compile(pattern) if pattern else None

    def rule(value: Any, place: str) -> None:
        good = isinstance(value, str) and (compiled is None or compiled.fullmatch(value) is not None)
        _expect(good and is_encodable(value), value, place, expected)

    return rule


def is_encodable(value: str) -> bool:
    """Whether it can be printed and written: without halves of surrogate pairs and NULs."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def optional(rule: Rule) -> Rule:
    """null, or what the rule accepts."""

    def either(value: Any, place: str) -> None:
        if value is not None:
            rule(value, place)

    return either


def unless_empty(rule: Rule) -> Rule:
    """An empty object, or what the rule accepts."""

    def either(value: Any, place: str) -> None:
        if value != {}:
            rule(value, place)

    return either


def one_of(*rules: Rule) -> Rule:
    def rule(value: Any, place: str) -> None:
        wanted = []
        for each in rules:
            try:
                each(value, place)
                return
            except Mismatch as error:
                wanted.append(str(error).rpartition("expected ")[2])
        raise Mismatch(f"{place or 'it'} is {format_short(value)}, expected {' or '.join(wanted)}")

    return rule


def listing(of: Rule, length: int | None = None) -> Rule:
    def rule(value: Any, place: str) -> None:
        expected = "a list" if length is None else f"a list of {length}"
        _expect(isinstance(value, list) and length in (None, len(value)), value, place, expected)
        for i, inner in enumerate(value):
            of(inner, f"{place}[{i}]")

    return rule


def mapping(of: Rule) -> Rule:
    """An object with any keys."""

    def rule(value: Any, place: str) -> None:
        _expect(isinstance(value, dict), value, place, "an object")
        for key, inner in value.items():
            _expect(is_encodable(key), key, place, "a printable key")
            of(inner, f"{place}[{format_short(key)}]" if place else format_short(key))

    return rule


def record(required: Mapping[str, Rule], possible: Mapping[str, Rule] | None = None, is_closed: bool = False) -> Rule:
    """An object with these fields; `is_closed`: and no others."""
    possible = possible or {}

    def rule(value: Any, place: str) -> None:
        _expect(isinstance(value, dict), value, place, "an object")
        for name, of in (*required.items(), *possible.items()):
            if name in value:
                of(value[name], f"{place}.{name}" if place else name)
            elif name in required:
                raise Mismatch(f"{place or 'it'} has no {name}")
        others = sorted(set(value) - {*required, *possible}) if is_closed else []
        if others:
            raise Mismatch(f"{place or 'it'} has the unknown field {format_short(others[0])}")

    return rule


def alike(current: Any, is_finite_only: bool = True) -> Rule:
    """Values of the kind of the current one, which they are going to replace: a number for a number, a list of as many
    numbers, an object with such values. null may be replaced by any single value."""

    def is_good(value: Any) -> bool:
        return is_finite(value) or (not is_finite_only and isinstance(value, float))

    def rule(value: Any, place: str) -> None:
        if isinstance(current, dict):
            _expect(isinstance(value, dict), value, place, "an object")
            for key, inner in value.items():
                if key in current:
                    alike(current[key], is_finite_only)(inner, f"{place}.{key}" if place else key)
        elif isinstance(current, (list, tuple)):
            good = isinstance(value, (list, tuple)) and len(value) == len(current)
            _expect(good, value, place, f"a list of {len(current)}")
            for i, (old, inner) in enumerate(zip(current, value)):
                alike(old, is_finite_only)(inner, f"{place}[{i}]")
        elif current is None:
            scalar = value is None or isinstance(value, (bool, str)) or is_good(value)
            _expect(scalar, value, place, "a single value")
        elif isinstance(current, bool):
            _expect(value is None or isinstance(value, bool), value, place, "true or false")
        elif isinstance(current, (int, float)):
            _expect(is_good(value), value, place, "a finite number" if is_finite_only else "a number")
        elif isinstance(current, str):
            text()(value, place)

    return rule
