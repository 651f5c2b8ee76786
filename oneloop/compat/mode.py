"""Compatibility mode: where libraries differ, a run follows the library that the script was written for.

`redirect` and `oneloop run` set it; a script that imports oneloop itself follows oneloop.
"""

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_followed: set[str] = set()
# Libraries with the behaviour of another one, which their Trainer was made from.
_SUCCESSORS = {"paddleformers": "paddlenlp"}


def follow(library: str) -> None:
    _followed.add(library)


def _behaviours() -> set[str]:
    return {_SUCCESSORS.get(library, library) for library in _followed}


def follows(library: str) -> bool:
    """Whether this process runs a script for that library, or for one with its behaviour."""
    return library in _behaviours()


def follows_any() -> bool:
    """Whether this process runs a script for another library."""
    return bool(_followed)


def follows_only(library: str) -> bool:
    """Whether it is for that library and for no other."""
    return _behaviours() == {library}


def version_of_transformers() -> tuple[int, int] | None:
    """The first two numbers of the installed version; None if it is not installed."""
    try:
        first, second = version("transformers").split(".")[:2]
    except PackageNotFoundError:
        return None
    return int(first), int(second)


def parser_of_transformers() -> Any:
    """HfArgumentParser of transformers itself, in a process that runs a script for it; None if it is not installed."""
    return _of_transformers("hf_argparser", "HfArgumentParser")


def adafactor_of_transformers() -> Any:
    """Adafactor of transformers itself, in the same case."""
    return _of_transformers("optimization", "Adafactor")


def _of_transformers(module_name: str, name: str) -> Any:
    if not follows("transformers"):
        return None
    try:
        module: Any = importlib.import_module(f"transformers.{module_name}")
    except ImportError:
        return None
    # Under `redirect` it is a module of oneloop, which holds that of the library.
    real = module._library_module() if hasattr(module, "_library_module") else module
    return getattr(real, name, None)
