"""Saves are written in a background thread, one at a time, and every error is reported.

What follows a save, when it has succeeded or failed, runs in the main thread and at the same step in all processes: the
main process broadcasts the results.
"""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ..distributed.collectives import ProcessGroup
from ..errors import CheckpointError, NonFiniteError

logger = logging.getLogger(__name__)

Ends = tuple[Callable[[], None], Callable[[], None]]  # what to do when a save has succeeded, and when it has failed
Result = bool | str  # whether a save has succeeded; a message if the model's values were the reason of a failure


def run_at_low_priority(run: Callable[..., None], *work: Any) -> None:
    """Run in a thread with a lower priority than training. Only on Linux, where niceness is per thread; elsewhere it is
    per process and stays unchanged."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + 10)
    run(*work)


class Waiting:
    """What the process that commits learns while it waits for the others, apart from their notes."""

    def __init__(self) -> None:
        self.is_stopped = threading.Event()  # the run is ending with an error
        self.failed = threading.Event()  # a process could not write its files, and perhaps no note either

    def share_failure(self, processes: ProcessGroup) -> None:
        """Let the process that commits know that another one has failed. A collective."""
        if any(failed for (failed,) in processes.all_gather([self.failed.is_set()])) and processes.is_main:
            self.failed.set()
        elif not processes.is_main:
            self.failed.clear()


class SaveWriter:
    """Created for each run. A second save waits for the first and logs it; the error of a save that has failed for
    another reason than the disk or the model's values is raised at the next use.

    `writes` tells whether this process writes whole checkpoints, `is_sharded` whether all of them write their shards,
    `record` adds an event to the record of the run, and `consequence` says what follows when a save has failed.
    """

    def __init__(
        self,
        processes: ProcessGroup,
        writes: bool,
        is_sharded: bool,
        record: Callable[..., None] = lambda event, **facts: None,
        consequence: Callable[[str], str] = lambda name: "Training continues.",
    ) -> None:
        self.processes = processes
        self.waiting = Waiting()
        self.waits = 0  # saves that had to wait for the previous one
        self.failures = 0  # saves that failed because of the disk
        self._writes, self._is_sharded, self._record = writes, is_sharded, record
        self._consequence = consequence
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._finished: list[tuple[Result, bool]] = []  # not yet seen by the main thread; whether it is of a shard
        self._awaited: list[Ends] = []  # of each save without a result
        self._results: list[Result] = []  # that the main process has not broadcast to the others
        self._is_announced = False  # a save has ended in one process, and the result is about to be broadcast

    # -- what is known of them

    @property
    def is_busy(self) -> bool:
        """Whether a save is being written."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def has_finished_save(self) -> bool:
        """Whether a save of this process has succeeded or failed that the main thread has not handled yet."""
        return bool(self._finished) or self._error is not None

    def expect_result(self) -> None:
        """Called when another process reports that a save has ended."""
        self._is_announced = True

    @property
    def can_end(self) -> bool:
        """Whether a save has ended, and all processes know that."""
        return self.has_finished_save if self.processes.size == 1 else self._is_announced

    # -- a new one

    def submit(self, job: Callable[[], None], ends: Ends, name: str, background: bool, is_shard: bool = False) -> None:
        """Write a checkpoint; its result is kept for end(). `is_shard`: that of a process that does not commit, where
        the main process has the result."""
        self._awaited.append(ends)
        self._join(name)
        if background:
            work = (self._write, job, name, is_shard)
            self._thread = threading.Thread(target=run_at_low_priority, args=work, name="oneloop-save", daemon=False)
            self._thread.start()
        else:
            self._write(job, name, is_shard)
            self._raise()

    def expect(self, ends: Ends) -> None:
        """Another process writes the save."""
        self._awaited.append(ends)

    def await_shards(self) -> None:
        """Called by the process that commits, before it waits for the shards of the others."""
        self.waiting = Waiting()

    def stop_waiting(self) -> None:
        """The run ends with an error: nobody writes the shards that the process that commits waits for."""
        self.waiting.is_stopped.set()

    def refuse(self, error: OSError | NonFiniteError, target: str) -> None:
        """The disk has failed before the save could be written, or the model is not finite."""
        result = self._report(error, target)
        self.expect((_nothing, _nothing))
        self._results.append(result)

    def _write(self, job: Callable[[], None], name: str, is_shard: bool) -> None:
        result: Result = True
        try:
            job()
        # OSErrors of any number: hours of training must not end with them.
        except (OSError, NonFiniteError) as error:
            result = self._report(error, name)
        except BaseException as error:
            self._error = error
            return
        with self._lock:
            self._finished.append((result, is_shard))

    def _report(self, error: OSError | NonFiniteError, what: str) -> Result:
        """The disk failed, or the state cannot be saved: the run logs an error and continues."""
        name = os.path.basename(what)
        if not isinstance(error, OSError):
            self._record("save_failed", what=name, error=str(error))
            logger.error("%s was NOT saved: %s. %s", what, error, self._consequence(name))
            return f"{name}: {error}"
        self.failures += 1
        self._record("save_failed", what=name, error=error.strerror or type(error).__name__)
        logger.error("%s was NOT saved: %s. %s", what, error, self._consequence(name))
        return False

    # -- their ends, in the main thread

    def end(self) -> list[str]:
        """Do what follows each save that has ended since the last call; returns what was wrong with the model's values
        in those that failed for it. A collective on several processes."""
        self._collect()
        own, self._results, self._is_announced = self._results, [], False
        # Broadcast before on_save is called anywhere: a callback may wait for all processes, as ray.train.report does.
        results = self.processes.broadcast_object(own) if self.processes.size > 1 else own
        for result in own if self._writes else results:
            succeeded, failed = self._awaited.pop(0)
            (succeeded if result is True else failed)()
        return [each for each in results if isinstance(each, str)]

    def _collect(self) -> None:
        """Collect the results of the saves that this process has written."""
        self._raise()
        with self._lock:
            finished, self._finished = self._finished, []
        for result, is_shard in finished:
            if not is_shard:
                self._results.append(result)
            elif result is not True:
                self.waiting.failed.set()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise CheckpointError(f"cannot write a checkpoint: {error}") from error

    # -- waiting for them

    def wait(self, name: str | None = None) -> None:
        """Block until nothing is being written. If another save has to wait, its `name` is logged. If all processes
        write, the others wait first: the main process would wait for what a failed one has not written. A collective
        then."""
        if self.processes.size > 1 and self._is_sharded:
            if not self.processes.is_main:
                self._join(name)
                self._collect()
            self.waiting.share_failure(self.processes)
        self._join(name)

    def _join(self, name: str | None = None) -> None:
        if self._thread is not None and self.is_busy:
            started = time.perf_counter()
            self._thread.join()
            seconds = time.perf_counter() - started
            if name is not None and seconds >= 0.05:  # not worth a message below that
                self._report_wait(name, seconds)
        self._raise()

    def _report_wait(self, name: str, seconds: float) -> None:
        self.waits += 1
        self._record("save_waited", what=os.path.basename(name), seconds=round(seconds, 3))
        logger.log(
            logging.WARNING if self.waits == 1 else logging.INFO,  # one warning is enough
            "%s waited %.1f s for the previous save. Saves are more frequent than the disk can handle: "
            "increase save_steps so that training does not have to wait.",
            name,
            seconds,
        )

    def drain(self) -> None:
        """When the run ends, wait for a save in progress, without communication. Its error is logged, so that it does
        not hide another."""
        try:
            self._join()
            self._collect()
            own, self._results = self._results, []
            for result in own if self._writes else ():
                succeeded, failed = self._awaited.pop(0)
                (succeeded if result is True else failed)()
        except Exception as error:
            logger.error("%s", error)


def _nothing() -> None:
    pass
