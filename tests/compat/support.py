"""How scripts are started in processes of their own.

ONELOOP_SCRIPTS_PYTHON names another interpreter for them, such as that of an environment with transformers 4.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
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
