"""The commands of `oneloop` and their modules. What each does is tested with what it calls."""

import argparse
import os
import subprocess
import sys
from importlib import import_module
from types import SimpleNamespace

import pytest

from oneloop.cli.main import main
from oneloop.cli.options import parser


def commands():
    (found,) = [action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)]
    return sorted(found.choices)


@pytest.mark.parametrize("name", commands())
def test_each_command_has_its_module(name):
    assert callable(import_module(f"oneloop.cli.{name}").command)


@pytest.mark.parametrize("size", [1, 10**6])  # what is still in the buffer at the end, and what is not
def test_output_that_nobody_reads_any_more(size):
    code = "import sys; from types import SimpleNamespace; from oneloop.cli import main as cli\n"
    code += f"cli.import_module = lambda *_: SimpleNamespace(command=lambda _: print('x' * {size}) or 0)\n"
    code += "sys.exit(cli.main(['doctor']))"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_pipe_that_breaks_elsewhere_is_an_error(monkeypatch, capsys):
    def broken(options):
        raise BrokenPipeError(32, "the storage has gone")

    monkeypatch.setattr("oneloop.cli.main.import_module", lambda *_: SimpleNamespace(command=broken))
    assert main(["doctor"]) not in (0, 141)
    assert "the storage has gone" in capsys.readouterr().err


def test_the_help_imports_no_module_of_a_command():
    code = "import sys; from oneloop.cli.main import main; sys.argv = ['oneloop', '--help']\n"
    code += "try: main()\nexcept SystemExit: print(*(m for m in sys.modules if m.startswith('oneloop.cli.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1].split() == ["oneloop.cli.options", "oneloop.cli.main"], done.stderr
