"""Starting job.py as a child process, and looking at what it left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from oneloop import get_last_checkpoint
from oneloop.checkpoint import store
from tests.checkpoint.job import without_times

ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("job.py")
KILLED = -signal.SIGKILL
FINISHED = ("--no-sync", "--set", "save_steps=9", "--set", "save_total_limit=null")  # argv of the fixture `finished`


def environment():
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


@dataclass
class Ended:
    """A child that has ended: its exit status as subprocess counts it, and all it said."""

    status: int
    output: str


class Forks:
    """Children that are forked from one process which has imported all: a new process for each run, soon started."""

    def __init__(self, framework="torch", *more):
        """`more`: modules to import too."""
        self.framework = framework
        self._server = subprocess.Popen(
            [sys.executable, str(JOB), "--serve", framework, *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            text=True,
        )

    def run(self, *argv, output, meanwhile=None):
        """One run to its end, however it ends. `meanwhile` is called with its pid as soon as it has started."""
        said = Path(output).with_name(f"{Path(output).name}.said")
        said.unlink(missing_ok=True)
        request = {
            "argv": [*map(str, argv), "--framework", self.framework, "--output", str(output)],
            "stdout": str(said),
            "stderr": str(said),
        }
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        pid = int(self._server.stdout.readline())
        try:
            if meanwhile is not None:
                meanwhile(pid)
        finally:
            status = os.waitstatus_to_exitcode(int(self._server.stdout.readline()))
        return Ended(status, said.read_text() if said.exists() else "")

    def close(self):
        self._server.stdin.close()
        self._server.wait(60)


def start(*argv, output, **options):
    """A run in an interpreter of its own, which goes on while the test does."""
    return subprocess.Popen(
        [sys.executable, str(JOB), *map(str, argv), "--output", str(output)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(),
        text=True,
        **options,
    )


def run_new(*argv, output):
    """A run in an interpreter of its own."""
    child = start(*argv, output=output)
    said, _ = child.communicate(timeout=600)
    return Ended(child.returncode, said)


def result(output):
    """What job.py wrote at its end, without what differs between equal runs."""
    found = json.loads((Path(output) / "result.json").read_text())
    del found["run_id"], found["counts"]
    return found


def differences(left, right, where=""):
    """Where two JSON values differ, for people to read."""
    if isinstance(left, dict) and isinstance(right, dict):
        found = []
        for key in sorted(left.keys() | right.keys()):
            if key not in left or key not in right:
                found.append(f"{where}/{key}: only in {'right' if key not in left else 'left'}")
            else:
                found += differences(left[key], right[key], f"{where}/{key}")
        return found
    if isinstance(left, list) and isinstance(right, list):
        longer = [f"{where}: {len(left)} and {len(right)} entries"] * (len(left) != len(right))
        return longer + [d for i, (a, b) in enumerate(zip(left, right)) for d in differences(a, b, f"{where}[{i}]")]
    return [] if repr(left) == repr(right) else [f"{where}: {left} and {right}"]


def log_lines(output):
    """log.jsonl, as far as the run that wrote the result wrote it, without times."""
    run_id = json.loads((Path(output) / "result.json").read_text())["run_id"]
    lines = [json.loads(line) for line in (Path(output) / "log.jsonl").read_text().splitlines()]
    return [without_times(line) | {"run": None} for line in lines if line["run"] == run_id]


def checkpoint_names(output):
    return sorted(path.name for path in Path(output).glob("*checkpoint-*"))


def damage_of_latest(output):
    """What is wrong with the checkpoint that a resume would take; [] when nothing is, or when there is none yet."""
    if not Path(output).is_dir():
        return []
    latest = get_last_checkpoint(output)
    return [] if latest is None else store.problems(Path(latest))


def signal_at(step, *signals, output, group=False, pause=0.05):
    """A `meanwhile` for Forks.run: wait until the child (which needs --slow) is at a step, then send it signals."""

    def send(pid):
        said = Path(output).with_name(f"{Path(output).name}.said")
        deadline = time.monotonic() + 120
        while not said.exists() or f"step {step}\n" not in said.read_text():
            assert time.monotonic() < deadline, f"the child never came to step {step}"
            time.sleep(0.01)
        for number in signals:
            (os.killpg if group else os.kill)(pid, number)
            time.sleep(pause)

    return send
