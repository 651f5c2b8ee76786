"""Every backend has the modules, functions and parameters of oneloop.backends.base, and the core asks for no others."""

import ast
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from oneloop import backends
from oneloop.backends import base, loading
from tests.backends.support import names

PACKAGE = Path(backends.__file__).parents[1]
# Functions that only some backends have; whoever calls them asks first.
ASKED_FOR = {("parallel", "gather"), ("parallel", "pad"), ("parallel", "reduce")}


def required(function):
    """The parameters that a caller has to give or may give by name."""
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    return [(p.name, p.kind, p.default is p.empty) for p in parameters]


@pytest.mark.parametrize("framework", names())
@pytest.mark.parametrize("part", base.MODULES)
def test_a_backend_has_the_names_and_parameters_of_the_protocol(framework, part):
    module, protocol = getattr(loading.load(framework), part), base.MODULES[part]
    assert [name for name in base.names_of(protocol) if not hasattr(module, name)] == []
    for name, declared in vars(protocol).items():
        if inspect.isfunction(declared) and not name.startswith("_"):
            asked, found = required(declared), required(getattr(module, name))
            assert found[: len(asked)] == asked, name
            assert not [each for each in found[len(asked) :] if each[2]], f"{name} needs more than it is given"


@pytest.mark.parametrize("framework", names())
def test_an_engine_has_the_methods_of_the_protocol(framework):
    engine = loading.load(framework).engine.Engine
    for name, declared in vars(base.Engine).items():
        if inspect.isfunction(declared) and not name.startswith("_"):
            found = required(getattr(engine, name))
            assert found[: len(required(declared))] == required(declared), name


def test_the_protocol_has_all_that_the_core_asks_for():
    """backend.models.invoke and the like, in every file outside of the backends."""
    asked = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        if file.is_relative_to(PACKAGE / "backends"):
            continue
        text = file.read_text(encoding="utf-8")
        for part, name in re.findall(rf"backend\.({'|'.join(base.MODULES)})\.(\w+)", text):
            asked.setdefault((part, name), file.name)
    assert len(asked) > 60
    missing = {pair: file for pair, file in asked.items() if pair[1] not in base.names_of(base.MODULES[pair[0]])}
    assert set(missing) <= ASKED_FOR, missing


def test_backend_lists_every_module():
    modules = {name for name, value in vars(base.Backend).items() if isinstance(value, property)}
    assert modules == {"NAME", *base.MODULES}


def test_no_table_of_frameworks_outside_of_the_backends():
    """A dict, list, tuple or set with two frameworks in it belongs into their specs."""
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        # The two are replaced by registry functions in their own step.
        if file.is_relative_to(PACKAGE / "backends") or file.parent.name in ("trainer", "converters"):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            items = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", None)
            words = {item.value for item in items or () if isinstance(item, ast.Constant)}
            if len(words & {"torch", "paddle", "paddlepaddle", "mindspore", "mindtorch"}) > 1:
                found.append(f"{file.relative_to(PACKAGE)}:{node.lineno}")
    assert found == []


@pytest.mark.parametrize("name", ["torch", "paddle", "mindspore", "mindtorch"])
def test_a_spec_imports_no_framework(name):
    code = (
        f"import sys, oneloop.backends.{name}.spec as own\n"
        "from oneloop.backends import registry\n"
        "registry.resolve(own.SPEC.unsupported), registry.resolve(own.SPEC.optimizer_layout)\n"
        "print({'torch', 'paddle', 'mindspore', 'mindtorch'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


CHANGES = {
    "nothing": ("memory.py", "", "", None),
    "a function is missing": ("memory.py", "def peak(", "def _peak(", '"Memory"'),
    "another parameter": ("memory.py", "def peak(device", "def peak(more: int, device", '"Memory"'),
    "a method is missing": ("engine.py", "    def grad_norm(", "    def _grad_norm(", '"Engines"'),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_mypy_compares_the_backends_with_the_protocol(change, tmp_path):
    pytest.importorskip("mypy")
    file, before, after, words = CHANGES[change]
    shutil.copytree(PACKAGE, tmp_path / "oneloop", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PACKAGE.parent / "pyproject.toml", tmp_path)
    target = tmp_path / "oneloop" / "backends" / "torch" / file
    text = target.read_text()
    assert before in text
    target.write_text(text.replace(before, after))
    done = subprocess.run([sys.executable, "-m", "mypy"], cwd=tmp_path, capture_output=True, text=True)
    about = [line for line in done.stdout.splitlines() if "backends/" in line.partition(": ")[0]]
    assert (words is None) == (not about), done.stdout
    assert words is None or any("conformance.py" in line and words in line for line in about), done.stdout
