"""The exit status of a process that has trained a model which is on no disk: its last save has failed, and nothing has
saved the model since."""

import atexit
import contextlib
import logging
import multiprocessing
import os
import sys
from typing import Any

STATUS = 74  # EX_IOERR

_trainers: set[int] = set()
_owner = os.getpid()


def add(trainer: Any) -> None:
    _trainers.add(id(trainer))


def remove(trainer: Any) -> None:
    _trainers.discard(id(trainer))


def forget() -> None:
    """The models that are not saved are of no interest."""
    _trainers.clear()


@atexit.register  # when this is imported, so that it is called after what scripts register
def _exit() -> None:
    """End with the status, unless an exception has ended the script already. Python has no other way to set a status
    when it exits, so what follows is done here."""
    if not _trainers or os.getpid() != _owner or getattr(sys, "last_value", None) is not None:
        return
    for child in multiprocessing.active_children():
        if child.daemon:
            child.terminate()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(STATUS)
