"""Golden losses: 100 steps of the same network on each framework, with all their digits, in a text file.

    OMP_NUM_THREADS=1 python -m tests.golden.golden [FRAMEWORK ...]   writes the files anew

A file begins with what its digits depend on beside oneloop: the framework's version, its threads and the
processor's instructions.
"""

import os
import platform
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np

PACKAGES = {"torch": "torch", "paddle": "paddlepaddle", "mindspore": "mindspore"}
FOLDER = Path(__file__).parent


def circumstances(framework):
    """What the last bits of a sum may depend on."""
    package, threads = PACKAGES[framework], os.environ.get("OMP_NUM_THREADS") or os.cpu_count()
    return f"{package} {version(package).split('+')[0]}, {threads} thread(s), {platform.machine()}, {instructions()}"


def instructions():
    """The processor, and the widest vectors that it computes with."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    known = ("avx", "avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile")
    flags = fields.get("flags", "").split()
    return f"{fields.get('model name', '?')}, {' '.join(flag for flag in known if flag in flags)}"


def losses(framework, folder):
    """The losses of 100 steps with AdamW, one thread, no dropout."""
    from tests.checkpoint.convert.test_between_frameworks import losses, run

    return losses(run(framework, Path(folder) / "run", Path(folder), save_strategy="no"))


def read(framework):
    """(circumstances, losses) of the file."""
    first, *lines = (FOLDER / f"{framework}.txt").read_text().splitlines()
    return first.removeprefix("# "), np.array([float.fromhex(line.split()[1]) for line in lines])


def write(framework, values):
    lines = [
        f"# {circumstances(framework)}",
        *(f"{i} {v.hex()} {v:.6f}" for i, v in enumerate(values.tolist(), start=1)),
    ]
    (FOLDER / f"{framework}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    for name in sys.argv[1:] or PACKAGES:
        with tempfile.TemporaryDirectory() as place:
            write(name, losses(name, place))
