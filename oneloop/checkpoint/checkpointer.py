"""Checkpoints of a run, from the request until they are complete.

Training blocks while tensors are copied into host buffers (a host sync). Files are written in the background; the
manifest is written last and commits the checkpoint. The main thread calls `on_save` after the commit.
"""

import copy
import errno
import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import NonFiniteError
from ..formats.durable import native_errors
from ..introspect import class_overrides, is_overridden
from . import sharded, store
from .best_model import BestModel
from .contents import Contents, room_for
from .live_state import callback_states, gather
from .model_files import ModelFiles
from .output_directory import OutputDirectory
from .overrides import Gathered, SaveOverrides
from .pending_saves import Ends, PendingSaves
from .rotation import delete_later, delete_superseded
from .state_copies import StateCopies

if TYPE_CHECKING:
    from ..trainer.internals import Internals
    from ..trainer.run import Run

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Save:
    """One save, with the state at its request."""

    target: str  # its path as in the arguments, for the state and messages
    path: Path
    run_id: str
    reason: str
    state: Any
    best_before: tuple[Any, Any]
    is_scheduled: bool  # the arguments ask for it
    needed: Path | None  # another checkpoint that a return from a loss spike may need

    @property
    def step(self) -> int:
        return self.state.global_step

    @property
    def best(self) -> str | None:
        return self.state.best_model_checkpoint


class Checkpointer:
    """Created for each run."""

    def __init__(self, run: "Run") -> None:
        self.run = run
        self.best = BestModel()
        self.directory = OutputDirectory(run)
        self.model_files = ModelFiles(run.core)
        self.overrides = SaveOverrides(run.core)
        self.copies = StateCopies(run)
        self.pending = PendingSaves(run)
        self.last_saved: str | None = None

    @property
    def core(self) -> "Internals":
        return self.run.core

    # -- one save

    def request(self) -> None:
        """Save at a step, through the method of the Trainer that may be overridden."""
        trainer, failures = self.core.trainer, self.pending.failures
        # A save waits for the device anyway, and the checkpoint counts the updates that were skipped.
        self.run.update.nonfinite.read_pending()
        self.run.meter.spikes.look()  # a checkpoint that follows a spike could not undo it
        self.overrides.begin()
        try:
            with native_errors():
                trainer._save_checkpoint(trainer.model, None)
        except OSError as error:
            if not self.overrides.add_files or (self.core.processes.size > 1 and not self.overrides.is_saving):
                raise  # the other processes are in a collective of the save
            # If the disk has failed, which has been logged, there is no checkpoint that an override could write into.
            if self.pending.failures == failures:
                self.overrides.fail(error)
        self.announce()
        if not self.overrides.is_saving:  # an override has saved by itself
            self.run.call("on_save")

    def save(self) -> None:
        """Everything that a resumed run needs, in output_dir/checkpoint-STEP."""
        args, trainer = self.core.trainer.args, self.core.trainer
        self.wait(f"{store.PREFIX}-{trainer.state.global_step}")
        self.overrides.called()
        trainer.store_flos()
        if self.run.meter.sources is not None:
            self.run.meter.sources.share()
        save = self._new_save()
        ends = partial(self._committed, save), partial(self._forget_best, save)
        parts = self._parts(save.step)
        gathered, stage = None, None if parts is None else parts.stage
        if not args.save_only_model:
            try:
                stage = self._stage_for_parts(save) if parts is None else parts.stage
                gathered = gather(self.run, parts is not None, stage or save.path)
            except OSError as error:
                self._refused(error, save, ends, stage, parts)
                return
        if parts is None:
            self._save_whole(save, gathered, ends, stage)
        else:
            self._save_sharded(save, parts, gathered, ends)

    def _new_save(self) -> Save:
        """The state at this moment, which the run may change while it is being written."""
        trainer = self.core.trainer
        name = f"{store.PREFIX}-{trainer.state.global_step}"
        target, path = str(Path(self.directory.shown) / name), self.directory.path / name
        trainer.state.stateful_callbacks = callback_states(trainer)
        state = copy.copy(trainer.state)
        if self.best.is_new:
            state.best_model_checkpoint = target
        state.log_history = list(state.log_history)
        reason = "best" if self.best.asks_for_save and not self._is_kept(path) else "save"
        spikes = self.run.meter.spikes
        scheduled, needed = spikes.is_scheduled, None if spikes.is_scheduled else spikes.needed
        return Save(target, path, self.run.id, reason, state, self.best.before, scheduled, needed)

    def _open_stage(self, step: int) -> Path:
        self.directory.keep()
        return store.open_stage(self.directory.path, step)

    def _is_kept(self, path: Path) -> bool:
        """Whether save_steps includes this step too: then it is kept even when it is no longer the best."""
        manifest = store.read_manifest(path)
        return manifest is not None and manifest["run_id"] == self.run.id and manifest.get("reason") == "save"

    def _committed(self, save: Save) -> None:
        """Called when it is complete. on_save follows at once, or when an override has added its files."""
        self.last_saved = save.target
        if save.is_scheduled:
            self.run.meter.spikes.saved(save.step, save.path)
        self.core.trainer.state.best_model_checkpoint = save.best
        if self.overrides.add_files:
            self.overrides.leave_open(save)
        else:
            self._announce(save)

    def announce(self) -> None:
        """Call on_save for checkpoints that overrides of _save_checkpoint have finished. A collective on several
        processes."""
        saves, is_whole = self.overrides.take_unsealed()
        for save in saves:
            self._announce(save, is_whole)

    def _announce(self, save: Save, is_whole: bool = True) -> None:
        """Delete older checkpoints, unless the writer has done so or they may still be needed, and call on_save."""
        trainer = self.core.trainer
        if trainer.args.should_save and self._rotates_late and is_whole:
            try:
                trainer._rotate_checkpoints(use_mtime=False, output_dir=self.directory.shown)
            except OSError as error:
                logger.error("%s is saved, but old checkpoints could not be deleted: %s.", save.target, error)
        trainer.control = trainer.callback_handler.call_event("on_save", trainer.args, save.state, trainer.control)
        self.directory.storage.upload(save.path, save.best, is_whole)
        self.core.extensions.checkpoint_saved(save.state)

    def _forget_best(self, save: Save) -> None:
        """Called when the best model could not be saved: the previous one is the best that can be loaded."""
        state = self.core.trainer.state
        if state.best_global_step == save.step:
            state.best_metric, state.best_global_step = save.best_before

    def _commit(self, save: Save, stage: Path, facts: dict[str, Any], parts: sharded.Parts | None = None) -> None:
        generation, given = self.directory.generation, {} if parts is None else {"publish": parts.publish}
        store.commit(stage, save.step, save.run_id, save.reason, facts, self.overrides.add_files, generation, **given)
        if not self._rotates_late:
            delete_superseded(self.run, save.target, save.run_id, save.best, save.needed)

    @property
    def _rotates_late(self) -> bool:
        """Whether older checkpoints are deleted in the main thread: overrides may have to add files first, or do it."""
        return self.overrides.add_files or is_overridden(self.core.trainer, "_rotate_checkpoints")

    def rotate(self) -> None:
        """Delete what the last checkpoint supersedes."""
        if self.last_saved is not None:
            best, needed = self.core.trainer.state.best_model_checkpoint, self.run.meter.spikes.needed
            delete_superseded(self.run, self.last_saved, self.run.id, best, needed)

    # -- written by one process

    def _stage_for_parts(self, save: Save) -> Path | None:
        """A staged directory for overrides that write a part of the checkpoint, which is opened before the others are
        asked for theirs; None without such overrides."""
        core, stage, error = self.core, None, None
        if not self.overrides.write_parts:
            return None
        if core.trainer.args.should_save:
            try:
                stage = self._open_stage(save.step)
            except OSError as raised:
                error = raised
        told = core.processes.broadcast_object(None if stage is None else str(stage))
        if told is None:
            raise error or OSError(errno.EIO, "the main process cannot write", save.target)
        return Path(told) if stage is None else stage

    def _refused(
        self,
        error: OSError | NonFiniteError,
        save: Save,
        ends: Ends,
        stage: Path | None,
        parts: sharded.Parts | None = None,
    ) -> None:
        """The disk has failed before a save could be passed to the writer, or the model is not finite."""
        if parts is not None:
            parts.close()
        if not self.core.trainer.args.should_save:
            self.pending.expect(ends)
            self.tell()
            return
        if stage is not None:
            store.discard(stage)
        self.pending.refuse(error, save.target)
        self._forget_best(save)
        if self.core.processes.size > 1:
            self.tell()

    def _save_whole(self, save: Save, gathered: Gathered | None, ends: Ends, stage: Path | None) -> None:
        """Written by one process; the others contribute their state and receive the result."""
        core = self.core
        with self.model_files.whole_model():
            if not core.trainer.args.should_save:
                self.pending.expect(ends)
                self.tell()
                return
            try:
                stage = stage or self._open_stage(save.step)
                contents = self.copies.whole(stage, save.state, gathered)
            except (OSError, NonFiniteError) as error:
                self._refused(error, save, ends, stage)
                return
            except BaseException:
                if stage is not None:
                    store.discard(stage)
                raise

        check = self.model_files.finite_values.checking(contents, Path(save.target).name)

        def job() -> None:
            try:
                check()
                room_for(stage, contents.size)
                self._commit(save, stage, contents.write(stage))
            except BaseException:
                store.discard(stage)
                raise

        self.pending.submit(job, ends, save.step, self.in_background)
        self.tell()

    # -- written by all processes, each with its own tensors

    def _parts(self, step: int) -> sharded.Parts | None:
        """Where all processes write their parts: a staged directory on a disk that they share, or one on each machine
        and from there to object storage. None if one of them writes everything: the strategy does not shard, an
        override writes the model itself, or there is neither."""
        core = self.core
        processes = core.processes
        if not core.strategy.in_parts or core.trainer.args.save_on_each_node or not self.model_files.as_built:
            return None
        stage = None
        if processes.is_main:
            try:
                stage = self._open_stage(step)
            except OSError:  # tried again, and reported if it fails, when one process writes
                stage = None
        told = processes.broadcast_object(None if stage is None else str(stage))
        if told is None:
            return None
        if all(seen for (seen,) in processes.all_gather([Path(told).is_dir()])):
            return sharded.OnSharedDisk(Path(told))
        if self.directory.storage.is_used:
            return self.directory.storage.parts(step, stage)
        if stage is not None:
            store.discard(stage)
        if self.run.events.first_time("disk is not shared"):
            logger.warning(
                "%s is not visible to all processes, so the main process gathers the whole state and writes it. Use an "
                "output_dir on a disk that all machines share, or in object storage, so that each process writes its "
                "own shard.",
                self.directory.path,
            )
        return None

    def _save_sharded(self, save: Save, parts: sharded.Parts, gathered: Gathered | None, ends: Ends) -> None:
        core, stage = self.core, parts.stage
        processes, args = core.processes, core.trainer.args
        contents, error = Contents(), None
        with self.model_files.model_part():
            try:
                if processes.is_main:
                    contents = self.copies.whole(stage, save.state, gathered)
                else:
                    contents = self.copies.part(gathered)
            except OSError as raised:  # the others go on to the next collective
                error = raised
        if sharded.any_failed(processes, error):
            self._refused(error or sharded.failed_elsewhere(save.target), save, ends, stage, parts)
            return
        size = sharded.number_files(contents, processes)
        check = self.model_files.finite_values.checking(contents, Path(save.target).name)
        if not processes.is_main:
            part = partial(sharded.write_part, parts, processes.rank, contents, size, check)
            self.pending.submit_part(part, ends, save.step)
            self._end_of_parts()
            return

        def job() -> None:
            others = range(1, processes.size)
            try:
                try:
                    check()
                    room_for(stage, parts.room(contents.size, size))
                    facts = parts.send(contents.write(stage))
                except Exception:
                    sharded.let_finish(parts, others, self.pending.waiting)
                    raise
                facts |= sharded.collect(parts, others, args.ddp_timeout, self.pending.waiting)
                self._commit(save, stage, facts, parts)
            except BaseException:
                parts.give_up(others)
                store.discard(stage)
                raise

        self.pending.await_parts()
        self.pending.submit(job, ends, save.step, background=True)
        self._end_of_parts()

    def _end_of_parts(self) -> None:
        """After a save of all processes was passed to their writers: wait for it unless it is in the background. A
        collective."""
        if not self.in_background:
            self.pending.wait()
        self.tell()

    # -- saves in progress

    @property
    def in_background(self) -> bool:
        """Whether training goes on while a save is written. An override of _save_checkpoint expects the checkpoint when
        oneloop's returns; a callback may expect on_save before the next step."""
        if not self.core.trainer.args.save_async or self.overrides.add_files:
            return False
        # Where all processes write, each has to give the same answer, and callbacks may be those of one process.
        may_differ = self.core.strategy.in_parts
        return may_differ or not (self.core.behaviour.on_save_before_next_step and self._has_listeners)

    @property
    def _has_listeners(self) -> bool:
        """Whether a callback that is not oneloop's has an on_save."""
        return any(class_overrides(type(each), "on_save") for each in self.core.trainer.callback_handler.callbacks)

    def tell(self) -> None:
        """Call on_save for every save that was committed since the last call. A collective on several processes, so
        that all call it at the same step."""
        messages = self.pending.end()
        if messages and self.core.trainer.args.nonfinite == "stop":
            raise NonFiniteError(
                f"{messages[0]}, so this step is not saved. Last checkpoint: {self.last_saved or 'none in this run'}. "
                "Lower the learning rate, or use debug='underflow_overflow' to find the layer."
            )

    def wait(self, what: str | None = None) -> None:
        """Block until nothing is being written; errors of the background thread are raised here."""
        self.pending.wait(what)
        self.tell()
        self.announce()

    # -- a resumed run

    def found(self, path: Path) -> None:
        """Called when a run is resumed from this checkpoint, which has been verified."""
        self.last_saved = str(path)

    def resumed_from(self, path: Path) -> None:
        """Delete what a run did not delete because it died right after its last save."""
        trainer = self.core.trainer
        if trainer.args.should_save:
            best, needed = trainer.state.best_model_checkpoint, self.run.meter.spikes.needed
            delete_superseded(self.run, str(path), self.run.id, best, needed)
        self.directory.storage.resumed_from(path, trainer.state.best_model_checkpoint)

    def undo_after(self, step: int) -> None:
        """The run returns to this step: delete its later checkpoints, which a resume would take for the newest. A
        collective."""
        self.core.processes.run_on_main(lambda: delete_later(self.run, step), "deleting later checkpoints")
