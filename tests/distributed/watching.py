"""A run of several processes under the eyes of a test: it waits for steps, sends signals, and reads what was said."""

import contextlib
import os
import re
import signal
import threading
import time
from pathlib import Path

from tests.distributed.launch import start

RUNNING = Path(__file__).with_name("running.py")


class Watched:
    """running.py under torchrun, in a session of its own, so that nothing of it can be left behind."""

    def __init__(self, processes, output, *argv, options=(), script=RUNNING):
        self.child = start(processes, "--output", output, *argv, script=script, options=options, start_new_session=True)
        self.said = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.child.stdout:
            self.said += line

    def wait_for(self, pattern, seconds=120):
        """The match, as soon as it was said."""
        deadline = time.monotonic() + seconds
        while (found := re.search(pattern, self.said)) is None:
            assert self.child.poll() is None and time.monotonic() < deadline, f"never said {pattern!r}:\n{self.said}"
            time.sleep(0.02)
        return found

    def pid(self, rank):
        return int(self.wait_for(rf"rank {rank} pid (\d+)").group(1))

    def signal(self, number, rank, step):
        """Send a signal to a process once it has done a step."""
        self.wait_for(rf"rank {rank} step {step}\n")
        os.kill(self.pid(rank), number)

    def end(self, seconds=120):
        """Its exit status, once all of it has ended."""
        status = self.child.wait(seconds)
        self._reader.join(10)
        return status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in re.findall(r"rank \d+ pid (\d+)", self.said):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(rank), signal.SIGKILL)
        if self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait(10)
