"""Tests as a script of another library."""

from oneloop import behaviour
from oneloop.compat import mode


def emulate(monkeypatch, libraries):
    """Run the rest of a test as in a script for these libraries; for none, as one that imports oneloop itself."""
    monkeypatch.setattr(mode, "_emulated", set(libraries))
    monkeypatch.setattr(behaviour, "_chosen", mode.expected_by(libraries))
