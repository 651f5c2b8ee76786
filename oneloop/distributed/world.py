"""Which process this is, read from the launcher's variables, and what the processes of a run say to each other."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ProcessLostError


@dataclass(frozen=True)
class World:
    """rank and size count all processes; local_rank and local_size those on this machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launcher: str | None = None  # the framework whose launcher started us: torch, paddle or mindspore

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def is_local_main(self) -> bool:
        return self.local_rank == 0


def _number(name: str, default: int) -> int:
    value = os.environ.get(name, "").strip()
    return int(value) if value.lstrip("-").isdigit() else default


def world() -> World:
    """torchrun, paddle.distributed.launch and msrun each leave their own variables behind."""
    if "PADDLE_TRAINER_ID" in os.environ:
        size = _number("PADDLE_TRAINERS_NUM", 1)
        return World(
            rank=_number("PADDLE_TRAINER_ID", 0),
            size=size,
            local_rank=_number("PADDLE_RANK_IN_NODE", _number("PADDLE_TRAINER_ID", 0)),
            local_size=_number("PADDLE_LOCAL_SIZE", size),
            launcher="paddle",
        )
    if os.environ.get("MS_ROLE") == "MS_SCHED":
        # msrun starts the script once more, as the workers' switchboard: it is none of them, and ends in join().
        size = max(2, _number("MS_WORKER_NUM", 1))
        return World(rank=size, size=size, local_rank=size, local_size=size, launcher="mindspore")
    if os.environ.get("MS_ROLE") == "MS_WORKER":
        size = _number("MS_WORKER_NUM", 1)
        rank = _number("MS_NODE_ID", _number("RANK_ID", 0))
        return World(
            rank=rank,
            size=size,
            local_rank=_number("DEVICE_ID", rank),
            local_size=_number("MS_LOCAL_WORKER_NUM", size),
            launcher="mindspore",
        )
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        size = _number("WORLD_SIZE", 1)
        return World(
            rank=_number("RANK", 0),
            size=size,
            local_rank=_number("LOCAL_RANK", 0),
            local_size=_number("LOCAL_WORLD_SIZE", size),
            launcher="torch",
        )
    return World()


class Team:
    """All processes of a run. This one is alone, so that what is said comes back at once.

    A backend has its own over the framework's communication (backends/*/parallel.py). Every method is a meeting: all
    processes have to call it, in the same order. Values are plain Python and NumPy.
    """

    rank = 0
    size = 1
    speaks_ahead = False  # whether compare_later returns before the others have spoken

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def compare(self, numbers: Sequence[float]) -> list[list[float]]:
        """A few numbers of every process, by rank: one short message, for every step."""
        return [list(numbers)]

    def comes(self) -> None:
        """This process has come to a meeting that a strategy holds: whoever has not, and hangs, can be told by it."""

    def compare_later(self, numbers: Sequence[float]) -> Callable[[], list[list[float]]]:
        """Like compare, for what is needed later: call the result then. Until then this process may go on."""
        rows = self.compare(numbers)
        return lambda: rows

    def everyone(self, value: Any) -> list[Any]:
        """The values of all processes, by rank, in all of them."""
        return [value]

    def to_main(self, value: Any) -> list[Any] | None:
        """The values of all processes in the main one; None in the others."""
        return [value]

    def from_main(self, value: Any) -> Any:
        """The main process's value in all of them."""
        return value

    def meet(self) -> None:
        """Returns when all processes are here."""

    def on_main(self, function: Callable[[], Any], what: str) -> Any:
        """Run it in the main process alone; what it returns, in all. Its error is one of all processes."""
        if self.size == 1:
            return function()
        result, error = None, None
        if self.is_main:
            try:
                result = function()
            except BaseException as raised:
                error = raised
        told = self.from_main((result, None if error is None else f"{type(error).__name__}: {error}"))
        if error is not None:
            raise error
        if told[1] is not None:
            raise ProcessLostError(f"process 0 failed in {what}, so this one leaves too. There: {told[1]}")
        return told[0]

    def explain(self, error: BaseException) -> ProcessLostError | None:
        """The error in words when it comes from the loss of another process; None when it is one of this process."""
        return None

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """What the framework says within it when another process is gone is said in words that name it."""
        try:
            yield
        except Exception as error:
            lost = self.explain(error)
            if lost is None:
                raise
            raise lost from error


ALONE = Team()
