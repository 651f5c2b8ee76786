"""Tests of scripts for PaddleFormers: `bash scripts/paddleformers` runs them, in the environment that it makes.

PaddleFormers needs a release of transformers below 5.4, so these tests are collected only where it is installed.
"""

import importlib.util

if importlib.util.find_spec("paddleformers") is None:
    collect_ignore_glob = ["test_*.py"]
