"""What a check found."""

from dataclasses import dataclass, field
from typing import Any

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"


class Failed(Exception):
    """The check has found that something is not as it should be."""


class NotRun(Exception):
    """The check cannot be made on this machine; the message says why."""


@dataclass(frozen=True)
class Outcome:
    name: str
    title: str
    state: str  # passed, failed or not run
    why: str = ""
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)


def require(condition: bool, why: str) -> None:
    """Raise Failed unless the condition holds."""
    if not condition:
        raise Failed(why)


def close(found: float, expected: float, tolerance: float) -> bool:
    """Whether two numbers agree relative to the expected one; NaN agrees with nothing."""
    return abs(found - expected) <= tolerance * max(abs(expected), 1e-6)
