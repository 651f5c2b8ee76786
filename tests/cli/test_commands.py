"""The commands of `oneloop` and their modules. What each does is tested with what it calls."""

import argparse
import subprocess
import sys
from importlib import import_module

import pytest

from oneloop.cli.options import parser


def commands():
    (found,) = [action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)]
    return sorted(found.choices)


@pytest.mark.parametrize("name", commands())
def test_each_command_has_its_module(name):
    assert callable(import_module(f"oneloop.cli.{name}").command)


def test_the_help_imports_no_module_of_a_command():
    code = "import sys; from oneloop.cli.main import main; sys.argv = ['oneloop', '--help']\n"
    code += "try: main()\nexcept SystemExit: print(*(m for m in sys.modules if m.startswith('oneloop.cli.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1].split() == ["oneloop.cli.options", "oneloop.cli.main"], done.stderr
