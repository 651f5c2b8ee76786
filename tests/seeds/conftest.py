"""Running a guide's script as its reader would: in a directory of its own, with a command line."""

import runpy
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(autouse=True)
def one_thread():
    """The models are so small that threads only wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def run_script(tmp_path, monkeypatch):
    """run_script(name, *options, where=folder): runs scripts/NAME.py there and returns the names that it defined.

    The test stays in that directory, since what the script made may write to it later.
    """
    monkeypatch.syspath_prepend(str(SCRIPTS.parent))

    def run(name, *options, where="."):
        folder = tmp_path / where
        folder.mkdir(parents=True, exist_ok=True)
        path = SCRIPTS / f"{name}.py"
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", [str(path), *map(str, options)])
        return runpy.run_path(str(path), run_name="__main__")

    return run
