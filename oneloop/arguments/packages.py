"""Packages that arguments can require, and whether they are installed. The check imports nothing."""

import sys
from importlib.util import find_spec

from ..writers import WRITERS


def installed(module: str) -> bool:
    """Whether the module can be imported. A plain folder of that name does not count."""
    if module in sys.modules:
        return sys.modules[module] is not None
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def default_writers(every: bool) -> list[str]:
    """Installed writers that need no account: those used by default, or with `every`, all of them."""
    return [
        name
        for name, writer in WRITERS.items()
        if writer.released and not writer.account and (every or writer.usual) and installed(writer.module)
    ]
