"""Tests of LLaMA-Factory on oneloop: `bash scripts/llamafactory` runs them, in the environment that it makes."""

from importlib.util import find_spec

if find_spec("llamafactory") is None:
    collect_ignore_glob = ["test_*.py"]
