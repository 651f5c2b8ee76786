"""Scripts in processes of their own, in a directory with data and models."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.compat import local, plans
from tests.compat.support import PYTHON, environment


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A directory with the data; models are made by the process that needs them."""
    folder = tmp_path_factory.mktemp("scripts")
    local.data(folder)
    (folder / "settings.json").write_text(json.dumps(plans.SETTINGS))
    return folder


@pytest.fixture(scope="session")
def ran(place):
    """ran(*command lines, models=False): runs them under `oneloop run` in one process; a list of their outcomes."""

    def run(*commands, models=False):
        words = [PYTHON, str(Path(__file__).parent / "several.py"), str(place), json.dumps(commands)]
        done = subprocess.run(
            [*words, *(["models"] if models else [])],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        return json.loads((place / "outcomes.json").read_text())

    return run
