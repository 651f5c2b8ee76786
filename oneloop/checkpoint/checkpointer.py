"""Checkpoints of a run, from the request until they are complete.

Training blocks while tensors are copied into host buffers (a host sync). Files are written in the background; the
manifest is written last and commits the checkpoint. The main thread calls `on_save` after the commit.
"""

import copy
import errno
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..compat import mode, trl_state
from ..compat.introspect import class_overrides, is_overridden
from ..data.streams import properties as stream_properties
from ..errors import NonFiniteError
from ..state import has_state, states_by_class
from . import sharded, store
from .async_writer import Saver
from .contents import Contents, room_for
from .copies import Buffers
from .durable import native_errors
from .model_files import ModelFiles
from .output_directory import OutputDirectory
from .overrides import Gathered, SaveOverrides
from .run_state import OPTIMIZER, RANDOM, RUN, STATE, RunState
from .safetensors_io import from_numpy
from .structure import AVERAGE

if TYPE_CHECKING:
    from ..trainer.internals import Internals
    from ..trainer.run import Run

logger = logging.getLogger(__name__)

# Arguments that change how a run continues, in addition to those in run_properties.
_ARGUMENTS = (
    *("adam_beta1", "adam_beta2", "adam_epsilon", "optim_args", "lr_scheduler_kwargs", "warmup_steps", "warmup_ratio"),
    *("label_smoothing_factor", "neftune_noise_alpha", "bf16", "fp16", "fp16_opt_level", "dataloader_drop_last"),
)


@dataclass(frozen=True)
class Save:
    """One save, with the state at its request."""

    target: str  # its path as in the arguments, for the state and messages
    path: Path
    run_id: str
    reason: str
    state: Any
    best_before: tuple[Any, Any]

    @property
    def step(self) -> int:
        return self.state.global_step

    @property
    def best(self) -> str | None:
        return self.state.best_model_checkpoint


@dataclass
class BestModel:
    """How the evaluation of this step affects saving."""

    is_new: bool = False  # it is better than all previous ones
    asks_for_save: bool = False  # saved only because it is the best: save_steps does not include this step
    before: tuple[Any, Any] = (None, None)  # the previous best metric and its step

    def found(self, before: tuple[Any, Any]) -> None:
        self.is_new, self.before = True, before

    def ask_for_save(self, alone: bool) -> None:
        """`alone`: nothing else asks for a save at this step."""
        self.asks_for_save = alone

    def end_of_step(self) -> None:
        self.is_new = self.asks_for_save = False


class Checkpointer:
    """Created for each run."""

    def __init__(self, run: "Run") -> None:
        self.run = run
        self.best = BestModel()
        self.directory = OutputDirectory(run)
        self.model_files = ModelFiles(run.core)
        self.overrides = SaveOverrides(run.core)
        self.last_saved: str | None = None
        self.waiting = sharded.Waiting()
        self._writer = Saver(run.events.add)
        self._buffers = Buffers()
        # What to do when a save has succeeded or failed, for each save without a result; and results that the main
        # process has not broadcast to the others.
        self._awaited: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self._outcomes: list[bool | str] = []  # a message if the model's values were the reason of a failure
        self._is_told = False  # a save has ended in one process, and the result is about to be broadcast

    @property
    def core(self) -> "Internals":
        return self.run.core

    # -- one save

    def request(self) -> None:
        """Save at a step, through the method of the Trainer that may be overridden."""
        trainer, failures = self.core.trainer, self._writer.failures
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
            if self._writer.failures == failures:
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
                gathered = self._gather(parts is not None, stage or save.path)
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
        return Save(target, path, self.run.id, reason, state, self.best.before)

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
        """Delete older checkpoints, unless the writer has done so or they may still be needed, call on_save and push to
        the Hub."""
        trainer = self.core.trainer
        if trainer.args.should_save and self._rotates_late and is_whole:
            try:
                trainer._rotate_checkpoints(use_mtime=False, output_dir=self.directory.shown)
            except OSError as error:
                logger.error("%s is saved, but old checkpoints could not be deleted: %s.", save.target, error)
        trainer.control = trainer.callback_handler.call_event("on_save", trainer.args, save.state, trainer.control)
        self.directory.storage.upload(save.path, save.best, is_whole)
        self.core.hub.checkpoint_saved(save.state)

    def _forget_best(self, save: Save) -> None:
        """Called when the best model could not be saved: the previous one is the best that can be loaded."""
        state = self.core.trainer.state
        if state.best_global_step == save.step:
            state.best_metric, state.best_global_step = save.best_before

    def _commit(self, save: Save, stage: Path, facts: dict[str, Any], parts: sharded.Parts | None = None) -> None:
        generation, given = self.directory.generation, {} if parts is None else {"publish": parts.publish}
        store.commit(stage, save.step, save.run_id, save.reason, facts, self.overrides.add_files, generation, **given)
        if not self._rotates_late:
            self.delete_superseded(save.target, save.run_id, save.best)

    @property
    def _rotates_late(self) -> bool:
        """Whether older checkpoints are deleted in the main thread: overrides may have to add files first, or do it."""
        return self.overrides.add_files or is_overridden(self.core.trainer, "_rotate_checkpoints")

    def rotate(self) -> None:
        """Delete what the last checkpoint supersedes."""
        if self.last_saved is not None:
            self.delete_superseded(self.last_saved, self.run.id, self.core.trainer.state.best_model_checkpoint)

    def delete_superseded(self, newest: str, run_id: str, best: str | None) -> None:
        """Delete checkpoints that are neither among the newest nor the best, after a newer one is complete."""
        parent, limit = self.directory.path, self.core.trainer.args.save_total_limit
        best = None if best is None else str(self.directory.resolve(best))
        newest = str(self.directory.resolve(newest))
        try:
            store.forget_superseded(parent, run_id, best, self._not_deleted)
            store.rotate(parent, run_id, limit, {newest, best or newest}, self._not_deleted)
        except OSError as error:
            logger.error("%s is saved, but old checkpoints could not be deleted: %s.", newest, error)

    def _not_deleted(self, path: Path, error: OSError) -> None:
        if self.run.events.first_time("not deleted", path.name):
            logger.warning(
                "%s could not be deleted, and still takes up space: %s. Remove it by hand, or change its permissions. "
                "New checkpoints are not affected.",
                path,
                error,
            )

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
        ends: Any,
        stage: Path | None,
        parts: sharded.Parts | None = None,
    ) -> None:
        """The disk has failed before a save could be passed to the writer, or the model is not finite."""
        if parts is not None:
            parts.close()
        if not self.core.trainer.args.should_save:
            self._awaited.append(ends)
            self.tell()
            return
        if stage is not None:
            store.discard(stage)
        self._writer.refused(error, save.target)
        self._awaited.append((_nothing, _nothing))
        self._outcomes.append(self._writer.take_message() or False)
        self._forget_best(save)
        if self.core.processes.size > 1:
            self.tell()

    def _save_whole(self, save: Save, gathered: Gathered | None, ends: Any, stage: Path | None) -> None:
        """Written by one process; the others contribute their state and receive the result."""
        core = self.core
        with self.model_files.whole_model():
            if not core.trainer.args.should_save:
                self._awaited.append(ends)
                self.tell()
                return
            try:
                stage = stage or self._open_stage(save.step)
                contents = self._contents(stage, save.state, gathered)
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

        self._submit(job, ends, save.step, self._in_background)
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

    def _save_sharded(self, save: Save, parts: sharded.Parts, gathered: Gathered | None, ends: Any) -> None:
        core, stage = self.core, parts.stage
        processes, args = core.processes, core.trainer.args
        contents, error = Contents(), None
        with self.model_files.model_part():
            try:
                if processes.is_main:
                    contents = self._contents(stage, save.state, gathered)
                else:
                    contents = self._own_contents(gathered)
            except OSError as raised:  # the others go on to the next collective
                error = raised
        if self._any_failed(error):
            self._refused(error or _failed_elsewhere(save.target), save, ends, stage, parts)
            return
        size = sharded.number_files(contents, processes)
        check = self.model_files.finite_values.checking(contents, Path(save.target).name)
        if not processes.is_main:
            self._awaited.append(ends)
            part = partial(sharded.write_part, parts, processes.rank, contents, size, check)
            self._writer.submit(part, _nothing, self.waiting.fail, True, f"{store.PREFIX}-{save.step}")
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
                    sharded.let_finish(parts, others, self.waiting)
                    raise
                facts |= sharded.collect(parts, others, args.ddp_timeout, self.waiting)
                self._commit(save, stage, facts, parts)
            except BaseException:
                parts.give_up(others)
                store.discard(stage)
                raise

        self.waiting = sharded.Waiting()
        self._submit(job, ends, save.step, background=True)
        self._end_of_parts()

    def _end_of_parts(self) -> None:
        """After a save of all processes was passed to their writers: wait for it unless it is in the background. A
        collective."""
        if not self._in_background:
            self._wait_for_writer()
        self.tell()

    def _wait_for_writer(self, what: str | None = None) -> None:
        """If all processes write, the others wait first: the main process would wait for what a failed one has not
        written. A collective then."""
        processes = self.core.processes
        if processes.size > 1 and self.core.strategy.in_parts:
            if not processes.is_main:
                self._writer.wait(what)
                self._tell_own()
            self.waiting.share(processes)
        self._writer.wait(what)

    # -- its contents

    def _copies(self, tensors: dict[str, Any]) -> dict[str, Any]:
        return self._buffers.copy(tensors, self.core.backend.weights.copy_to)

    def _contents(self, stage: Path, state: Any, gathered: Gathered | None) -> Contents:
        contents, files, models = Contents(), self.model_files, self.core.backend.models
        if not files.as_built or models.is_adapter(models.unwrap(self.core.trainer.model)):
            self.model_files.finite_values.check_model(f"{store.PREFIX}-{state.global_step}")
        if files.as_built:
            files.add_model(contents, stage, self._copies)
        else:
            files.save_quietly(str(stage))  # an override may write anything
        if gathered is not None:
            self._add_optimizer(contents, gathered)
            self._add_average(contents)
            streams = {name: from_numpy(array.copy()) for name, array in gathered.stored_streams().items()}
            contents.tensors[RANDOM] = (streams, {})
            contents.add_json(RUN, self._run_state(gathered).to_json())
        contents.texts[STATE] = self.run.events.history.to_json(state).encode()
        return contents

    def _own_contents(self, gathered: Gathered | None) -> Contents:
        """What a process writes that does not commit."""
        contents, models = Contents(), self.core.backend.models
        if not models.is_adapter(models.unwrap(self.core.trainer.model)):
            self.model_files.add_weights(contents, self._copies)
        if gathered is not None:
            self._add_optimizer(contents, gathered)
        return contents

    def _add_optimizer(self, contents: Contents, gathered: Gathered) -> None:
        weights = self.core.backend.weights
        tensors, data = gathered.optimizer
        if not data:  # an override has stored it
            return
        tensors = {f"optimizer/{name}": t for name, t in tensors.items()}
        if self._can_be_late(tensors):
            copies = self._buffers.copy_late(tensors, weights, self.core.backend.tensors.version)
            contents.late = self._buffers.late
        else:
            copies = self._copies(tensors)
        raws = {name.removeprefix("optimizer/"): weights.raw(value) for name, value in copies.items()}
        contents.tensors[OPTIMIZER] = (raws, {"format": weights.LAYOUT})

    def _can_be_late(self, tensors: dict[str, Any]) -> bool:
        """Whether the optimizer's state may be copied while the gradients of the next update are computed: its step
        waits for the copies, and so does every callback."""
        core = self.core
        size = sum(getattr(tensor, "nbytes", 0) for tensor in tensors.values())  # of any backend, and its numbers too
        return (
            self._in_background
            and self._buffers.is_worth_a_thread(size)
            and core.backend.optimizers.before_next_step(core.trainer.optimizer, self._buffers.end_late)
        )

    def end_copies(self) -> None:
        """Called before code of the user runs that may change what is being copied."""
        self._buffers.end_late()

    def _add_average(self, contents: Contents) -> None:
        weights, values = self.core.backend.weights, self.run.update.modes.average.named_values()
        if values:
            copies = self._copies({f"average/{name}": value for name, value in values.items()})
            raws = {name.removeprefix("average/"): weights.raw(value) for name, value in copies.items()}
            contents.tensors[AVERAGE] = (raws, {"format": weights.LAYOUT})

    def _gather(self, is_sharded: bool, output_dir: Path) -> Gathered:
        """A collective on several processes: gather the RNG and data states of each, and the optimizer's state."""
        core, epochs = self.core, self.run.epochs
        attributes, tensors = trl_state.collect(core)
        streams = epochs.random_state() | tensors
        position = replace(self.run.position_state(), trainer=attributes)
        own = (streams, position.own_states())
        everywhere = core.trainer.args.save_on_each_node
        every = core.processes.all_gather_object(own) if everywhere else core.processes.gather_object(own)
        if every is not None:
            for rank, (more, _) in enumerate(every[1:], 1):
                streams |= {f"rank{rank}/{name}": array for name, array in more.items()}
            position = replace(position, ranks=[states for _, states in every[1:]])
        gathered = Gathered(streams, position, is_sharded)
        error = None
        try:
            with native_errors():
                self.overrides.gather_parts(gathered, output_dir)
        except OSError as raised:
            error = raised
        # Each process may have written files, so all wait for each other.
        if self.overrides.write_parts and self._any_failed(error):
            raise error or _failed_elsewhere(str(output_dir))
        return gathered

    def _any_failed(self, error: OSError | None) -> bool:
        """Whether the disk has failed in any process. A collective on several processes."""
        return any(failed for (failed,) in self.core.processes.all_gather([error is not None]))

    def _run_state(self, gathered: Gathered) -> RunState:
        core, meter, update = self.core, self.run.meter, self.run.update
        layout = core.backend.framework_layout.layout(core.trainer.model)
        norm = core.engine.grad_norm()
        return RunState(
            run_id=self.run.id,
            framework=core.backend.NAME,
            optimizer=gathered.optimizer[1],
            scheduler=gathered.scheduler,
            engine=core.engine.state() | ({} if gathered.has_scaler else {"scaler": None}),
            losses=meter.losses.state(),
            work=meter.work.state(),
            position=gathered.position,
            properties=run_properties(self.run),
            layout={name: [place.name, place.axes] for name, place in layout.items()},
            measured={
                "strategy": core.strategy.state(),
                # Of the last step, in case the end of the epoch logs it; it may be infinite, which JSON does not
                # support.
                "grad_norm": None if norm is None else norm.hex(),
                "learning_rate": update.last_rate,
                "split": update.split,
                **update.modes.average.state(),
                **({} if self.run.plan.cooldown is None else {"cooldown": self.run.plan.cooldown.state()}),
            }
            | ({} if meter.sources is None else {"sources": meter.sources.state()})
            | meter.spikes.state(),
        )

    def reserve_memory(self) -> None:
        """Reserve memory for the copies of the first save, once the optimizer has its state; later saves reuse it."""
        if self._buffers.is_prepared:
            return
        self._buffers.is_prepared = True
        core = self.core
        args, weights, state = core.trainer.args, core.backend.weights, core.trainer.state
        one_writer = core.processes.size == 1 and self.model_files.as_built
        if args.save_strategy == "no" or not args.save_async or not one_writer:
            return
        if args.save_strategy == "steps" and 0 < state.max_steps < state.save_steps:
            return
        model = core.backend.models.unwrap(core.trainer.model)
        tensors: dict[str, Any] = {}
        if not core.backend.models.is_adapter(model):
            tensors |= {f"model/{name}": t for name, t in weights.model_tensors(model)[0].items()}
        if not args.save_only_model:
            found, _ = core.strategy.optimizer_state(core.trainer.optimizer, core.trainer.model)
            tensors |= {f"optimizer/{name}": t for name, t in found.items()}
        self._buffers.prepare({name: weights.room(t) for name, t in tensors.items()}, weights.raw)

    # -- saves in progress

    def _submit(self, job: Any, ends: tuple[Any, Any], step: int, background: bool) -> None:
        """Pass a save to the writer; its result is kept for tell()."""

        def ended(well: bool) -> None:
            self._outcomes.append(well or self._writer.take_message() or False)

        self._awaited.append(ends)
        what = f"{store.PREFIX}-{step}"
        self._writer.submit(job, partial(ended, True), partial(ended, False), background, what)

    @property
    def _in_background(self) -> bool:
        """An override of _save_checkpoint expects the checkpoint when oneloop's returns; a callback in a script of
        transformers expects on_save before the next step."""
        if not self.core.trainer.args.save_async or self.overrides.add_files:
            return False
        # Where all processes write, each has to give the same answer, and callbacks may be those of one process.
        may_differ = self.core.strategy.in_parts
        return may_differ or not (mode.follows("transformers") and self._has_listeners)

    @property
    def _has_listeners(self) -> bool:
        """Whether a callback that is not oneloop's has an on_save."""
        return any(class_overrides(type(each), "on_save") for each in self.core.trainer.callback_handler.callbacks)

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

    def expect_news(self) -> None:
        """Called when another process reports that a save has ended."""
        self._is_told = True

    def tell_if_ended(self) -> None:
        """Call on_save for saves that have ended, if all processes know that there is one."""
        if self.has_news if self.core.processes.size == 1 else self._is_told:
            self.tell()

    def tell(self) -> None:
        """Call on_save for every save that was committed since the last call. A collective on several processes, so
        that all call it at the same step."""
        self._tell_own()
        own, self._outcomes, self._is_told = self._outcomes, [], False
        # Broadcast before on_save is called anywhere: a callback may wait for all processes, as ray.train.report does.
        outcomes = self.core.processes.broadcast_object(own) if self.core.processes.size > 1 else own
        self._end_saves(own if self.core.trainer.args.should_save else outcomes)
        messages = [each for each in outcomes if isinstance(each, str)]
        if messages and self.core.trainer.args.nonfinite == "stop":
            raise NonFiniteError(
                f"{messages[0]}, so this step is not saved. Last checkpoint: {self.last_saved or 'none in this run'}. "
                "Lower the learning rate, or use debug='underflow_overflow' to find the layer."
            )

    def _tell_own(self) -> None:
        """Collect the results of the saves that this process has written."""
        for then in self._writer.poll():
            then()

    def _end_saves(self, outcomes: list[bool | str]) -> None:
        for well in outcomes:
            then, otherwise = self._awaited.pop(0)
            (then if well is True else otherwise)()

    def _end_own(self) -> None:
        """What tell() does, in a process that writes and without communication."""
        self._tell_own()
        own, self._outcomes = self._outcomes, []
        if self.core.trainer.args.should_save:
            self._end_saves(own)

    def wait(self, what: str | None = None) -> None:
        """Block until nothing is being written; errors of the background thread are raised here."""
        self._wait_for_writer(what)
        self.tell()
        self.announce()

    def finish(self) -> None:
        """When the run ends, wait for a save in progress. Its error is logged, so that it does not hide another."""
        self._writer.settle(self._end_own)

    def found(self, path: Path) -> None:
        """Called when a run is resumed from this checkpoint, which has been verified."""
        self.last_saved = str(path)

    def resumed_from(self, path: Path) -> None:
        """Delete what a run did not delete because it died right after its last save."""
        trainer = self.core.trainer
        if trainer.args.should_save:
            self.delete_superseded(str(path), self.run.id, trainer.state.best_model_checkpoint)
        self.directory.storage.resumed_from(path, trainer.state.best_model_checkpoint)


def _nothing() -> None:
    pass


def _failed_elsewhere(path: str) -> OSError:
    return OSError(errno.EIO, "another process cannot write", path)


def run_properties(run: "Run") -> dict[str, Any]:
    """What should be the same in a resumed run."""
    plan, args = run.plan, run.core.trainer.args
    chosen = {} if args.data_order == "oneloop" else {"data_order": args.data_order}
    if run.update.modes.average.kind is not None:
        chosen = chosen | {name: getattr(args, name) for name in ("ema_decay", "swa_start", "averaging_steps")}
    if plan.cooldown is not None:
        chosen = chosen | {"cooldown_steps": args.cooldown_steps, "cooldown_type": args.cooldown_type}
    if args.loss_spike == "rollback":
        names = ("loss_spike", "loss_spike_threshold", "loss_spike_window", "loss_spike_skip_steps")
        chosen = chosen | {name: getattr(args, name) for name in names}
    if args.stream_sharding != "samples":
        chosen = chosen | {"stream_sharding": args.stream_sharding}
    return (
        chosen
        | stream_properties(run.core.trainer.train_dataset)
        | {
            "samples": plan.samples,
            "samples_per_step": plan.samples_per_step,
            "processes": args.world_size,
            "accumulation": plan.accumulation,
            "max_steps": plan.max_steps,
            "seed": args.seed,
            "data_seed": run.core.data_seed,
            "sampling": str(args.train_sampling_strategy),
            "learning_rate": args.learning_rate,
            "lr_scheduler_type": str(args.lr_scheduler_type),
            "weight_decay": args.weight_decay,
            "max_grad_norm": args.max_grad_norm,
            "optim": str(args.optim),
            "workers": args.dataloader_num_workers > 0,
        }
        | {name: _plain(getattr(args, name)) for name in _ARGUMENTS}
    )


def callback_states(trainer: Any) -> dict[str, Any]:
    """The states of the control and of the callbacks that have one, by class; a list for several of a class."""
    stateful = [callback for callback in trainer.callback_handler.callbacks if has_state(callback)]
    return states_by_class([trainer.control, *stateful])


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, float, str, bool, dict, list, type(None))) else str(value)
