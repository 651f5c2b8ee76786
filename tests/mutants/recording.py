"""Records which functions of the package each test calls, also in processes that it starts.

As a plugin of pytest it writes one line of JSON for each test that passes: its name, its seconds and its functions.
What a fixture of a wider scope calls belongs to every test of the file, and so does what other processes call; they
find this module as sitecustomize, in the tree that is on their path.
"""

import json
import os
import sys
import threading
from pathlib import Path

PACKAGE, OTHERS, RESULT = "ONELOOP_MUTANTS_PACKAGE", "ONELOOP_MUTANTS_OTHERS", "ONELOOP_MUTANTS_RESULT"


class Recorder:
    """`called` has the functions since it was last emptied, as "file:qualified name"."""

    def __init__(self, package: str, out: int | None = None) -> None:
        self.package, self.out = package.rstrip(os.sep) + os.sep, out
        self.root = len(str(Path(package).parent)) + 1
        self.called: set[str] = set()
        self._seen: dict[object, str | None] = {}

    def start(self) -> None:
        threading.settrace(self._trace)
        sys.settrace(self._trace)

    def _trace(self, frame, event, arg):
        code = frame.f_code
        name = self._seen.get(code, "")
        if name == "":
            is_ours = code.co_filename.startswith(self.package)
            name = f"{code.co_filename[self.root :]}:{_qualified(code)}" if is_ours else None
            self._seen[code] = name
            if name is not None and self.out is not None:
                os.write(self.out, f"{name}\n".encode())
        if name is not None:
            self.called.add(name)


def _qualified(code) -> str:
    """The function that is written as one: what a comprehension or a lambda in it does belongs to it."""
    names = [part for part in code.co_qualname.split(".") if part != "<locals>"]
    while names and names[-1].startswith("<"):
        names.pop()
    return ".".join(names)


def in_another_process() -> None:
    """Of sitecustomize."""
    if os.environ.get(PACKAGE) and os.environ.get(OTHERS):
        out = os.open(os.environ[OTHERS], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        Recorder(os.environ[PACKAGE], out).start()


def _cpu_seconds() -> float:
    return sum(os.times()[:4])  # with those of other processes that have ended


class Plugin:
    def __init__(self) -> None:
        self.recorder = Recorder(os.environ[PACKAGE])
        self.shared: set[str] = set()
        self.tests: dict[str, tuple[float, list[str]]] = {}
        self.began, self.passed, self.wide = 0.0, True, False

    def pytest_sessionstart(self) -> None:
        self.recorder.start()

    def pytest_collection_finish(self) -> None:
        self.shared |= self.recorder.called  # of modules of tests

    def pytest_runtest_setup(self, item) -> None:
        self.recorder.called.clear()
        self.began, self.passed, self.wide = _cpu_seconds(), True, bool(_new_fixtures(item))

    def pytest_runtest_call(self, item) -> None:
        if self.wide:
            self.shared |= self.recorder.called

    def pytest_runtest_logreport(self, report) -> None:
        self.passed = self.passed and report.outcome == "passed"

    def pytest_runtest_teardown(self, item) -> None:
        self.tests[item.nodeid] = (_cpu_seconds() - self.began, sorted(self.recorder.called))
        if not self.passed:
            self.tests.pop(item.nodeid)

    def pytest_sessionfinish(self) -> None:
        sys.settrace(None)
        others = Path(os.environ[OTHERS])
        found = others.read_text().split("\n") if others.exists() else []
        result = {"shared": sorted({*self.shared, *filter(None, found)}), "tests": self.tests}
        Path(os.environ[RESULT]).write_text(json.dumps(result))


_ready: set[int] = set()


def _new_fixtures(item) -> list[object]:
    """The fixtures of a wider scope that this test is the first to need."""
    found = []
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        for each in definitions:
            if each.scope != "function" and id(each) not in _ready:
                _ready.add(id(each))
                found.append(each)
    return found


if __name__ == "sitecustomize":
    in_another_process()
