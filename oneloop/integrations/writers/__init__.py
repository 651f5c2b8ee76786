"""Log writers. Each is one small file and one line in `table`; only those named in report_to are imported."""

from typing import Any

from ...writers import WRITERS
from . import classes


def make_writers(names: list[str]) -> list[Any]:
    """A callback for each name in report_to."""
    return [getattr(classes, WRITERS[name].callback)() for name in names]
