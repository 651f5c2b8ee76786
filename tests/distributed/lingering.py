"""running.py, in which the first save takes a while: the main process says so, and goes on once FILE.go is there.

    lingering.py --output DIR [options of running.py]

FILE is DIR.
"""

import os
import sys
import time
from pathlib import Path

from tests.distributed import running

PATIENCE = 60.0  # seconds


def linger(go):
    sync = os.fsync

    def fsync(descriptor):
        if not go.exists() and "checkpoint-" in os.readlink(f"/proc/self/fd/{descriptor}"):
            print("rank 0 saves\n", end="", flush=True)
            deadline = time.monotonic() + PATIENCE
            while not go.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
        sync(descriptor)

    os.fsync = fsync


if __name__ == "__main__":
    argv = sys.argv[1:]
    linger(Path(f"{argv[argv.index('--output') + 1]}.go"))
    running.main(argv)
