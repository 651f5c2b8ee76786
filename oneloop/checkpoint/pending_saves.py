"""Saves that have no result yet: the thread that writes them, and what follows when they have succeeded or failed.

What follows runs in the main thread, at the same step in all processes: the main process broadcasts the results.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ..errors import NonFiniteError
from . import sharded, store
from .async_writer import Saver

if TYPE_CHECKING:
    from ..trainer.run import Run

Ends = tuple[Callable[[], None], Callable[[], None]]  # what to do when a save has succeeded, and when it has failed


class PendingSaves:
    """Created for each run."""

    def __init__(self, run: "Run") -> None:
        self.core = run.core
        self.waiting = sharded.Waiting()
        self._writer = Saver(run.events.add)
        self._awaited: list[Ends] = []  # of each save without a result
        # Results that the main process has not broadcast to the others; a message if the model's values were the reason
        # of a failure.
        self._outcomes: list[bool | str] = []
        self._is_told = False  # a save has ended in one process, and the result is about to be broadcast

    # -- what is known of them

    @property
    def has_news(self) -> bool:
        """Whether a save of this process has succeeded or failed."""
        return self._writer.has_news

    @property
    def is_busy(self) -> bool:
        """Whether a save is being written."""
        return self._writer.busy

    @property
    def waits(self) -> int:
        """Saves that had to wait for the previous one."""
        return self._writer.waits

    @property
    def failures(self) -> int:
        """Saves that failed because of the disk."""
        return self._writer.failures

    def expect_news(self) -> None:
        """Called when another process reports that a save has ended."""
        self._is_told = True

    @property
    def can_end(self) -> bool:
        """Whether a save has ended, and all processes know that."""
        return self.has_news if self.core.processes.size == 1 else self._is_told

    # -- a new one

    def submit(self, job: Callable[[], None], ends: Ends, step: int, background: bool) -> None:
        """Pass a save to the writer; its result is kept for end()."""

        def ended(well: bool) -> None:
            self._outcomes.append(well or self._writer.take_message() or False)

        self.expect(ends)
        self._writer.submit(job, partial(ended, True), partial(ended, False), background, _name(step))

    def submit_part(self, job: Callable[[], None], ends: Ends, step: int) -> None:
        """Pass the part of a process that does not commit to the writer; the main process has the result."""
        self.expect(ends)
        self._writer.submit(job, _nothing, self.waiting.fail, True, _name(step))

    def await_parts(self) -> None:
        """Called by the process that commits, before it waits for the parts of the others."""
        self.waiting = sharded.Waiting()

    def expect(self, ends: Ends) -> None:
        """Another process writes the save."""
        self._awaited.append(ends)

    def refuse(self, error: OSError | NonFiniteError, target: str) -> None:
        """The disk has failed before the save could be passed to the writer, or the model is not finite."""
        self._writer.refused(error, target)
        self.expect((_nothing, _nothing))
        self._outcomes.append(self._writer.take_message() or False)

    # -- their ends

    def end(self) -> list[str]:
        """Do what follows each save that has ended since the last call; returns what was wrong with the model's values
        in those that failed for it. A collective on several processes."""
        self._collect()
        own, self._outcomes, self._is_told = self._outcomes, [], False
        # Broadcast before on_save is called anywhere: a callback may wait for all processes, as ray.train.report does.
        outcomes = self.core.processes.broadcast_object(own) if self.core.processes.size > 1 else own
        self._follow(own if self.core.trainer.args.should_save else outcomes)
        return [each for each in outcomes if isinstance(each, str)]

    def _collect(self) -> None:
        """Collect the results of the saves that this process has written."""
        for then in self._writer.poll():
            then()

    def _follow(self, outcomes: list[bool | str]) -> None:
        for well in outcomes:
            then, otherwise = self._awaited.pop(0)
            (then if well is True else otherwise)()

    def _end_own(self) -> None:
        """What end() does, in a process that writes and without communication."""
        self._collect()
        own, self._outcomes = self._outcomes, []
        if self.core.trainer.args.should_save:
            self._follow(own)

    def wait(self, what: str | None = None) -> None:
        """Block until nothing is being written. If all processes write, the others wait first: the main process would
        wait for what a failed one has not written. A collective then."""
        processes = self.core.processes
        if processes.size > 1 and self.core.strategy.in_parts:
            if not processes.is_main:
                self._writer.wait(what)
                self._collect()
            self.waiting.share(processes)
        self._writer.wait(what)

    def finish(self) -> None:
        """When the run ends, wait for a save in progress. Its error is logged, so that it does not hide another."""
        self._writer.settle(self._end_own)


def _name(step: int) -> str:
    return f"{store.PREFIX}-{step}"


def _nothing() -> None:
    pass
