"""The table of writers: what follows from it, and that a new writer is one file and one line in it."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import oneloop
from oneloop.compat.redirected_names import MODULES
from oneloop.integrations.writers import make_writers
from oneloop.writers import WRITERS
from tests.backends.support import names

ROOT = Path(__file__).parents[3]
RELEASED = [name for name, writer in WRITERS.items() if writer.released]

SERVICE = """
import json

def send(values, step):
    with open("service.jsonl", "a") as f:
        f.write(json.dumps([step, sorted(values)]) + "\\n")
"""
WRITER = '''
"""A service that keeps what it is sent in a file."""

from typing import Any

from ...arguments import TrainingArguments
from ...state import TrainerState
from .base import Writer


class ToyCallback(Writer):
    """Writes to toy_service."""

    name = "toy"

    def open(self, args: TrainingArguments, state: TrainerState) -> None:
        self._service: Any = self.package()
        self.run = {"id": "toy"}

    def write(self, values: dict[str, float], step: int) -> None:
        self._service.send(values, step)

    def close(self) -> None:
        pass
'''
LINE = '    "toy": WriterSpec("ToyCallback", "toy_service", "toy-service"),\n'


@pytest.mark.parametrize("name", RELEASED)
def test_the_callback_of_a_writer_is_exported_and_made_for_its_name(name):
    (made,) = make_writers([name])
    assert type(made) is getattr(oneloop, WRITERS[name].callback)
    assert made.name == name
    assert type(made).__module__ == f"oneloop.integrations.writers.{name}"


def test_each_writer_is_an_extra_of_the_package():
    text = (ROOT / "pyproject.toml").read_text()
    extras = set(re.findall(r"^(\w+) = \[", text.partition("[project.optional-dependencies]")[2], re.MULTILINE))
    assert set(RELEASED) <= extras


def test_oneloop_run_replaces_the_callbacks_that_transformers_has():
    assert MODULES["transformers"]["transformers.integrations"].names.split() == [
        WRITERS[name].callback for name in RELEASED if name != "visualdl"
    ]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the package with one more writer: one file more, and one line more in the table."""
    folder = tmp_path_factory.mktemp("tree")
    package = folder / "oneloop"
    shutil.copytree(ROOT / "oneloop", package, ignore=shutil.ignore_patterns("__pycache__"))
    writers = package / "integrations" / "writers"
    (writers / "toy.py").write_text(WRITER)
    table = (package / "writers.py").read_text()
    (package / "writers.py").write_text(table.replace("WRITERS = {\n", f"WRITERS = {{\n{LINE}"))
    (folder / "service").mkdir()
    (folder / "service" / "toy_service.py").write_text(SERVICE)
    return folder


def python(tree, cwd, *words, paths=()):
    path = os.pathsep.join(map(str, (tree, *paths, ROOT)))
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        input="",
        capture_output=True,
        text=True,
    )


@pytest.mark.rare_on(*names()[1:])
@pytest.mark.parametrize("framework", names())
def test_a_new_writer_gets_the_logs_of_a_run(framework, tree, tmp_path):
    done = python(
        tree, tmp_path, "-m", "tests.integrations.writers.job", "toy", str(tmp_path / "out"), "--steps", "2",
        "--framework", framework,
        paths=[tree / "service"],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    sent = [json.loads(line) for line in (tmp_path / "service.jsonl").read_text().splitlines()]
    assert [step for step, keys in sent if "loss" in keys] == [1, 2]
    assert [step for step, keys in sent if "eval_loss" in keys] == [2]


def test_a_new_writer_is_exported_and_asks_for_its_package(tree, tmp_path):
    code = """
import oneloop
from oneloop import ToyCallback, TrainingArguments
assert "ToyCallback" in oneloop.__all__ and ToyCallback.name == "toy"
args = TrainingArguments("out", report_to="toy")
try:
    args.check_backend("torch", "cpu")
except oneloop.errors.MissingPackageError as error:
    print(error)
try:
    TrainingArguments("out", report_to="toys")
except oneloop.errors.ArgumentError as error:
    print(error)
"""
    done = python(tree, tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
    missing, unknown = done.stdout.splitlines()
    assert "pip install toy-service" in missing
    assert "toy, tensorboard" in unknown


def test_the_stubs_of_a_new_writer_are_found_out_of_date_and_written(tree, tmp_path):
    code = """
from oneloop.arguments import typing_stub as arguments
from oneloop.integrations.writers import typing_stub as writers
print([module.main(words) for module in (writers, arguments) for words in (["--check"], [], ["--check"])])
"""
    done = python(tree, tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[1, 0, 0, 1, 0, 0]"


@pytest.mark.slow
def test_mypy_knows_the_callback_of_a_new_writer(tree, tmp_path):
    for module in ("oneloop.integrations.writers.typing_stub", "oneloop.arguments.typing_stub"):
        assert python(tree, tmp_path, "-m", module).returncode == 0
    (tmp_path / "script.py").write_text("from oneloop import ToyCallback\n\nreveal_type(ToyCallback().name)\n")
    done = python(
        tree, tmp_path, "-m", "mypy", "--follow-imports=silent", "--ignore-missing-imports",
        "--cache-dir=cache", "script.py",
    )  # fmt: skip
    assert 'Revealed type is "str"' in done.stdout.replace("builtins.", ""), done.stdout + done.stderr
    assert done.returncode == 0
