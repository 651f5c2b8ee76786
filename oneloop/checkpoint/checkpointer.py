"""Checkpoints of a run, from the request until they are complete.

Training blocks while tensors are copied into host buffers (a host sync). Files are written in the background; the
manifest is written last and commits the checkpoint. The main thread calls `on_save` after the commit.

An override of `_save_checkpoint` writes into `checkpoint-N` after `super()._save_checkpoint()` has returned. The
checkpoint is complete by then, without those files. When the override has returned, they are added to the manifest.
"""

import contextlib
import copy
import errno
import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import NonFiniteError
from ..formats.durable import native_errors
from ..introspect import class_overrides, is_overridden
from . import sharded, store, unsaved
from .capture import (
    PART_METHODS,
    Capture,
    Contents,
    GatheredState,
    any_failed,
    callback_states,
    check_free_space,
    failed_elsewhere,
)
from .model_files import ModelFiles
from .output_directory import OutputDirectory
from .reader import Checkpoint
from .saved_run import SavedRun
from .snapshots import Snapshots
from .writer import Ends, SaveWriter

logger = logging.getLogger(__name__)

_SNAPSHOT = "snapshot-"
_GOES_ON = "Training continues. Free some space or repair the disk; the next save tries again."


@dataclass
class BestModel:
    """How the evaluation of this step affects saving."""

    is_new: bool = False  # it is better than all previous ones
    asks_for_save: bool = False  # saved only because it is the best: save_steps does not include this step
    before: tuple[Any, Any] = (None, None)  # the previous best metric and its step

    def mark_new_best(self, before: tuple[Any, Any]) -> None:
        self.is_new, self.before = True, before

    def ask_for_save(self, alone: bool) -> None:
        """`alone`: nothing else asks for a save at this step."""
        self.asks_for_save = alone

    def end_of_step(self) -> None:
        self.is_new = self.asks_for_save = False


@dataclass(frozen=True)
class Save:
    """One save, with the state at its request."""

    step: int
    target: str  # its path as in the arguments, for the state and messages
    path: Path
    place: OutputDirectory | Snapshots
    run_id: str
    reason: str
    state: Any
    best_before: tuple[Any, Any]
    is_scheduled: bool  # the arguments ask for it
    needed: tuple[Path, ...]  # other checkpoints that parts of the run may need
    is_open: bool  # an override of _save_checkpoint may add files when it is complete
    rotates_in_main_thread: bool  # older checkpoints are deleted there: an override does it, or has to add files first

    @property
    def is_snapshot(self) -> bool:
        return isinstance(self.place, Snapshots)

    @property
    def name(self) -> str:
        """For messages."""
        return f"{_SNAPSHOT}{self.step}" if self.is_snapshot else self.path.name


@dataclass(frozen=True)
class OpenCheckpoint:
    """A complete checkpoint to which an override of _save_checkpoint may still add files."""

    save: Save
    known: dict[str, tuple[int, int]]  # its files as oneloop wrote them


class Checkpointer:
    """Created for each run."""

    def __init__(self, run: SavedRun) -> None:
        core = run.core
        self.run, self.core, self.trainer = run, core, core.trainer
        self.best = BestModel()
        self.directory: OutputDirectory = core.extensions.output_directory(run) or OutputDirectory(run)
        self.snapshots = Snapshots(run)
        self.model_files = ModelFiles(core)
        self.capture = Capture(run, self.model_files)
        self.writes = core.trainer.args.should_save  # this process writes whole checkpoints
        self.writer = SaveWriter(
            core.processes, self.writes, core.strategy.is_sharded, run.events.add, self._consequence
        )
        self.last_saved: str | None = None
        self.failed_step: int | None = None  # of a save after which none has succeeded
        self._model_saved_at: int | None = None  # step of the last save_model during training
        self.open_checkpoints: list[OpenCheckpoint] = []
        self._is_saving = False  # the current _save_checkpoint has called oneloop's
        self._override_error: OSError | None = None  # of the current _save_checkpoint, after oneloop's has returned
        self._source: Checkpoint | None = None  # that the run is resumed from, until it has begun

    # -- one save

    def request(self) -> None:
        """Save at a step, through the method of the Trainer that may be overridden."""
        trainer, failures = self.trainer, self.writer.failures
        # A save waits for the device anyway, and the checkpoint counts the updates that were skipped.
        for part in self.run.parts.having("check_pending"):
            part.check_pending()
        self._is_saving, self._override_error = False, None
        try:
            with native_errors():
                trainer._save_checkpoint(trainer.model, None)
        except OSError as error:
            adds_files = is_overridden(trainer, "_save_checkpoint")
            if not adds_files or (not self.core.mesh.is_single and not self._is_saving):
                raise  # the other processes are in a collective of the save
            # If the disk has failed, which has been logged, there is no checkpoint that an override could write into.
            if self.writer.failures == failures:
                self._override_error = error
                logger.error(
                    "_save_checkpoint of %s failed: %s. The files that it adds to the checkpoint may be missing, and "
                    "no older checkpoint is deleted.%s",
                    type(trainer).__name__,
                    error,
                    "" if self.run.plan.is_over(trainer.state.global_step) else f" {_GOES_ON}",
                )
        if self.open_checkpoints:
            self.notify_saved()
        if not self._is_saving:  # an override has saved by itself
            self.run.call("on_save")

    def save(self) -> None:
        """Everything that a resumed run needs, in output_dir/checkpoint-STEP: the state of all processes is gathered
        and copied, and passed to the writer."""
        self.wait(f"{store.PREFIX}-{self.trainer.state.global_step}")
        self._is_saving = True
        self._save_to(self.directory)
        self.snapshots.plan_next()

    def take_snapshot(self) -> None:
        """The same, in memory, unless a save is still being written. A collective on several processes."""
        is_busy = any(busy for (busy,) in self.core.processes.all_gather([self.writer.is_busy]))
        self.snapshots.plan_next(is_retried=is_busy)
        if is_busy:
            return
        self.finalize_completed()
        for part in self.run.parts.having("check_pending"):
            part.check_pending()
        self._save_to(self.snapshots)

    def _save_to(self, place: OutputDirectory | Snapshots) -> None:
        trainer = self.trainer
        trainer.store_flos()
        for part in self.run.parts.having("before_save"):
            part.before_save()
        save = self._new_save(place)
        ends = partial(self._on_commit, save), partial(self._on_failure, save)
        parts = self._sharded_save(save)
        gathered, stage = None, None if parts is None else parts.stage
        if not trainer.args.save_only_model:
            try:
                if parts is None and any(is_overridden(trainer, name) for name in PART_METHODS):
                    stage = self._stage_for_overrides(save)
                gathered = self.capture.gather(parts is not None, stage or save.path)
            except OSError as error:
                self._abort_save(error, save, ends, stage, parts)
                return
        if parts is None:
            self._save_whole(save, gathered, ends, stage)
        else:
            self._save_sharded(save, parts, gathered, ends)

    def _new_save(self, place: OutputDirectory | Snapshots) -> Save:
        """The state at this moment, which the run may change while it is being written."""
        trainer, scheduled = self.trainer, self.is_scheduled
        trainer.state.stateful_callbacks = callback_states(trainer)
        state = copy.copy(trainer.state)
        name = f"{store.PREFIX}-{state.global_step}"
        target, path = str(Path(place.display_path) / name), place.path / name
        is_snapshot = isinstance(place, Snapshots)
        if self.best.is_new and not is_snapshot:
            state.best_model_checkpoint = target
        state.log_history = list(state.log_history)
        reason = "best" if self.best.asks_for_save and not self._is_kept(path) else "save"
        is_open = is_overridden(trainer, "_save_checkpoint")
        rotates = is_open or is_overridden(trainer, "_rotate_checkpoints")
        return Save(
            step=state.global_step,
            target=target,
            path=path,
            place=place,
            run_id=self.run.id,
            reason="snapshot" if is_snapshot else reason,
            state=state,
            best_before=self.best.before,
            is_scheduled=scheduled,
            needed=() if scheduled else self.run.parts.checkpoints_to_keep(),
            is_open=is_open,
            rotates_in_main_thread=rotates and not is_snapshot,
        )

    @property
    def is_scheduled(self) -> bool:
        """Whether the arguments ask for a checkpoint now: by its step, its epoch, or for being the best."""
        run, args, state = self.run, self.trainer.args, self.trainer.state
        if self.best.is_new and (args.load_best_model_at_end or args.save_strategy == "best"):
            return True
        if args.save_strategy == "steps":
            return run.plan.is_over(state.global_step) or state.global_step % max(1, state.save_steps) == 0
        return args.save_strategy == "epoch" and run.position.epoch_ended

    def _is_kept(self, path: Path) -> bool:
        """Whether save_steps includes this step too: then it is kept even when it is no longer the best."""
        manifest = store.read_manifest(path)
        return manifest is not None and manifest["run_id"] == self.run.id and manifest.get("reason") == "save"

    def _abort_save(
        self,
        error: OSError | NonFiniteError,
        save: Save,
        ends: Ends,
        stage: Path | None,
        parts: sharded.ShardedSave | None = None,
    ) -> None:
        """The disk has failed before a save could be passed to the writer, or the model is not finite."""
        if parts is not None:
            parts.close()
        if not self.writes:
            self.writer.expect(ends)
            self.finalize_completed()
            return
        if stage is not None:
            store.discard(stage)
        self.writer.refuse(error, save.name if save.is_snapshot else save.target)
        self._on_failure(save)
        if not self.core.mesh.is_single:
            self.finalize_completed()

    # -- written by one process

    def _stage_for_overrides(self, save: Save) -> Path:
        """A staged directory for overrides that write a part of the checkpoint, which is opened before the others are
        asked for theirs."""
        stage, error = None, None
        if self.writes:
            try:
                stage = save.place.open_stage(save.step)
            except OSError as raised:
                error = raised
        told = self.core.processes.broadcast_object(None if stage is None else str(stage))
        if told is None:
            raise error or OSError(errno.EIO, "the main process cannot write", save.target)
        return Path(told) if stage is None else stage

    def _save_whole(self, save: Save, gathered: GatheredState | None, ends: Ends, stage: Path | None) -> None:
        """Written by one process; the others contribute their state and receive the result."""
        finite_values = self.model_files.finite_values
        with self.model_files.full_model():
            if not self.writes:
                self.writer.expect(ends)
                self.finalize_completed()
                return
            try:
                stage = stage or save.place.open_stage(save.step)
                contents = self.capture.checkpoint(stage, save.state, gathered)
            except (OSError, NonFiniteError) as error:
                self._abort_save(error, save, ends, stage)
                return
            except BaseException:
                if stage is not None:
                    store.discard(stage)
                raise
        names = finite_values.names()

        def job() -> None:
            try:
                finite_values.check(contents, names, save.path.name)
                save.place.describe(contents.size)
                check_free_space(stage, contents.size)
                self._commit(save, stage, contents.write(stage))
            except BaseException:
                store.discard(stage)
                raise

        self.writer.submit(job, ends, save.name, self._is_in_background(save))
        self.finalize_completed()

    # -- written by all processes, each with its own tensors

    def _sharded_save(self, save: Save) -> sharded.ShardedSave | None:
        """Where all processes write their parts: a staged directory on a disk that they share, or one on each machine
        and from there to object storage. None if one of them writes everything: the strategy does not shard, an
        override writes the model itself, or there is neither."""
        core = self.core
        processes = core.processes
        if (
            not core.strategy.is_sharded
            or core.trainer.args.save_on_each_node
            or not self.model_files.is_default_writer
        ):
            return None
        stage = None
        if core.mesh.is_main:
            try:
                stage = save.place.open_stage(save.step)
            except OSError:  # tried again, and reported if it fails, when one process writes
                stage = None
        told = processes.broadcast_object(None if stage is None else str(stage))
        if told is None:
            return None
        if all(seen for (seen,) in processes.all_gather([Path(told).is_dir()])):
            return sharded.OnSharedDisk(Path(told))
        return save.place.sharded_save(save.step, stage)

    def _save_sharded(self, save: Save, parts: sharded.ShardedSave, gathered: GatheredState | None, ends: Ends) -> None:
        core, stage = self.core, parts.stage
        processes, args = core.processes, core.trainer.args
        contents, error = Contents(), None
        with self.model_files.full_model(is_sharded=True):
            try:
                if core.mesh.is_main:
                    contents = self.capture.checkpoint(stage, save.state, gathered)
                else:
                    contents = self.capture.shard(gathered)
            except OSError as raised:  # the others go on to the next collective
                error = raised
        if any_failed(processes, error):
            self._abort_save(error or failed_elsewhere(save.target), save, ends, stage, parts)
            return
        size = sharded.number_files(contents, processes)
        finite_values = self.model_files.finite_values
        check = partial(finite_values.check, contents, finite_values.names(), save.path.name)
        if not core.mesh.is_main:
            part = partial(sharded.write_part, parts, core.mesh.rank, contents, size, check)
            self.writer.submit(part, ends, save.name, background=True, is_shard=True)
            self._end_of_shards()
            return

        def job() -> None:
            others = range(1, core.mesh.size)
            try:
                try:
                    check()
                    save.place.describe(parts.bytes_needed(contents.size, size))
                    check_free_space(stage, parts.bytes_needed(contents.size, size))
                    facts = parts.send(contents.write(stage))
                except Exception:
                    sharded.wait_for_failed_writers(parts, others, self.writer.waiting)
                    raise
                facts |= sharded.collect(parts, others, args.ddp_timeout, self.writer.waiting)
                self._commit(save, stage, facts, parts)
            except BaseException:
                parts.abort(others)
                store.discard(stage)
                raise

        self.writer.await_shards()
        self.writer.submit(job, ends, save.name, background=True)
        self._end_of_shards()

    def _end_of_shards(self) -> None:
        """After a save of all processes was passed to their writers: wait for it unless it is in the background. A
        collective."""
        if not self.in_background:
            self.writer.wait()
        self.finalize_completed()

    # -- the commit, in the thread that writes, and what follows it in the main thread

    def _commit(self, save: Save, stage: Path, facts: dict[str, Any], parts: sharded.ShardedSave | None = None) -> None:
        generation, publish = save.place.generation, None if parts is None else parts.publish
        facts_of_run = save.step, save.run_id, save.reason
        checkpoint = store.commit(stage, *facts_of_run, facts, save.is_open, generation, publish)
        if not save.rotates_in_main_thread:
            save.place.delete_superseded(save.target, save.state.best_model_checkpoint, save.needed, checkpoint)

    def _on_commit(self, save: Save) -> None:
        """Called when it is complete. on_save follows at once, or when an override has added its files."""
        if save.is_snapshot:
            return
        self.last_saved = save.target
        self.mark_saved()
        for part in self.run.parts.having("checkpoint_saved"):
            part.checkpoint_saved(save.step, save.path, save.is_scheduled)
        self.trainer.state.best_model_checkpoint = save.state.best_model_checkpoint
        if not save.is_open:
            self._notify(save)
            return
        known: dict[str, tuple[int, int]] = {}
        if self.writes:
            with contextlib.suppress(OSError):  # then finalize_manifest() reads all files
                known = store.fingerprints(save.path)
        self.open_checkpoints.append(OpenCheckpoint(save, known))

    def notify_saved(self) -> None:
        """Call on_save for checkpoints that overrides of _save_checkpoint have finished. Their new files are added to
        the manifest, unless an override has failed in any process. A collective on several processes, each of which may
        have written files."""
        found, self.open_checkpoints = self.open_checkpoints, []
        processes = self.core.processes
        is_whole = not any(failed for (failed,) in processes.all_gather([self._override_error is not None]))
        for each in found if self.writes and is_whole else ():
            try:
                store.finalize_manifest(each.save.path, each.known)
            except OSError as error:
                logger.error(
                    "%s is saved, but the files that _save_checkpoint of the Trainer's class added could not be added "
                    "to its manifest: %s. They are kept, and not verified.",
                    each.save.path,
                    error,
                )
        processes.barrier()
        for each in found:
            self._notify(each.save, is_whole)

    def _notify(self, save: Save, is_whole: bool = True) -> None:
        """Delete older checkpoints, unless the writer has done so or they may still be needed, and call on_save."""
        trainer = self.trainer
        if self.writes and save.rotates_in_main_thread and is_whole:
            try:
                trainer._rotate_checkpoints(use_mtime=False, output_dir=self.directory.display_path)
            except OSError as error:
                logger.error("%s is saved, but old checkpoints could not be deleted: %s.", save.target, error)
        trainer.control = trainer.callback_handler.call_event("on_save", trainer.args, save.state, trainer.control)
        self.directory.upload(save.path, save.state.best_model_checkpoint, is_whole)
        self.core.extensions.checkpoint_saved(save.state)

    def _on_failure(self, save: Save) -> None:
        """Called when a save has failed: if it was that of the best model, the previous one is the best that can be
        loaded."""
        if save.is_snapshot:
            return
        state = self.trainer.state
        self.failed_step = save.step
        if state.best_global_step == save.step:
            state.best_metric, state.best_global_step = save.best_before

    def _consequence(self, name: str) -> str:
        """What follows from a failed save, for its message; called in the thread that writes."""
        if name.startswith(_SNAPSHOT):
            return "Training continues; should it be killed, it is resumed from an older state."
        kept = f"{Path(self.last_saved).name} is unaffected. " if self.last_saved else ""
        return kept + ("It was the last save." if self.run.plan.is_over(int(name.rpartition("-")[2])) else _GOES_ON)

    # -- a run whose last save has failed

    def report_unsaved(self) -> None:
        """At the end of a run: if its last save has failed, the model is in memory alone, unless save_model has written
        that of the last step."""
        if self._model_saved_at == self.trainer.state.global_step:
            self.failed_step = None
        if self.failed_step is None or not self.writes:
            return
        last = f"those after {Path(self.last_saved).name}" if self.last_saved else "all of them"
        logger.error(
            "The last save has failed: of the %d steps of this run, %s are on no disk. The trained model is in memory: "
            "trainer.save_model(DIR) saves it, on another disk if need be. Otherwise the exit status of this process "
            "will be %d.",
            self.trainer.state.global_step,
            last,
            unsaved.STATUS,
        )
        unsaved.add(self.trainer)

    def mark_saved(self, folder: Any = None) -> None:
        """The model has been saved, in a checkpoint or in a directory."""
        if folder is not None and self.trainer.is_in_train:  # more steps may follow
            self._model_saved_at = self.trainer.state.global_step
            return
        if folder is not None and self.failed_step is not None:
            self.run.events.add("model_saved", to=str(folder))
        self.failed_step = None
        unsaved.remove(self.trainer)

    def rotate(self) -> None:
        """Delete what the last checkpoint supersedes."""
        if self.last_saved is not None:
            best, needed = self.trainer.state.best_model_checkpoint, self.run.parts.checkpoints_to_keep()
            self.directory.delete_superseded(self.last_saved, best, needed)

    # -- saves in progress

    @property
    def in_background(self) -> bool:
        """Whether training continues while a save is written. An override of _save_checkpoint expects the checkpoint
        when oneloop's returns; a callback may expect on_save before the next step."""
        trainer = self.trainer
        if not trainer.args.save_async or is_overridden(trainer, "_save_checkpoint"):
            return False
        # Where all processes write, each has to give the same answer, and callbacks may be those of one process.
        if self.core.strategy.is_sharded or not self.core.behaviour.on_save_before_next_step:
            return True
        return not any(class_overrides(type(each), "on_save") for each in trainer.callback_handler.callbacks)

    def _is_in_background(self, save: Save) -> bool:
        """Nobody is told of a snapshot."""
        return self.trainer.args.save_async if save.is_snapshot else self.in_background

    def finalize_completed(self) -> None:
        """Call on_save for every save that was committed since the last call. A collective on several processes, so
        that all call it at the same step."""
        messages = self.writer.end()
        if messages and self.trainer.args.nonfinite == "stop":
            raise NonFiniteError(
                f"{messages[0]}, so this step is not saved. Last checkpoint: {self.last_saved or 'none in this run'}. "
                "Lower the learning rate, or use debug='underflow_overflow' to find the layer."
            )

    def wait(self, what: str | None = None) -> None:
        """Block until nothing is being written; errors of the background thread are raised here."""
        self.writer.wait(what)
        self.finalize_completed()
        if self.open_checkpoints:
            self.notify_saved()

    # -- a resumed run

    def keep_source(self, checkpoint: Checkpoint | None) -> None:
        """Keep the checkpoint that was found and verified, until the run has begun."""
        self._source = checkpoint

    def open(self, path: str | Path) -> Checkpoint:
        """A checkpoint; the one that the run is resumed from is not read again."""
        source, path = self._source, self.directory.resolve(path)
        return source if source is not None and self.directory.resolve(source.path) == path else Checkpoint(path)

    def mark_resumed(self, path: Path) -> Checkpoint:
        """Called when a run is resumed from this checkpoint, which has been verified."""
        self.last_saved = str(path)
        if self._source is None or self._source.path != path:  # the main process has found it
            self._source = Checkpoint(path)
        return self._source

    def cleanup_after_resume(self, checkpoint: Checkpoint) -> None:
        """Delete what a run did not delete because it died right after its last save."""
        trainer, path = self.trainer, checkpoint.path
        if self.writes:
            best, needed = trainer.state.best_model_checkpoint, self.run.parts.checkpoints_to_keep()
            self.directory.delete_superseded(str(path), best, needed, checkpoint)
        self.directory.upload(path, trainer.state.best_model_checkpoint, is_whole=True)

    def undo_after(self, step: int) -> None:
        """The run returns to this step: delete its later checkpoints, which a resume would take for the newest. A
        collective."""
        self.core.processes.run_on_main(lambda: self._delete_later(step), "deleting later checkpoints")

    def _delete_later(self, step: int) -> None:
        self.directory.delete_later(step)
        self.snapshots.remove_after(step)
