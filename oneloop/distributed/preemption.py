"""Signals that ask a run to leave: it finishes its step, saves, and goes with an exit status that says so."""

import logging
import os
import signal
import threading
from multiprocessing import current_process, parent_process
from types import FrameType
from typing import Any, NoReturn

from ..errors import ArgumentError, OneloopError

logger = logging.getLogger(__name__)

EXIT_STATUS = 75  # EX_TEMPFAIL of sysexits.h: not done, but trying again will go on from here


class Preempted(OneloopError, SystemExit):
    """Raised out of train() after the save that a signal asked for; a script that lets it pass exits with 75."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = EXIT_STATUS
        self.message = message

    def __str__(self) -> str:
        return self.message


def parse(names: list[str]) -> list[signal.Signals]:
    """Signals by name, with or without SIG."""
    found = []
    for name in names:
        full = name.upper() if name.upper().startswith("SIG") else f"SIG{name.upper()}"
        if not hasattr(signal, full) or full in ("SIGKILL", "SIGSTOP"):
            raise ArgumentError(
                f"preemption_signals: {name!r} is not a signal that a program can catch; use names such as SIGTERM, "
                "SIGINT or SIGUSR1"
            )
        found.append(getattr(signal, full))
    return found


class Watch:
    """Catches the signals while training. The first is remembered; a second of the same kind works as it always did."""

    def __init__(self, names: list[str]) -> None:
        self.signals = parse(names)
        self.received: signal.Signals | None = None
        self.with_others = False  # several processes leave together
        self._before: dict[signal.Signals, Any] = {}

    def agree_on(self, number: int) -> None:
        """All processes leave on this signal, whichever of them has received it."""
        self.received = signal.Signals(number)

    def heard(self) -> list[bool]:
        """For each signal that is watched whether it was received."""
        return [self.received == number for number in self.signals]

    def __enter__(self) -> "Watch":
        if threading.current_thread() is threading.main_thread():
            for number in self.signals:
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *_: Any) -> None:
        if not self.with_others:
            self._restore()

    def leave_with_others(self) -> None:
        """All is written. Launchers end the rest as soon as one process has left: this one leaves by itself."""
        self.with_others = True
        self._restore()
        if threading.current_thread() is threading.main_thread():
            # Not a function of ours: the end of the interpreter would put the default back, which kills.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before = {}

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)  # all processes leave on the one they have agreed on
        self._restore()
        # Not through logging: the signal may have come while this very thread was writing a log line.
        name = signal.Signals(number).name
        text = f"oneloop: {name}: the run finishes this step, saves and leaves; again to leave at once.\n"
        os.write(2, text.encode())

    def leave(self, saved: str | None) -> NoReturn:
        """Leave train(), after the save."""
        assert self.received is not None
        text = f"the run left on {self.received.name}. " + (
            f"It was saved as {saved}; resume_from_checkpoint=True goes on from there."
            if saved
            else "This step was not saved: save_strategy is 'no', or the messages above say why."
        )
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt(text)
        logger.warning("%s Exit status %d.", text[0].upper() + text[1:], EXIT_STATUS)  # SystemExit says nothing itself
        raise Preempted(text)


def main_process_lives(parent: int | None) -> bool:
    """In a worker: whether the main process, of this number, is still there."""
    main = parent_process()
    if main is not None and getattr(current_process(), "_start_method", None) == "forkserver":
        return main.is_alive()  # the system's parent of this process is the server that forks
    return os.getppid() == parent


def leave_to_main_process(worker: int = 0) -> None:
    """In a loader's worker: a signal to all processes of a job must not take the data from the step under way.

    The main process ends its workers, if need be by SIGTERM; one that comes from elsewhere is passed over. A worker
    whose main process has been killed ends by itself, also one that had not yet begun to look for it.
    """
    main = parent_process()
    parent = os.getppid() if main is None else main.pid
    for number in signal.valid_signals() - {signal.SIGTERM}:
        watched = isinstance(getattr(signal.getsignal(number), "__self__", None), Watch)
        if watched or number == signal.SIGINT:
            signal.signal(number, signal.SIG_IGN)
    if not hasattr(signal, "sigtimedwait"):
        return

    def wait_for_parent() -> None:
        while main_process_lives(parent):
            received = signal.sigtimedwait([signal.SIGTERM], 5.0)
            if received is not None and received.si_pid == parent:
                break
        os._exit(0)

    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    threading.Thread(target=wait_for_parent, daemon=True).start()
