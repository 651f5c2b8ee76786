"""Saves in a background thread: one at a time, and every error is reported."""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ..errors import CheckpointError, NonFiniteError

logger = logging.getLogger(__name__)


def stepped_back(run: Callable[..., None], *work: Any) -> None:
    """Run in a thread with a lower priority than training. Only on Linux, where niceness is per thread; elsewhere it is
    per process and stays unchanged."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + 10)
    run(*work)


class Saver:
    """Runs a job in a thread. A second job waits for the first and logs it; the error of a job is raised at the next
    use."""

    def __init__(self, record: Callable[..., None] = lambda event, **facts: None) -> None:
        self._record = record  # adds an event to the record of the run
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._finished: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self.waits = 0  # saves that had to wait for the previous one
        self.failures = 0  # saves that failed because of the disk
        self._message: str | None = None  # of the last one that failed because of the model's values

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def submit(
        self,
        job: Callable[[], None],
        then: Callable[[], None],
        otherwise: Callable[[], None],
        background: bool,
        what: str,
    ) -> None:
        """Run job; the main thread calls `then` after it has succeeded, `otherwise` if the disk failed or the model is
        not finite."""
        self.wait(what)
        if not background:
            self._run(job, then, otherwise, what)
            self._raise()
            return
        work = (self._run, job, then, otherwise, what)
        self._thread = threading.Thread(target=stepped_back, args=work, name="oneloop-save", daemon=False)
        self._thread.start()

    def _run(self, job: Callable[[], None], then: Callable[[], None], otherwise: Callable[[], None], what: str) -> None:
        try:
            job()
        # OSErrors of any number: hours of training must not end with them.
        except (OSError, NonFiniteError) as error:
            self.refused(error, what)
            with self._lock:
                self._finished.append(otherwise)
        except BaseException as error:
            self._error = error
        else:
            with self._lock:
                self._finished.append(then)

    def refused(self, error: OSError | NonFiniteError, what: str) -> None:
        """The disk failed, or the state cannot be saved: the run logs an error and continues."""
        if not isinstance(error, OSError):
            if isinstance(error, NonFiniteError):
                self._message = f"{os.path.basename(what)}: {error}"
            self._record("save_failed", what=os.path.basename(what), error=str(error))
            logger.error("%s was NOT saved: %s. The previous checkpoint is unaffected.", what, error)
            return
        self.failures += 1
        self._record("save_failed", what=os.path.basename(what), error=error.strerror or type(error).__name__)
        logger.error(
            "%s was NOT saved: %s. Training continues, and the previous checkpoint is unaffected. Free some space or "
            "repair the disk; the next save tries again.",
            what,
            error,
        )

    def take_message(self) -> str | None:
        """What was wrong with the model's values in the save that has just failed, if that was the reason."""
        message, self._message = self._message, None
        return message

    def wait(self, what: str | None = None) -> None:
        """Block until nothing is being written. If another save has to wait, this is logged."""
        if self.busy:
            started = time.perf_counter()
            assert self._thread is not None
            self._thread.join()
            seconds = time.perf_counter() - started
            if what is not None and seconds >= 0.05:  # not worth a message below that
                self.waits += 1
                self._record("save_waited", what=os.path.basename(what), seconds=round(seconds, 3))
                logger.log(
                    logging.WARNING if self.waits == 1 else logging.INFO,  # one warning is enough
                    "%s waited %.1f s for the previous save. Saves are more frequent than the disk can handle: "
                    "increase save_steps so that training does not have to wait.",
                    what,
                    seconds,
                )
        self._raise()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise CheckpointError(f"cannot write a checkpoint: {error}") from error

    @property
    def has_news(self) -> bool:
        """Whether a save has succeeded or failed that the main thread has not handled yet."""
        return bool(self._finished) or self._error is not None

    def settle(self, tell: Callable[[], None]) -> None:
        """When the run ends, wait for a save in progress; its error is logged, so that it does not hide another."""
        try:
            self.wait()
            tell()
        except Exception as error:
            logger.error("%s", error)

    def poll(self) -> list[Callable[[], None]]:
        """What the main thread must do for saves that have ended since the last call."""
        self._raise()
        if not self._finished:
            return []
        with self._lock:
            finished, self._finished = self._finished, []
        return finished
