"""Starting programs of several processes under the frameworks' launchers, one thread each; reading what they left."""

import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Cases whose runs have to be those of one process.
EQUAL = ("sgd", "few_left", "accumulated", "tokens", "tokens_accumulated", "adamw", "with_workers")
EQUAL += ("overridden", "loss_function", "summed", "own_step", "step_divides", "step_minds", "step_of_super")
EQUAL += ("labels_of_some", "labels_of_some_accumulated", "loss_of_super", "loss_minds", "both_divide")
EQUAL += ("packed", "packed_stream", "shifted")
JOB = Path(__file__).with_name("job.py")
CASES = Path(__file__).with_name("cases.py")


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


def run(processes, *argv, script=JOB):
    """All that was said by processes that were forked from a server, without a launcher. They have to succeed."""
    statuses, said = outcome(processes, *argv, script=script)
    assert statuses == [0] * processes, f"exit statuses {statuses}\n{said}"
    return said


def outcome(processes, *argv, script=JOB):
    """The exit statuses of such processes, and all that was said."""
    with tempfile.NamedTemporaryFile("r", prefix="said", errors="replace") as log:
        return server().run(processes, script, argv, log.name), log.read()


@functools.cache
def server():
    from tests.distributed.server import Server

    return Server(environment())


def run_launched(processes, *argv, script=JOB, options=(), status=0):
    """All that was said under torchrun. Any other exit status than the expected one fails."""
    child = start(processes, *argv, script=script, options=options)
    said, _ = child.communicate(timeout=600)
    assert child.returncode == status, f"exit status {child.returncode}\n{said}"
    return said


def run_cases(framework, processes, folder, *names, succeeds=True):
    """cases.py as run_script runs a program."""
    return run_script(framework, processes, folder, CASES, *names, succeeds=succeeds)


def run_script(framework, processes, folder, script, *argv, succeeds=True):
    """A program under the framework's own launcher, whose status is 0 when all processes end well; what they said. Its
    first argument is the folder.

    torch's launcher has tests of its own: here its processes are forked from the server.
    """
    logs = Path(folder) / "logs"
    if framework == "torch":
        log = Path(f"{logs}.txt")
        statuses = server().run(processes, script, (folder, *argv), log, patient=True)
        said = log.read_text(errors="replace")
        assert (not any(statuses)) == succeeds, f"exit statuses {statuses}\n{said}"
        return said
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # msrun calls `python`
    child = subprocess.run(
        [*_launcher(framework, processes, logs), str(script), *map(str, (folder, *argv))],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(FRAMEWORK=framework, PATH=path),
        text=True,
        timeout=600,
        cwd=folder,
    )
    said = "\n".join([child.stdout, *(log.read_text() for log in sorted(logs.glob("worker*")))])
    assert (child.returncode == 0) == succeeds, f"exit status {child.returncode}\n{said}"
    return said


def _launcher(framework, processes, logs):
    if processes == 1:
        return [sys.executable]
    if framework == "paddle":
        launcher = [sys.executable, "-m", "paddle.distributed.launch", f"--nproc_per_node={processes}"]
        return [*launcher, f"--log_dir={logs}"]
    if framework == "mindspore":
        count = [f"--worker_num={processes}", f"--local_worker_num={processes}", "--join=True"]
        place = [f"--master_port={free_port()}", f"--log_dir={logs}"]
        return [str(Path(sys.executable).with_name("msrun")), *count, *place]
    raise ValueError(framework)


def results(folder, processes):
    """What each process wrote, by rank."""
    return [json.loads((Path(folder) / f"rank{rank}.json").read_text()) for rank in range(processes)]
