"""Scripts in processes of their own, in a directory with data and models.

ONELOOP_SCRIPTS_PYTHON names another interpreter for them, such as that of an environment with transformers 4.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))
PYTHON = os.environ.get("ONELOOP_SCRIPTS_PYTHON", sys.executable)


def environment():
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A directory with the data; models are made by the process that needs them."""
    import local
    import plans

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
