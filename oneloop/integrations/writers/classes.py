"""The callbacks of all writers under one name, each imported when it is first used. `oneloop` exports them.

Type checkers read classes.pyi, which `python -m oneloop.integrations.writers.typing_stub` writes from the table.
"""

from importlib import import_module
from typing import Any

from ...writers import WRITERS

_HOME_OF = {writer.callback: name for name, writer in WRITERS.items() if writer.released}
__all__ = list(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__package__}.{_HOME_OF[name]}"), name)
