"""Every code block of docs/ is run, on the framework that it imports; see tests/docs/pages.py."""

import logging
import os
import random
import re
import subprocess
import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from oneloop.cli import main
from tests.docs import commands, pages

OTHERS = ["mindspore", "paddle", "transformers", "peft", "optuna", "ray", "onnxruntime", "datasets"]
PYTHON_PAGES = [
    name for name in pages.names() if any(block.language == "python" for block in pages.blocks(pages.text_of(name)))
]


def _parameter(name):
    return pytest.param(name, marks=pytest.mark.slow if pages.is_slow(pages.text_of(name)) else [])


@pytest.fixture(scope="module", autouse=True)
def mindspore_first():
    """MindSpore cannot be imported after Paddle, and pages with one come after pages with the other."""
    if find_spec("mindspore"):
        import_module("mindspore")


@pytest.fixture
def at(tmp_path, monkeypatch):
    """An empty directory to run in, where `oneloop` is that of this tree and `python` the interpreter of the tests."""
    monkeypatch.chdir(tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "oneloop").write_text(f'#!/bin/sh\nexec {sys.executable} -m oneloop "$@"\n')
    (programs / "oneloop").chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONPATH", str(pages.ROOT))
    yield tmp_path
    logging.getLogger("oneloop").setLevel(logging.NOTSET)


@pytest.mark.parametrize("name", [_parameter(name) for name in PYTHON_PAGES])
def test_code_blocks_run_in_order(name, at, caplog):
    found = pages.blocks(pages.text_of(name))
    source = "\n".join(block.code for block in found if block.mark != "not run")
    for package in OTHERS:
        if f"import {package}" in source or f"from {package}" in source:
            pytest.importorskip(package)
    random.seed(0)
    np.random.seed(0)
    if find_spec("torch"):
        import torch

        torch.manual_seed(0)
    namespace = {"__name__": "__main__"}
    for block in found:
        if block.language in ("python", "setup"):
            _run(block, pages.DOCS / name, namespace, caplog)
        elif block.language == "bash" and block.mark == "run":
            _run_shell(block.code, f"{name}:{block.line}")


def _run_shell(code, where):
    words = commands.commands(code)
    if all(program == "oneloop" for program, *_ in words):  # without a new interpreter
        assert [main.main(rest) for _, *rest in words] == [0] * len(words), where
        return
    done = subprocess.run(["bash", "-euc", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{where}\n{done.stdout[-2000:]}{done.stderr[-3000:]}"


def _run(block, path, namespace, caplog):
    code = compile("\n" * (block.line - 1) + block.code, str(path), "exec")  # so that errors show the page's line
    if block.mark == "not run":
        assert block.text, f"{path}:{block.line} does not say why it is not run"
    elif block.mark == "needs" and find_spec(block.text) is None:
        return
    elif block.mark == "raises":
        with pytest.raises(Exception) as raised:
            exec(code, namespace)
        assert block.text in _one_line(f"{raised.type.__name__}: {raised.value}"), f"{path}:{block.line}"
    elif block.mark == "logs":
        caplog.clear()
        with warnings.catch_warnings(record=True) as warned, caplog.at_level(logging.INFO):
            warnings.simplefilter("always")
            exec(code, namespace)
        said = _one_line("\n".join([caplog.text, *(str(warning.message) for warning in warned)]))
        assert block.text in said, f"{path}:{block.line}: {said}"
    else:
        exec(code, namespace)


def _one_line(text):
    return " ".join(text.split())


@pytest.mark.parametrize("name", PYTHON_PAGES)
def test_code_can_be_copied_from_the_page(name):
    """A reader who copies all blocks has every name that they use."""
    assert pages.missing_names(pages.blocks(pages.text_of(name))) == []


def test_names_that_a_page_does_not_show_are_found():
    code = "import torch\n\n\ndef f(x):\n    return x + torch.ones(np.prod(size))\n\n\nprint(f(data))\n"
    assert pages.missing_names(pages.blocks(f"```python\n{code}```\n")) == ["data", "np", "size"]
    hidden = "<!-- setup\ndata = 1\n-->\n```python\nprint(data)\n```\n"
    assert pages.missing_names(pages.blocks(hidden)) == ["data"]


@pytest.mark.parametrize("name", pages.names())
def test_shell_commands_exist(name):
    wrong = [
        f"{name}:{block.line}: {problem}"
        for block in pages.blocks(pages.text_of(name))
        if block.language in ("bash", "sh") and block.mark != "not run"
        for words in commands.commands(block.code)
        if (problem := commands.problem(words))
    ]
    assert wrong == []


@pytest.mark.parametrize("name", pages.names())
def test_marks_are_known(name):
    marks = {block.mark for block in pages.blocks(pages.text_of(name))}
    assert marks <= {"", "run", "raises", "logs", "needs", "not run"}, (
        "a comment before a code block is not one of the marks"
    )


CHINESE = [name for name in pages.names() if name.startswith("zh/")]


def _lines_of_code(name):
    """Lines of the code blocks without comments, which are in the page's language."""
    code = "\n".join(block.code for block in pages.blocks(pages.text_of(name)) if block.language != "setup")
    return {re.sub(r"\s+#.*", "", line).rstrip() for line in code.splitlines()}


def _in_english(name):
    """The English page that a Chinese one translates."""
    (found,) = {name.removeprefix("zh/"), f"how-to/{name.removeprefix('zh/')}"} & set(pages.names())
    return found


@pytest.mark.parametrize("name", CHINESE)
def test_a_chinese_page_shows_code_of_the_english_one(name):
    """So that running the English one is enough by default."""
    assert _lines_of_code(name) - _lines_of_code(_in_english(name)) == set()


@pytest.mark.parametrize("name", CHINESE)
def test_a_chinese_page_has_the_sections_of_the_english_one(name):
    """What is added to a page is missed in its translation."""
    if name in ("zh/getting-started.md", "zh/installation.md"):
        pytest.skip("an abridged page")
    counts = [pages.text_of(each).count("\n## ") for each in (name, _in_english(name))]
    assert counts[0] == counts[1]
