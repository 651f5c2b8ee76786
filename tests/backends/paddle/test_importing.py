"""What an import by oneloop sets before Paddle, and puts right after."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("paddle")

from oneloop.backends.paddle import spec as paddle_spec


def python(code, **variables):
    kept = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "MKL_DEBUG_CPU_TYPE")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=kept | {"PYTHONPATH": os.pathsep.join(sys.path)} | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split(), done.stderr


POLL_SECONDS = """
import os
from oneloop.backends import loading
loading.load("paddle")
print(os.environ.get("OMP_NUM_THREADS"), os.environ.get("MKL_DEBUG_CPU_TYPE"))
"""


def test_the_environment_of_an_import():
    (threads, kernels), said = python(POLL_SECONDS)
    assert threads == "None", "children would inherit Paddle's one thread"
    assert kernels == ("5" if paddle_spec._is_amd() else "None")
    assert "ccache" not in said


def test_what_the_user_has_set_stays():
    (threads, kernels), _ = python(POLL_SECONDS, OMP_NUM_THREADS="2", MKL_DEBUG_CPU_TYPE="4")
    assert (threads, kernels) == ("2", "4")


def test_kernels_are_chosen_on_amd_processors_alone(monkeypatch):
    for vendor, expected in ((True, "5"), (False, None)):
        monkeypatch.delenv("MKL_DEBUG_CPU_TYPE", raising=False)
        monkeypatch.setattr(paddle_spec, "_is_amd", lambda vendor=vendor: vendor)
        paddle_spec.prepare()
        assert os.environ.get("MKL_DEBUG_CPU_TYPE") == expected
        monkeypatch.delenv("MKL_DEBUG_CPU_TYPE", raising=False)


def test_nothing_is_imported_before_it_is_needed():
    code = "import sys, oneloop.backends; print('paddle' in sys.modules, 'torch' in sys.modules)"
    assert python(code)[0] == ["False", "False"]
