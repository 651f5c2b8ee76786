"""Collectives between the processes of a run, independent of the framework."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..errors import ProcessLostError
from .mesh import Mesh, build


class ProcessGroup:
    """All processes of a run, or those along some axes of its mesh. This class is the group of a single process: its
    collectives return at once.

    Each backend derives its own on top of the framework's communication (backends/*/parallel.py). Every method is a
    collective: all processes must call it, in the same order. Values are plain Python and NumPy.
    """

    rank = 0  # in this group
    size = 1
    handle: Any = None  # the framework's group, for collectives of tensors; None: its default, of all processes
    is_async = False  # whether all_gather_async returns before the other processes have sent theirs

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def mesh(self, args: Any) -> Mesh:
        """The mesh of these processes for these arguments."""
        return build(args, self.rank, self.size)

    def along(self, mesh: Mesh, *axes: str) -> "ProcessGroup":
        """The processes that differ from this one along these axes only. A collective of all processes, which have to
        ask for the same groups in the same order; each is created once."""
        groups = mesh.groups_along(*axes)
        if len(groups) == 1:
            return self
        return SINGLE_PROCESS if len(groups) == mesh.size else self.subgroup(groups)

    def subgroup(self, groups: tuple[tuple[int, ...], ...]) -> "ProcessGroup":
        """The one of these groups of ranks that this process is in; each process is in one. A collective."""
        raise NotImplementedError

    def name_places(self, mesh: Mesh) -> None:
        """Name a process that is lost by its place in this mesh too."""

    def all_gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """All-gather a few numbers, by rank: one short message, cheap enough for every step."""
        return [list(numbers)]

    def count_collective(self) -> None:
        """Count a collective that a strategy runs itself, so that the heartbeat can tell which process hangs."""

    def all_gather_async(self, numbers: Sequence[float]) -> Callable[[], list[list[float]]]:
        """Like all_gather, for values that are needed later: call the result to wait for them."""
        rows = self.all_gather(numbers)
        return lambda: rows

    def all_gather_object(self, value: Any) -> list[Any]:
        """All-gather objects: the values of all processes, by rank."""
        return [value]

    def gather_object(self, value: Any) -> list[Any] | None:
        """Gather objects: the values of all processes in the main process; None in the others."""
        return [value]

    def broadcast_object(self, value: Any) -> Any:
        """Broadcast the main process's value."""
        return value

    def barrier(self) -> None:
        """Wait for all processes."""

    def run_on_main(self, function: Callable[[], Any], what: str) -> Any:
        """Run it in the main process only and broadcast the result. An error is raised in all processes."""
        if self.size == 1:
            return function()
        result, error = None, None
        if self.is_main:
            try:
                result = function()
            except BaseException as raised:
                error = raised
        sent = self.broadcast_object((result, None if error is None else f"{type(error).__name__}: {error}"))
        if error is not None:
            raise error
        if sent[1] is not None:
            raise ProcessLostError(f"process 0 failed in {what}, so this process stops too. Its error: {sent[1]}")
        return sent[0]

    def explain_lost_peer(self, error: BaseException) -> ProcessLostError | None:
        """The error to raise if another process was lost; None if the error comes from this process."""
        return None

    @contextlib.contextmanager
    def translate_lost_peer_errors(self) -> Iterator[None]:
        """Translate the framework's errors about a lost process into ProcessLostError, which names the process."""
        try:
            yield
        except Exception as error:
            lost = self.explain_lost_peer(error)
            if lost is None:
                raise
            raise lost from error


SINGLE_PROCESS = ProcessGroup()
