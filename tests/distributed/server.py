"""Runs of several processes that are forked from one which has imported all: they start in a tenth of the time.

For tests in which the launcher is not the point: `launch.run` asks the server, a child of the test process, for them.
As a program, this file is that server.
"""

import atexit
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

LONGEST = 600  # seconds that a run may take


class Server:
    """The test's side: one run at a time that is waited for, and any number that go on while the test does."""

    def __init__(self, env):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.distributed.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            cwd=env["PYTHONPATH"],
            text=True,
        )
        atexit.register(self.close)

    def run(self, processes, script, argv, log, **options):
        """The exit status of each process. Options: `patient`, see wait_for_all."""
        return self._ask(processes, script, argv, log, **options)

    def start(self, processes, script, argv, log, ended):
        """The process group of a run. Its exit statuses are written to the file `ended`."""
        return self._ask(processes, script, argv, log, ended=str(ended), patient=True)

    def _ask(self, processes, script, argv, log, **options):
        request = {"processes": processes, "script": str(script), "argv": list(map(str, argv)), "log": str(log)}
        self._process.stdin.write(json.dumps(request | options) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self):
        self._process.stdin.close()
        self._process.wait(60)


# -- the server's side


def serve():
    from tests.distributed.kills import load

    load()
    gc.collect()
    gc.freeze()  # a collection in a child would copy the pages of all that was imported
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # nothing that a library prints is taken for an answer
    started = []
    for line in sys.stdin:
        request = json.loads(line)
        if "ended" in request:
            started.append(fork(request["log"], {}, watch_over, request))
            answers.write(json.dumps(started[-1]) + "\n")
        else:
            answers.write(json.dumps(statuses_of(**request)) + "\n")
    for pid in started:
        os.waitpid(pid, 0)


def watch_over(request):
    """A run in a process group of its own."""
    os.setpgid(0, 0)
    ended = Path(request.pop("ended"))
    partial = ended.with_suffix(".partial")
    partial.write_text(json.dumps(statuses_of(**request)))
    partial.replace(ended)
    return 0


def statuses_of(processes, script, argv, log, patient=False):
    """Fork the processes of a run, with the variables that torchrun would give them, and wait for them."""
    from tests.distributed.forking import keep_store
    from tests.distributed.launch import free_port

    port, store = free_port(), None
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    common |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    if processes > 1:
        store = fork(log, {}, keep_store, port)
    else:
        common = {}
    ranks = []
    for rank in range(processes):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if common else {}
        ranks.append(fork(log, common | own, as_program, script, argv))
    try:
        return wait_for_all(ranks, patient)
    finally:
        if store is not None:
            os.kill(store, signal.SIGKILL)
            os.waitpid(store, 0)


def wait_for_all(pids, patient):
    """Their exit statuses. Like torchrun, end the others once one has failed; `patient`: wait until they leave."""
    statuses, deadline = {}, time.monotonic() + LONGEST
    while len(statuses) < len(pids):
        for pid in set(pids) - set(statuses):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                statuses[pid] = os.waitstatus_to_exitcode(status)
        if (any(statuses.values()) and not patient) or time.monotonic() > deadline:
            for pid in set(pids) - set(statuses):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return [statuses[pid] for pid in pids]


def fork(log, variables, work, *given):
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.environ.update(variables)
        status = work(*given)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def as_program(script, argv):
    """Run a script as the interpreter would; its exit status."""
    sys.argv, sys.path[0], status = [script, *argv], str(Path(script).parent), 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else int(left.code is not None)
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
    except BaseException as error:
        sys.last_value = error  # as in an interpreter that ends with it
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


if __name__ == "__main__":
    serve()
