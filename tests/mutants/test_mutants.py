"""The search for faults that no test notices, on a small package."""

import re
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants import __main__ as mutants
from tests.mutants import recording
from tests.mutants.faults import KINDS, faults

CODE = '''
def clipped(value, low, high=9):
    """The value within a range."""
    if value < low or value > high:
        return min(max(value, low), high)
    return value


class Log:
    def __init__(self):
        self.lines, self.opened = [], 0

    def add(self, line):
        self.opened += 1
        try:
            self.lines.append(line.strip())
        finally:
            self.opened -= 1

    def unused(self):
        return [line for line in self.lines if line is not None]
'''
TESTS = """
import pytest
from oneloop.thing import Log, clipped

def test_clipped():
    assert [clipped(value, 2, 4) for value in (1, 2, 3, 4, 5)] == [2, 2, 3, 4, 4]

@pytest.fixture(scope="module")
def log():
    made = Log()
    made.add("a ")
    return made

def test_log(log):
    assert log.lines == ["a"]

def test_log_again(log):
    assert len(log.lines) == 1
"""


def found(source, kind):
    return [
        (fault.planted(source), fault.function)
        for fault in faults("m.py", source)
        if fault.kind == kind and fault.planted(source) != source
    ]


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("condition", "if a.b(c):\n        d()", "if (not (a.b(c))):\n        d()"),
        ("condition", "return 1 if a else 2", "return 1 if (not (a)) else 2"),
        ("condition", "return [x for x in y if x]", "return [x for x in y if (not (x))]"),
        ("boundary", "return a < b <= c", "return a <= b <= c"),
        ("comparison", "return a is not None", "return a is None"),
        ("comparison", "return a not in b", "return a in b"),
        ("operator", "return a and b and c", "return ((a) or (b) or (c))"),
        ("operator", "return a + 1", "return a - 1"),
        ("constant", "return f(True)", "return f(False)"),
        ("constant", "return a[1:]", "return a[2:]"),
        ("constant", 'return a["é"]', "return a['éx']"),
        ("call", "a.b(1)", "pass"),
        ("assignment", "self.a = b", "pass"),
        ("assignment", "a += 1", "pass"),
        ("arguments", "return f(a,\n        b, c)", "return f(b,\n        a, c)"),
        ("finally", "try:\n      a()\n    finally:\n      b()\n      c()", "try:\n      a()\n    finally:\n      pass"),
        ("return", "return a", "return None"),
    ],
)  # fmt: skip
def test_faults(kind, before, after):
    source = f"class C:\n  def f(self):\n    é = 'é'; {before}\n" if "\n" not in before else f"def f():\n    {before}\n"
    planted = [text for text, _ in found(source, kind)]
    assert source.replace(before, after) in planted
    for text in planted:
        compile(text, "m.py", "exec")


@pytest.mark.parametrize(
    "source",
    [
        'def f():\n    """A docstring."""\n',
        'def f(a: "int" = 3, *, b=True): ...\n',
        'def f():\n    raise ValueError("words", 3)\n',
        'def f():\n    logger.info("words", 3)\n',
        "A = 3\nif TYPE_CHECKING:\n    B = 4\n",
        "class C:\n    a = 3\n",
    ],
)
def test_what_is_no_fault(source):
    assert faults("m.py", source) == []


def test_every_module_of_the_package_can_be_faulty():
    """Each fault is one that compiles, is within a function that exists, and changes the text."""
    kinds, root = Counter(), Path(mutants.ROOT)
    for file in sorted((root / "oneloop" / "data").glob("*.py")):
        source = file.read_text(encoding="utf-8")
        names = set()
        every = faults(file.name, source)
        for fault in (*every[::5], *(each for each in every if each.kind == "finally")):  # which are few
            compile(fault.planted(source), file.name, "exec")
            kinds[fault.kind] += 1
            names.add(fault.function)
        assert all(name.rpartition(".")[2] in source for name in names)
    assert set(kinds) == set(KINDS)


def test_the_same_seed_draws_the_same_faults():
    first, again, other = (mutants.draw("oneloop/data", 30, seed) for seed in (1, 1, 2))
    assert first == again != other and len({*first}) == 30
    assert {fault.kind for fault in mutants.draw("oneloop/data", 60, 1)} == set(KINDS)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    root = tmp_path_factory.mktemp("repository")
    for name, text in {
        "oneloop/__init__.py": "",
        "oneloop/thing.py": CODE,
        "tests/test_thing.py": TESTS,
        "pytest.ini": "[pytest]\naddopts = --import-mode=importlib\n",
    }.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(textwrap.dedent(text))
    (root / "tests" / "mutants").mkdir()
    for file in Path(mutants.__file__).parent.glob("[_a-z]*.py"):
        if not file.name.startswith("test_"):
            (root / "tests" / "mutants" / file.name).write_text(file.read_text())
    return root


def called(root, *argv):
    child = subprocess.run(
        [sys.executable, "-m", "tests.mutants", *argv, "--store", str(root / "map.json"), "--warm", ""],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert child.returncode == 0, child.stdout + child.stderr
    return child.stdout


def test_a_small_package(repository):
    """What the tests look at is caught; what a fixture of the module calls belongs to all its tests; the repository
    stays as it was."""
    assert "tests/test_thing.py: 3 tests" in called(repository, "map")
    store = mutants.Map(repository / "map.json")
    of_fixture = next(f for f in faults("oneloop/thing.py", CODE) if f.function == "Log.add")
    assert {name.rpartition("::")[2] for name in store.tests_of(of_fixture, 9.0)} >= {"test_log", "test_log_again"}
    said = called(repository, "run", "oneloop/thing.py", "--count", "100")
    lines = said.splitlines()
    pattern = re.compile(r"(\w+) +oneloop/thing.py:\d+ (\w+): (.*) -> .* \(\d+ tests\)")
    outcomes = {match[3]: match[1] for match in map(pattern.fullmatch, lines) if match and match[2] != "arguments"}
    assert outcomes["<"] == outcomes["self.opened -= 1"] == "survived"
    assert outcomes["value < low or value > high"] == outcomes["self.lines.append(line.strip())"] == "caught"
    assert outcomes["line is not None"] == "uncovered"
    *_, row = lines
    name, caught, survived, uncovered, share = row.split()
    assert name == "oneloop/thing.py" and min(map(int, (caught, survived, uncovered))) > 0
    assert share == f"{int(caught) / (int(caught) + int(survived) + int(uncovered)):.0%}"
    assert (repository / "oneloop" / "thing.py").read_text() == textwrap.dedent(CODE)


def test_functions_of_other_processes_are_recorded(tmp_path):
    """They find the module as sitecustomize."""
    (tmp_path / "oneloop").mkdir()
    (tmp_path / "oneloop" / "__init__.py").touch()
    (tmp_path / "oneloop" / "thing.py").write_text("def f():\n    return [g() for _ in 'a']\n\ndef g():\n    pass\n")
    (tmp_path / "sitecustomize.py").write_text(Path(recording.__file__).read_text())
    names = {recording.PACKAGE: str(tmp_path / "oneloop"), recording.OTHERS: str(tmp_path / "others")}
    child = [sys.executable, "-c", "import os, oneloop.thing; oneloop.thing.f(); os._exit(0)"]
    subprocess.run(child, env={"PYTHONPATH": str(tmp_path), **names}, cwd=tmp_path, check=True, timeout=60)
    assert {"oneloop/thing.py:f", "oneloop/thing.py:g"} <= set((tmp_path / "others").read_text().split())
