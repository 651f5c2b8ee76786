"""Starting programs of several processes under torchrun, one thread each, and reading what they left."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("job.py")


def environment(**more):
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | more


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def command(processes, script, *argv, options=()):
    """torchrun's command line; a single process is started without it."""
    if processes == 1:
        return [sys.executable, str(script), *map(str, argv)]
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}", *options]
    return [*launcher, f"--master-port={free_port()}", str(script), *map(str, argv)]


def start(processes, *argv, script=JOB, options=(), **popen):
    return subprocess.Popen(
        command(processes, script, *argv, options=options),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(),
        text=True,
        **popen,
    )


def run(processes, *argv, script=JOB, options=(), status=0):
    """All that was said. Any other exit status than the expected one fails."""
    child = start(processes, *argv, script=script, options=options)
    said, _ = child.communicate(timeout=600)
    assert child.returncode == status, f"exit status {child.returncode}\n{said}"
    return said


def results(folder, processes):
    """What each process wrote, by rank."""
    return [json.loads((Path(folder) / f"rank{rank}.json").read_text()) for rank in range(processes)]
