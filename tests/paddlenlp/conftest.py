"""Tests of models of PaddleNLP: `bash scripts/paddlenlp` runs them, in the environment that it makes.

They are collected only where PaddleNLP is installed.
"""

import importlib.util

if importlib.util.find_spec("paddlenlp") is None:
    collect_ignore_glob = ["test_*.py"]
