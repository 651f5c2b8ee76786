"""Checkpoints of processes that hold a part each: all of them write, and the main one commits."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..checkpoint import sharded, store
from ..checkpoint.contents import Contents, room_for
from .parts import TrainerParts

logger = logging.getLogger(__name__)


def _nothing() -> None:
    pass


class TrainerSavingParts(TrainerParts):
    """The other way of _save_checkpoint."""

    def _shared_stage(self, parent: Path, step: int) -> Path | None:
        """A staged directory that all processes see and write into; None where one of them writes everything: a
        strategy without parts, an override that writes the model in its own way, machines without a common disk."""
        if not self.strategy.in_parts or self.args.save_on_each_node or not self._writes_as_built:
            return None
        stage = None
        if self.processes.is_main:
            try:
                stage = store.open_stage(parent, step)
            except OSError:  # it is tried again, and refused aloud, by the way of one process
                stage = None
        told = self.processes.broadcast_object(None if stage is None else str(stage))
        if told is None:
            return None
        if all(seen for (seen,) in self.processes.all_gather([Path(told).is_dir()])):
            return Path(told)
        if stage is not None:
            store.discard(stage)
        if not self._said_no_common_disk:
            self._said_no_common_disk = True
            logger.warning(
                "Not all processes see %s, so the main one gathers all state and writes it alone. An output_dir on a "
                "disk that all machines share lets each write its part.",
                parent,
            )
        return None

    def _save_in_parts(
        self, stage: Path, step: int, state: Any, course: Any, commit: Callable[[dict[str, Any]], None], ends: Any
    ) -> None:
        """`commit` takes the facts of all files; `ends`: what follows a save that ended well, or did not."""
        processes = self.processes
        self._model_parts = self.strategy.model_part(self.model)
        try:
            contents = self._contents(stage, state, course) if processes.is_main else self._own_part_of(course)
        finally:
            self._model_parts = None
        size = sharded.number_files(contents, processes)
        if not processes.is_main:
            self._awaited.append(ends)
            self._saver.submit(
                lambda: sharded.write_part(stage, processes.rank, contents, size),
                _nothing,
                _nothing,
                self.args.save_async,
                f"{store.PREFIX}-{step}",
            )
            self._tell_saved()
            return

        def job() -> None:
            try:
                room_for(stage, size)
                facts = contents.write(stage)
                others = range(1, processes.size)
                commit(facts | sharded.collect(stage, others, self.args.ddp_timeout, self._leaving))
            except BaseException:
                store.discard(stage)
                raise

        self._submit(job, ends, step)

    def _own_part_of(self, course: Any) -> Contents:
        """What a process that does not commit writes."""
        contents = Contents()
        if not self.backend.models.is_adapter(self.backend.models.unwrap(self.model)):
            self._add_weights(contents, lambda tensors: self._buffers.copy(tensors, self.backend.weights.copy_to))
        if course is not None:
            self._add_optimizer(contents, course)
        return contents
