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


def script(name, framework, folder):
    """The path of a script. PaddleNLP's stand in the tests with torch; for Paddle `paddle` is put back."""
    path = SCRIPTS / f"{name}.py"
    if framework == "torch":
        return path
    text = path.read_text(encoding="utf-8")
    assert "import torch\nfrom stand_ins import" in text and "torch.nn.CrossEntropyLoss()" in text
    text = text.replace("import torch\nfrom stand_ins import", "import paddle\nfrom paddle_stand_ins import")
    path = folder / f"{name}_on_paddle.py"
    path.write_text(text.replace("torch.nn.CrossEntropyLoss()", "paddle.nn.loss.CrossEntropyLoss()"), encoding="utf-8")
    return path


@pytest.fixture
def run_script(tmp_path, monkeypatch):
    """run_script(name, *options, where=folder): runs scripts/NAME.py there and returns the names that it defined.

    With framework="paddle", a script of PaddleNLP's runs with `paddle`, as its guide has it, in place of torch. The
    test stays in that directory, since what the script made may write to it later.
    """
    monkeypatch.syspath_prepend(str(SCRIPTS.parent))

    def run(name, *options, where=".", framework="torch"):
        folder = tmp_path / where
        folder.mkdir(parents=True, exist_ok=True)
        path = script(name, framework, folder)
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", [str(path), *map(str, options)])
        return runpy.run_path(str(path), run_name="__main__")

    return run
