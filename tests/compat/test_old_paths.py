"""Import paths of 0.1 that have moved still work, with a warning."""

import importlib
import importlib.util
import subprocess
import sys

import pytest

import oneloop
from oneloop.compat.old_paths import MOVED


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_every_new_path_exists(old, new):
    assert importlib.util.find_spec(f"oneloop.{new}") is not None


@pytest.mark.parametrize(
    ("old", "name", "new"),
    [
        ("oneloop.preemption", "Preempted", "oneloop.distributed.preemption"),
        ("oneloop.migration", "redirect", "oneloop.compat.check"),
        ("oneloop.parser", "HfArgumentParser", "oneloop.cli.parser"),
        ("oneloop.writers.base", "Writer", "oneloop.integrations.writers.base"),
    ],
)
def test_a_name_of_an_old_path_is_the_new_one(old, name, new):
    for module in [module for module in sys.modules if module == old]:
        del sys.modules[module]
    with pytest.warns(DeprecationWarning, match=f"{old} has moved to {new}"):
        module = importlib.import_module(old)
    assert getattr(module, name) is getattr(importlib.import_module(new), name)
    with pytest.raises(AttributeError):
        getattr(module, "no_such_name")  # noqa: B009


def test_a_path_that_never_was_is_missing():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("oneloop.nowhere")


def test_importing_oneloop_imports_no_framework_and_warns_of_nothing():
    code = (
        "import sys, oneloop; print([m for m in ('torch', 'paddle', 'mindspore', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert oneloop.__version__
