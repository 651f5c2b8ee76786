"""Even batches for evaluation where the forward pass is a collective: a process without a batch repeats one."""

from collections.abc import Callable, Iterator
from typing import Any

from ..data.order import NoBatch
from .collectives import ProcessGroup


def even_batches(processes: ProcessGroup, batches: Iterator[Any], join_in: Callable[[Any], None]) -> Iterator[Any]:
    """The batches, with equally many turns in every process; a turn without a batch calls `join_in` and yields NoBatch.

    Loaders may end at different turns, so each turn starts with a small all-gather.
    """
    ended, dummy_batch = False, None
    while True:
        batch = NoBatch() if ended else next(batches, None)
        ended = ended or batch is None
        has = not ended and not isinstance(batch, NoBatch)
        every = processes.all_gather([has, ended, dummy_batch is not None])
        if all(row[1] for row in every):
            return
        own = batch if has else None
        dummy_batch = own if has else dummy_batch
        working = [bool(row[0]) for row in every]
        if any(working) and not all(row[0] or row[2] for row in every):  # a process never had a batch
            first_rank = working.index(True)
            given = processes.all_gather_object(own if processes.rank == first_rank else None)[first_rank]
            dummy_batch = given if dummy_batch is None else dummy_batch
        if not has and any(working):
            join_in(dummy_batch)
        yield own if has else NoBatch()
