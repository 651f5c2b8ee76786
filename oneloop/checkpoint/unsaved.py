"""The exit status of a process that has trained a model which is on no disk: its last save has failed, and nothing has
saved the model since."""

import atexit
import contextlib
import logging
import multiprocessing
import os
import sys
from typing import Any, NoReturn

STATUS = 74  # EX_IOERR

_trainers: set[int] = set()
_owner = os.getpid()
_status_of_script = 0  # that it passed to sys.exit


def add(trainer: Any) -> None:
    if sys.exit is not _exit_with:
        sys.exit = _exit_with
    _trainers.add(id(trainer))


def _exit_with(status: Any = None, /) -> NoReturn:
    """sys.exit, which also notes the status: Python does not tell it to what runs at exit."""
    global _status_of_script
    # What is neither None nor a number is printed, and the status is 1. Of a number the system keeps eight bits.
    _status_of_script = 0 if status is None else status & 0xFF if isinstance(status, int) else 1
    raise SystemExit(status)


def remove(trainer: Any) -> None:
    _trainers.discard(id(trainer))


def forget() -> None:
    """The models that are not saved are of no interest."""
    _trainers.clear()


@atexit.register  # when this is imported, so that it is called after what scripts register
def _exit() -> None:
    """End with the status, unless an exception or a status of its own has ended the script already. Python has no other
    way to set a status when it exits, so what follows is done here."""
    if not _trainers or os.getpid() != _owner or getattr(sys, "last_value", None) is not None:
        return
    for child in multiprocessing.active_children():
        if child.daemon:
            child.terminate()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(_status_of_script or STATUS)
