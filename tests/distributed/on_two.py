"""Tests of one process, run by several that all have the same batch: `on_two.py FOLDER TEST [TEST ...]`.

An axis that splits nothing is added to every run, with all processes on it. Everything that a test of one process
expects holds then too, but each collective is one. What the tests write is in one directory for all processes, since
one of them writes checkpoints and logs.
"""

import hashlib
import os
import sys
from pathlib import Path

import pytest

from oneloop.distributed import mesh
from oneloop.distributed.world import world

mesh.register(
    mesh.AxisKind(
        "twins",
        splits=lambda args: mesh.Splits.NOTHING,
        size=lambda args, left: left,
        strategy=lambda strategy, framework: strategy,
    )
)


class Twins:
    """The plugin of a process."""

    def __init__(self, folder):
        self.folder, self.passed = Path(folder), []

    @pytest.fixture
    def tmp_path(self, request):
        place = self.folder / hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]
        place.mkdir(parents=True, exist_ok=True)
        return place

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:
            self.passed.append(report.nodeid)

    def pytest_sessionfinish(self):
        (self.folder / f"passed-{world().rank}").write_text("\n".join(self.passed))


def main(folder, *tests):
    os.environ["WITHOUT"] = "paddle mindspore"
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short"]
    return pytest.main([*options, *tests], plugins=[Twins(folder)])


if __name__ == "__main__":
    sys.exit(int(main(*sys.argv[1:])))
