"""A run of several processes under the eyes of a test: it waits for steps, sends signals, and reads what was said."""

import contextlib
import json
import os
import re
import signal
import threading
import time
from pathlib import Path

from tests.distributed.launch import server, start

RUNNING = Path(__file__).with_name("running.py")


class Watched:
    """running.py in processes that are forked from the server. No launcher ends the rest when one has failed.

    `end` returns the exit status of each.
    """

    def __init__(self, processes, output, *argv, script=RUNNING):
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        self._log, self._ended = Path(f"{output}.said"), Path(f"{output}.ended")
        argv = ("--output", output, *argv)
        self._group = server().start(processes, script, argv, self._log, self._ended)

    @property
    def said(self):
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def is_over(self):
        return self._ended.exists()

    def wait_for(self, pattern, seconds=120):
        """The match, as soon as it was said."""
        deadline = time.monotonic() + seconds
        while True:
            is_over = self.is_over()
            if found := re.search(pattern, self.said):
                return found
            assert not is_over and time.monotonic() < deadline, f"never said {pattern!r}:\n{self.said}"
            time.sleep(0.02)

    def pid(self, rank):
        return int(self.wait_for(rf"rank {rank} pid (\d+)").group(1))

    def signal(self, number, rank, step):
        """Send a signal to a process once it has done a step."""
        self.wait_for(rf"rank {rank} step {step}\n")
        os.kill(self.pid(rank), number)

    def end(self, seconds=120):
        deadline = time.monotonic() + seconds
        while not self.is_over():
            assert time.monotonic() < deadline, f"not all have left:\n{self.said}"
            time.sleep(0.02)
        return json.loads(self._ended.read_text())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self.is_over():
            os.killpg(self._group, signal.SIGKILL)


class Launched(Watched):
    """The same under torchrun, in a session of its own, so that nothing of it can be left behind.

    `end` returns torchrun's exit status.
    """

    said = ""

    def __init__(self, processes, output, *argv, script=RUNNING):
        self.child = start(processes, "--output", output, *argv, script=script, start_new_session=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.child.stdout:
            self.said += line

    def is_over(self):
        return self.child.poll() is not None

    def end(self, seconds=120):
        status = self.child.wait(seconds)
        self._reader.join(10)
        return status

    def __exit__(self, *_):
        for rank in re.findall(r"rank \d+ pid (\d+)", self.said):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(rank), signal.SIGKILL)
        if self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait(10)
