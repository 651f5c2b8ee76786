"""Sizes in bytes, as they are written and shown."""

import re
from typing import Any

from ..errors import ArgumentError

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}{suffix}": 1000**power for power, letter in enumerate("kmgt", 1) for suffix in ("", "b")}
_UNITS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)}


def parse(name: str, value: Any) -> int | None:
    """Bytes from a number, or from text such as 80GB (of 10**9 bytes) or 24GiB (of 2**30)."""
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
        return int(value)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(value))
    if match is None or match[2].lower() not in _UNITS or float(match[1]) <= 0:
        raise ArgumentError(f"Invalid {name}={value!r}: expected a size such as 80GB, 24GiB or a number of bytes")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def show(size: float | None) -> str:
    """A size with three digits, in units of 1000 as devices are sold; a dash if it is not known."""
    if size is None:
        return "-"
    for power, unit in enumerate(("B", "kB", "MB", "GB", "TB", "PB")):
        scaled = size / 1000**power
        if scaled < 999.5:
            return f"{scaled:.0f} {unit}" if scaled >= 100 or power == 0 else f"{scaled:.3g} {unit}"
    return f"{size / 1000**5:.0f} PB"


def count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"
