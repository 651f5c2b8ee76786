"""What the processes of a run exchange, whatever the framework."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..errors import ProcessLostError


class ProcessGroup:
    """All processes of a run. This one is alone, so that what is said comes back at once.

    A backend has its own over the framework's communication (backends/*/parallel.py). Every method is a meeting: all
    processes have to call it, in the same order. Values are plain Python and NumPy.
    """

    rank = 0
    size = 1
    is_async = False  # whether compare_later returns before the others have spoken

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def all_gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """A few numbers of every process, by rank: one short message, for every step."""
        return [list(numbers)]

    def count_collective(self) -> None:
        """This process has come to a meeting that a strategy holds: whoever has not, and hangs, can be told by it."""

    def all_gather_async(self, numbers: Sequence[float]) -> Callable[[], list[list[float]]]:
        """Like compare, for what is needed later: call the result then. Until then this process may go on."""
        rows = self.all_gather(numbers)
        return lambda: rows

    def all_gather_object(self, value: Any) -> list[Any]:
        """The values of all processes, by rank, in all of them."""
        return [value]

    def gather_object(self, value: Any) -> list[Any] | None:
        """The values of all processes in the main one; None in the others."""
        return [value]

    def broadcast_object(self, value: Any) -> Any:
        """The main process's value in all of them."""
        return value

    def barrier(self) -> None:
        """Returns when all processes are here."""

    def run_on_main(self, function: Callable[[], Any], what: str) -> Any:
        """Run it in the main process alone; what it returns, in all. Its error is one of all processes."""
        if self.size == 1:
            return function()
        result, error = None, None
        if self.is_main:
            try:
                result = function()
            except BaseException as raised:
                error = raised
        told = self.broadcast_object((result, None if error is None else f"{type(error).__name__}: {error}"))
        if error is not None:
            raise error
        if told[1] is not None:
            raise ProcessLostError(f"process 0 failed in {what}, so this one leaves too. There: {told[1]}")
        return told[0]

    def explain_lost_peer(self, error: BaseException) -> ProcessLostError | None:
        """The error in words when it comes from the loss of another process; None when it is one of this process."""
        return None

    @contextlib.contextmanager
    def explaining_lost_peers(self) -> Iterator[None]:
        """What the framework says within it when another process is gone is said in words that name it."""
        try:
            yield
        except Exception as error:
            lost = self.explain_lost_peer(error)
            if lost is None:
                raise
            raise lost from error


SINGLE_PROCESS = ProcessGroup()
