"""Runs of several processes that are forked from one which has imported all: soon started, so many can be killed.

No launcher is there; its store is kept by a process of its own, as torchrun keeps it.
"""

import contextlib
import os
import re
import signal
import sys
import time
import traceback
from pathlib import Path

from tests.distributed.launch import free_port


class Forked:
    """running.py in forked processes, with the questions of `watching.Watched`."""

    def __init__(self, processes, output, *argv):
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        self._log = Path(f"{output}.said")
        self._log.unlink(missing_ok=True)
        port, self._argv = free_port(), ["--output", str(output), *map(str, argv)]
        self._store = self._fork(lambda: keep_store(port))
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        common |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
        self.pids = []
        for rank in map(str, range(processes)):
            os.environ.update(common, RANK=rank, LOCAL_RANK=rank)
            self.pids.append(self._fork(self._work))
        for name in (*common, "RANK", "LOCAL_RANK"):
            del os.environ[name]
        self.statuses = {}

    def _fork(self, work):
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            status = work() or 0
        except SystemExit as left:
            status = left.code if isinstance(left.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _work(self):
        from oneloop.backends.torch import parallel
        from tests.distributed import running

        try:
            running.main(self._argv)
        finally:
            parallel.destroy_process_group()

    @property
    def said(self):
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def poll(self):
        """Whether all processes have ended."""
        for pid in self.pids:
            if pid not in self.statuses:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    self.statuses[pid] = os.waitstatus_to_exitcode(status)
        return len(self.statuses) == len(self.pids)

    def wait_for(self, pattern, seconds=120):
        deadline = time.monotonic() + seconds
        while (found := re.search(pattern, self.said)) is None:
            assert not self.poll() and time.monotonic() < deadline, f"never said {pattern!r}:\n{self.said}"
            time.sleep(0.01)
        return found

    def end(self, seconds=120):
        """0 when all ended well; processes that do not leave within the time are an error."""
        deadline = time.monotonic() + seconds
        while not self.poll():
            assert time.monotonic() < deadline, f"not all have left:\n{self.said}"
            time.sleep(0.01)
        return max(map(abs, self.statuses.values()))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in [pid for pid in self.pids if pid not in self.statuses] + [self._store]:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def keep_store(port):
    from datetime import timedelta

    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    while store and os.getppid() != 1:
        time.sleep(0.2)
