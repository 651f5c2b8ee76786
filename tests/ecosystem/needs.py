"""Skipping the tests of libraries that are not installed, without importing them: that alone costs seconds."""

from importlib.util import find_spec

import pytest


def needs(*packages: str) -> None:
    """Call it at the top of a module of tests."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}", allow_module_level=True)
