"""Even batches for evaluation where the forward pass is a collective: a process without a batch repeats one."""

from collections.abc import Callable, Iterator
from typing import Any

from ..data.order import NoBatch
from .collectives import ProcessGroup


def even_batches(processes: ProcessGroup, batches: Iterator[Any], join_in: Callable[[Any], None]) -> Iterator[Any]:
    """The batches, with equally many turns in every process; a turn without a batch calls `join_in` and yields NoBatch.

    Loaders may end at different turns, so each turn starts with a small all-gather.
    """
    ended, spare = False, None
    while True:
        batch = NoBatch() if ended else next(batches, None)
        ended = ended or batch is None
        has = not ended and not isinstance(batch, NoBatch)
        every = processes.all_gather([has, ended, spare is not None])
        if all(row[1] for row in every):
            return
        own = batch if has else None
        spare = own if has else spare
        working = [bool(row[0]) for row in every]
        if any(working) and not all(row[0] or row[2] for row in every):  # a process never had a batch
            giver = working.index(True)
            given = processes.all_gather_object(own if processes.rank == giver else None)[giver]
            spare = given if spare is None else spare
        if not has and any(working):
            join_in(spare)
        yield own if has else NoBatch()
