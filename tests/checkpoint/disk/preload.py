"""calls.c: compiled, loaded into child processes, and controlled from inside of them."""

import ctypes
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.checkpoint.children import ROOT, environment
from tests.distributed.launch import free_port

SOURCE = Path(__file__).with_name("calls.c")
_path = ""  # of the record
ONCE, ONWARD, SHORT = 1, 2, 3  # one call fails; it and all after it; a write takes half, and then there is no space


def build(folder):
    """The compiled library; skips the test where there is no compiler, or no Linux."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux")
    library = Path(folder) / "calls.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl", "-lpthread"], check=True)
    return library


def run(library, *argv, processes=1, timeout=1200):
    """`python -m tests.checkpoint.disk.job ...` under the library, or under torchrun; what it printed last."""
    options = [f"--nproc-per-node={processes}", f"--master-port={free_port()}"]
    launcher = ["-m", "torch.distributed.run", *options] if processes > 1 else []
    ended = subprocess.run(
        [sys.executable, *launcher, "-m", "tests.checkpoint.disk.job", *map(str, argv)],
        env=environment() | {"LD_PRELOAD": str(library)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-8000:]
    return (ended.stdout.splitlines() or [""])[-1]


@cache
def _library():
    library = ctypes.CDLL(None)
    library.disk_failed.restype = ctypes.c_char_p
    library.disk_disarm.restype = ctypes.c_long
    library.disk_arm.argtypes = (ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int)
    return library


def arm(folder, call=0, number=0, mode=ONCE):
    """From now on count calls below this path; the given one (from 1) fails with this error number."""
    _library().disk_arm(os.fsencode(folder), call, number, mode)


def disarm():
    """The number of calls since arm()."""
    return _library().disk_disarm()


def failed():
    """The name of the call that was made to fail."""
    return _library().disk_failed().decode()


def record(path=""):
    """Append all calls below the path of arm() to this file, or stop doing so. Several processes may name one file."""
    global _path
    _path = path
    _library().disk_record(os.fsencode(path))


def record_again():
    """In a process that was forked while its parent recorded: each process opens the file itself."""
    record(_path)


def mark(word):
    """Note in the record that something has happened."""
    _library().disk_mark(word.encode())
