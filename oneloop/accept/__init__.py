"""The acceptance kit: `oneloop accept` tries on this machine what oneloop promises, and writes a page and a JSON file.

Each check is a function of a `Place` in a module of `checks`. It returns figures, or raises `Failed` or `NotRun`. It
runs in a process of its own (`child`), so that a crash, a hang or memory that runs out is the result of one check.
"""

from .outcome import Failed, NotRun, Outcome

__all__ = ["Failed", "NotRun", "Outcome"]
