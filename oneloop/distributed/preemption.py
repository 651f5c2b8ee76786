"""Preemption signals: the run finishes its step, saves a checkpoint, and exits with a distinct status."""

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing import current_process, parent_process
from types import FrameType
from typing import Any, NoReturn

from ..errors import ArgumentError, OneloopError

logger = logging.getLogger(__name__)

NOTHING_SAVED = "No step was completed, so there is nothing to save: start again."
EXIT_STATUS = 75  # EX_TEMPFAIL of sysexits.h: not finished; a restart can resume


class Preempted(OneloopError, SystemExit):
    """Raised from train() after saving on a preemption signal; a script that does not catch it exits with 75."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = EXIT_STATUS
        self.message = message

    def __str__(self) -> str:
        return self.message


def parse(names: list[str]) -> list[signal.Signals]:
    """The signals by name, with or without the prefix SIG."""
    found = []
    for name in names:
        full = name.upper() if name.upper().startswith("SIG") else f"SIG{name.upper()}"
        if not hasattr(signal, full) or full in ("SIGKILL", "SIGSTOP"):
            raise ArgumentError(
                f"Invalid preemption_signals={name!r}: not a signal that a process can handle; use names such as "
                "SIGTERM, SIGINT or SIGUSR1"
            )
        found.append(getattr(signal, full))
    return found


class SignalHandler:
    """Handles the signals during training. The first one is recorded; a second one has its usual effect. Before
    training starts (`is_starting`) the first one exits: there is no step to finish."""

    is_starting = False

    def __init__(self, names: list[str]) -> None:
        self.signals = parse(names)
        self.received: signal.Signals | None = None
        self.with_peers = False  # all processes of the run stop together
        self._before: dict[signal.Signals, Any] = {}
        self._is_entered = False
        self._own: Callable[[], Any] | None = None  # the script's handler of the signal that was received

    def agree_on(self, number: int) -> None:
        """All processes exit on this signal, whichever of them received it."""
        self.received = signal.Signals(number)

    def received_flags(self) -> list[bool]:
        """For each watched signal, whether it was received."""
        return [self.received == number for number in self.signals]

    def __enter__(self) -> "SignalHandler":
        if self._is_entered:  # when train() began
            return self
        self._is_entered = True
        if threading.current_thread() is threading.main_thread():
            for number in self.signals:
                self._before[number] = signal.signal(number, self._remember)
        elif self.signals:
            logger.warning(
                "train() runs in a thread, where Python receives no signals: %s will not save a checkpoint. Call "
                "train() in the main thread, or set preemption_signals=[].",
                ", ".join(number.name for number in self.signals),
            )
        return self

    def __exit__(self, *_: Any) -> None:
        if not self.with_peers:
            self._restore()

    def exit_with_peers(self) -> None:
        """Called after saving. Launchers terminate the others once one process exits; this one exits by itself."""
        self.with_peers = True
        self._restore()
        if threading.current_thread() is threading.main_thread():
            # SIG_IGN instead of a Python handler: interpreter shutdown would restore the default, which kills.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before = {}

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)  # all processes leave on the one they have agreed on
        handler = self._before.get(signal.Signals(number))
        if callable(handler) and handler is not signal.default_int_handler:
            self._own = partial(handler, number, frame)
        self._restore()
        # Not through logging: the signal may have interrupted this thread while it was writing a log line.
        what = "finishing this step, then saving and exiting. Repeat to exit now."
        text = f"oneloop: {signal.Signals(number).name}: {NOTHING_SAVED if self.is_starting else what}\n"
        # After Ctrl-C in `python train.py 2>&1 | tee log`, tee is dead too. A process that was started without a stderr
        # has None, and may have given its number to another file.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.write(sys.__stderr__.fileno(), text.encode())  # type: ignore[union-attr]
        if self.is_starting:
            self._raise(f"training interrupted ({self.received.name}). {NOTHING_SAVED}")

    def exit(self, outcome: str) -> NoReturn:
        """Leave train() after saving; `outcome` says what was saved."""
        assert self.received is not None
        text = f"training interrupted ({self.received.name}). {outcome}"
        if self.received != signal.SIGINT:  # SystemExit prints nothing itself
            logger.warning("%s Exit status %d.", text[0].upper() + text[1:], EXIT_STATUS)
        self._raise(text)

    def _raise(self, text: str) -> NoReturn:
        """A handler that the script had installed is called first; it may exit itself."""
        if self._own is not None:
            self._own()
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt(text)
        raise Preempted(text)


def is_main_process_alive(parent: int | None) -> bool:
    """In a worker: whether the main process, with this PID, is alive."""
    main = parent_process()
    if main is not None and getattr(current_process(), "_start_method", None) == "forkserver":
        return main.is_alive()  # the OS parent of this process is the fork server
    return os.getppid() == parent


def ignore_job_signals(worker: int = 0) -> None:
    """In a DataLoader worker: ignore signals sent to the whole job, so that the current step keeps its data.

    The main process stops its workers, with SIGTERM if needed; a SIGTERM from elsewhere is ignored. A worker whose main
    process was killed exits by itself, even if it was killed before the worker started to watch it.
    """
    main = parent_process()
    parent = os.getppid() if main is None else main.pid
    for number in signal.valid_signals() - {signal.SIGTERM}:
        watched = isinstance(getattr(signal.getsignal(number), "__self__", None), SignalHandler)
        if watched or number == signal.SIGINT:
            signal.signal(number, signal.SIG_IGN)
    if not hasattr(signal, "sigtimedwait"):
        return

    def wait_for_parent() -> None:
        while is_main_process_alive(parent):
            received = signal.sigtimedwait([signal.SIGTERM], 5.0)
            if received is not None and received.si_pid == parent:
                break
        os._exit(0)

    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    threading.Thread(target=wait_for_parent, daemon=True).start()
