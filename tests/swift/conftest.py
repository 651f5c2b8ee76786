"""Tests of ms-swift on oneloop: `bash scripts/swift` runs them, in the environment that it makes."""

from importlib.util import find_spec

if find_spec("swift") is None:
    collect_ignore_glob = ["test_*.py"]
