"""One run: the objects that train() creates, and what it does before and after the loop. For the vocabulary, see
trainer/__init__.py."""

import contextlib
import logging
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import loop
from ..callbacks import EarlyStoppingCallback, tell
from ..checkpoint import resume, saved_model, store
from ..checkpoint.capture import callback_states
from ..checkpoint.checkpointer import Checkpointer
from ..checkpoint.model_files import check_writable
from ..checkpoint.reader import Checkpoint
from ..checkpoint.run_state import PositionState
from ..data.batch_sizes import loader_rows
from ..distributed.step_sync import StepSync
from ..errors import ArgumentError, CheckpointError, DataError, EvaluationInterrupted, ModelError
from ..optim.cooldown import Cooldown, cooldown_of
from ..optim.scheduler import Scheduler
from ..optim.schedules import follows_metric
from ..outputs import TrainOutput
from ..state import TrainerControl, TrainerState
from ..steps import Position, StepPlan, plan_steps
from . import agreement, batch_costs, dataloaders, profiling, unused_arguments
from .chunked_loss import ChunkedLoss
from .epochs import Epochs, start_batch_streams
from .events import RunEvents
from .logged_metrics import LoggedMetrics
from .loss import LossContract
from .meter import Meter, speed_metrics
from .modes import Modes
from .output_streams import surviving
from .part import Hooks, Parts, Restart, RunContext, registered
from .parts import BUILT_IN
from .step_end import StepEnd
from .update import Update
from .worker_seeds import WorkerSeeds

if TYPE_CHECKING:
    from .core import Core

logger = logging.getLogger(__name__)


class Run:
    """Created for each train(); a Trainer that has not trained has one that has not started.

    Each of its attributes owns a part of the state of the run and accesses the others through it. The loop (loop.py)
    calls them.
    """

    plan: StepPlan  # number of steps and epochs; set when train() has created the loader

    def __init__(self, core: "Core", restart: Restart | None = None) -> None:
        self.core, self.trainer = core, core.trainer
        args = self.trainer.args
        self.restart = restart  # what it takes over from the run before, if a part of that has asked for this one
        self.id = store.new_run_id()
        self.batch_size = args.train_batch_size  # samples in a micro-batch of one process
        self.accumulation = args.gradient_accumulation_steps  # micro-batches in an update
        self.position = Position()
        self.events = RunEvents(self)
        self.context = RunContext(self)
        self.parts = Parts()
        self.hooks = Hooks()  # those of the parts, once training starts
        self.skipped_steps: frozenset[int] = frozenset()  # likewise: those without an update
        self._is_silent = False  # an update is computed again: callbacks are not called
        for kind in (*BUILT_IN, *registered()):
            self.parts.add(kind(self.context))
        self.meter = self.parts.of(Meter)
        self.logged_metrics = self.parts.of(LoggedMetrics)
        self.chunked = self.parts.of(ChunkedLoss)
        self.losses = self.meter.losses
        self.seeds = self.parts.of(WorkerSeeds)
        self.modes = Modes(core)
        self.contract = LossContract.of(core)
        self.update = Update(self)
        self.parts.add(self.update)
        self.sync = StepSync(self)
        self.epochs = Epochs(self)
        self.checkpointer = Checkpointer(self)
        self.directory = self.checkpointer.directory
        self.step_end = StepEnd(self)

    @property
    def output_dir(self) -> Path:
        """Where this run writes; of a run on object storage, its copy on this disk."""
        return self.directory.path

    # -- what its attributes may change

    def set_run_id(self, run_id: str, parent_id: str | None = None) -> None:
        """The id of the run that is resumed, or a new one for a run that is branched from it."""
        self.id = run_id
        self.events.branched_off(parent_id)

    def set_accumulation(self, steps: int) -> None:
        """Keep the number of samples in an update on a different number of processes."""
        self.accumulation = steps
        self.update.accumulates(steps)

    def set_batch_size(self, per_process: int) -> None:
        self.batch_size = per_process

    # -- called by the loop

    def call(self, event: str, **more: Any) -> None:
        """Call the callbacks for one of the events of the loop."""
        trainer = self.trainer
        handler = trainer.callback_handler
        if event in handler.active and not self._is_silent:
            trainer.control = getattr(handler, event)(trainer.args, trainer.state, trainer.control, **more)

    @contextlib.contextmanager
    def with_hooks(self, hooks: Hooks) -> Iterator[None]:
        """A context with other hooks than those of the parts, and without callbacks."""
        before, self.hooks, self._is_silent = self.hooks, hooks, True
        try:
            yield
        finally:
            self.hooks, self._is_silent = before, False

    @property
    def is_over(self) -> bool:
        """Whether the last step is done, or a callback has stopped the run."""
        trainer = self.trainer
        return trainer.control.should_training_stop or self.plan.is_over(trainer.state.global_step)

    def handle_empty_epoch(self) -> None:
        """The data yielded no batch: an exhausted iterable ends the run, with a warning."""
        trainer = self.trainer
        if trainer.state.global_step == 0:
            raise DataError("the training data yielded no batch. Pass data with at least one sample.")
        logger.warning(
            "The training data is exhausted after %d steps (max_steps is %s); the run ends here. For more epochs, "
            "pass an iterable dataset that can be iterated again.",
            trainer.state.global_step,
            trainer.state.max_steps,
        )
        trainer.control.should_training_stop = True

    # -- train()

    def find_checkpoint(self, wanted: Any) -> Path | None:
        """Check that the output directory is writable, remove the remains of interrupted saves; the checkpoint to
        resume."""
        args, directory = self.trainer.args, self.directory
        check_writable(args.output_dir)
        if args.save_strategy != "no" or args.load_best_model_at_end:
            directory.lock()
            self._remove_leftovers()
            self.checkpointer.snapshots.restore(wanted)
        elif directory.try_lock():
            self._remove_leftovers()
            directory.release()
        wanted, damaged = directory.fetch(wanted)
        found, passed_over = resume.find(wanted, args.output_dir)
        self.events.set_skipped_checkpoints(damaged + passed_over)
        self.checkpointer.keep_source(found)
        return None if found is None else found.path

    def _remove_leftovers(self) -> None:
        """Remove the remains of interrupted saves from the output directory."""
        folder = self.output_dir
        store.remove_leftovers(folder)
        try:
            saved_model.recover(folder)
        except (OSError, CheckpointError) as error:  # of no importance for this run
            logger.error("The model in %s could not be completed: %s.", folder, error)

    def train(self, path: Path | None, trial: Any, ignore_keys: list[str] | None) -> TrainOutput:
        """Train from the checkpoint, or from the start, to the end."""
        trainer = self.trainer
        self.step_end.start(ignore_keys)
        self.update.start()
        undo: list[Any] = []
        try:
            trainer.is_in_train = True
            self._add_hooks(undo)
            with surviving(self.events.output_lost), self.sync.watching(trainer.args.preemption_signals):
                try:
                    self._begin(None if path is None else self.checkpointer.mark_resumed(path), trial)
                    with self.core.engine.forward_context():
                        loop.run(self)
                        self.epochs.finish()
                except EvaluationInterrupted:  # of a callback, or the one before the first step
                    self.step_end.save_and_exit()
                output = self._end()
                self.step_end.exit_if_interrupted()
                return output
        except BaseException as error:
            self._fail_parts()
            self.checkpointer.writer.stop_waiting()
            self.events.end(error)
            raise
        finally:
            trainer.is_in_train = False
            self.update.stop()
            self.modes.restore()
            self.checkpointer.writer.drain()
            self.step_end.close_loaders()
            self.epochs.close()
            for remove in undo:
                remove()

    def _fail_parts(self) -> None:
        """After an error: what the parts write to explain it."""
        # On several processes a loss may depend on a process that has failed, and reading it would wait forever.
        if self.core.mesh.is_single:
            with contextlib.suppress(Exception):  # such as a device that has failed
                for part in self.parts:
                    part.fail_run()

    def _add_hooks(self, undo: list[Any]) -> None:
        """Hooks that are active during train(); adds to the list what removes them."""
        core, args = self.core, self.trainer.args
        model = core.trainer.model
        if args.neftune_noise_alpha is not None:
            undo.append(core.backend.models.add_embedding_noise(model, args.neftune_noise_alpha))
        if "underflow_overflow" in args.debug:
            undo.append(core.backend.nan_hooks.watch(model, lambda: core.trainer.state.global_step + 1))
        if args.profile and core.mesh.is_main:
            undo.append(profiling.attach(core))

    def _begin(self, checkpoint: Checkpoint | None, trial: Any) -> None:
        """Everything before the first step. The order matters: each part needs the one before it."""
        core, trainer = self.core, self.trainer
        if not core.mesh.is_single:
            agreement.check_arguments(core)
        late = checkpoint is not None and resume.loads_after_wrapping(core, checkpoint)
        if checkpoint is None:
            self._fresh_state()
        else:
            if not late:
                trainer._load_from_checkpoint(str(checkpoint.path))
            resume.load_state(trainer, checkpoint)
            resume.keep_global_batch(self, checkpoint)
        self.plan = self._plan_steps(self._cooldown(checkpoint))
        self.checkpointer.snapshots.check()
        for part in self.parts:
            part.plan_ready()
        self.checkpointer.model_files.begin()
        core.wrap_model()
        if checkpoint is not None and late:
            trainer._load_from_checkpoint(str(checkpoint.path))
        core.make_engine()
        self._make_optimizer()
        if not core.mesh.is_single:
            agreement.check_plan(self)
        for part in self.parts:
            part.model_ready()
        if checkpoint is None:
            start_batch_streams(core)
        else:
            self.position = resume.load_run(self, checkpoint)
            self.checkpointer.keep_source(None)
        self.id = core.processes.broadcast_object(self.id)
        self._announce(None if checkpoint is None else checkpoint.path)
        self._fill_state(trial)
        core.engine.clear()
        self.checkpointer.model_files.start()
        for part in self.parts:
            part.begin_run()
        self.parts.start()
        self.hooks = Hooks.of(self.parts)
        self.skipped_steps = frozenset(step for part in self.parts for step in part.skipped_steps)
        self.events.start(None if checkpoint is None else checkpoint.path)
        self.directory.start_uploads()
        self.checkpointer.snapshots.begin()
        trainer.callback_handler.refresh()
        trainer.control = TrainerControl()
        if checkpoint is None:
            trainer.state.stateful_callbacks = callback_states(trainer)
        self.call("on_train_begin")
        if trainer.args.eval_on_start and checkpoint is None:
            self.step_end.evaluate()
        control = trainer.control
        control.should_training_stop = control.should_training_stop or self._resumed_run_is_stopped
        self.epochs.do_pending()

    @property
    def _resumed_run_is_stopped(self) -> bool:
        """Whether a callback had stopped the run that is resumed. Where a stop is not final, such as for want of time,
        only early stopping's is."""
        callbacks = self.trainer.callback_handler.callbacks
        is_final = self.core.behaviour.stop_is_final or any(
            isinstance(each, EarlyStoppingCallback) for each in callbacks
        )
        return self.epochs.resume.stopped and is_final

    def _fresh_state(self) -> None:
        trainer = self.trainer
        trainer.state = TrainerState(
            is_local_process_zero=trainer.is_local_process_zero(), is_world_process_zero=trainer.is_world_process_zero()
        )
        if self.directory.has_checkpoints and not trainer.args.overwrite_output_dir:
            logger.warning(
                "%s contains checkpoints of an earlier run. This run starts from the beginning and keeps them, but "
                "replaces checkpoints of the same step. To resume from them, use resume_from_checkpoint=True.",
                trainer.args.output_url or trainer.args.output_dir,
            )

    def _cooldown(self, checkpoint: Checkpoint | None) -> Cooldown | None:
        state, args = self.trainer.state, self.trainer.args
        stored = None if checkpoint is None else checkpoint.run
        before = None if stored is None else stored.cooldown
        if before is not None and args.cooldown_steps is None:
            logger.warning(
                "%s was written by a run that decays the learning rate from step %d on (cooldown_steps), but "
                "cooldown_steps is not set: the schedule of the arguments is used.",
                checkpoint and checkpoint.path,
                before["start"],
            )
        by_metric = follows_metric(str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)))
        return cooldown_of(args, None if checkpoint is None else state.global_step, state.max_steps, before, by_metric)

    def _plan_steps(self, cooldown: Cooldown | None) -> StepPlan:
        """The number of steps and epochs; an error if the data and the arguments do not allow any step."""
        core, trainer = self.core, self.trainer
        args = trainer.args
        loader = trainer.get_train_dataloader()
        trainer.callback_handler.train_dataloader = loader
        batches = dataloaders.length_for_all(core, loader)
        if batches == 0:
            raise DataError("the training loader has no batches. Pass a train_dataset with at least one sample.")
        accumulation = self.accumulation
        per_epoch = None if batches is None else -(-batches // accumulation)
        max_steps, epochs = plan_steps(per_epoch, args, None if cooldown is None else cooldown.end)
        if max_steps == 0:
            raise ArgumentError(f"Invalid num_train_epochs={args.num_train_epochs}: expected a number above 0")
        samples = loader_rows(loader)
        if args.max_tokens_per_batch is not None:
            self.batch_size = batch_costs.mean_batch_size(loader)
        elif samples is not None and args.dataloader_drop_last and batches is not None:
            samples = min(samples, batches * self.batch_size * self.core.mesh.num_batches)
        return StepPlan(
            loader,
            accumulation,
            batches,
            max_steps,
            epochs,
            samples,
            samples_per_step=trainer.get_total_train_batch_size(args),
            batches_per_step=accumulation * self.core.mesh.num_batches,
            cooldown=cooldown,
            own_batch_size=getattr(loader, "own_batch_size", None),
        )

    def _make_optimizer(self) -> None:
        core, trainer = self.core, self.trainer
        trainer.create_optimizer_and_scheduler(num_training_steps=self.plan.schedule_steps)
        if trainer.optimizer is None or trainer.lr_scheduler is None:
            raise ModelError(
                "create_optimizer_and_scheduler (or an override of it) created no optimizer or no lr_scheduler; set "
                "self.optimizer and self.lr_scheduler"
            )
        if self.plan.cooldown is not None:
            if not isinstance(trainer.lr_scheduler, Scheduler):
                raise ArgumentError(
                    f"cooldown_steps={trainer.args.cooldown_steps} changes the schedule of lr_scheduler_type, but the "
                    f"run has its own {type(trainer.lr_scheduler).__name__}. Remove cooldown_steps, or the schedule."
                )
            trainer.lr_scheduler.follow(self.plan.cooldown.follow)
        core.user_optimizers.use()
        trainer.optimizer = core.strategy.prepare_optimizer(trainer.optimizer)
        trainer.model_wrapped = core.strategy.with_optimizer(trainer.model_wrapped)
        core.backend.optimizers.attach(trainer.optimizer, trainer.lr_scheduler)
        self.update.check_optimizer_parameters(trainer.optimizer)
        core.engine.include(trainer.optimizer)
        self.step_end.set_scheduler(trainer.lr_scheduler)
        trainer.callback_handler.optimizer = trainer.optimizer
        trainer.callback_handler.lr_scheduler = trainer.lr_scheduler

    def _fill_state(self, trial: Any) -> None:
        plan, state = self.plan, self.trainer.state
        state.max_steps = plan.max_steps
        state.num_train_epochs = plan.epochs if plan.epochs < 2**62 else 1
        state.train_batch_size = self.batch_size
        state.compute_steps(self.trainer.args, plan.max_steps)
        state.is_hyper_param_search = trial is not None
        running = self.core.extensions.trial
        if running is not None:
            state.trial_name, state.trial_params = running.name, running.params
        if state.epoch is None:
            state.epoch = 0.0

    def _announce(self, checkpoint: Path | None) -> None:
        plan, trainer = self.plan, self.trainer
        text = (
            f"Training {type(trainer.model).__name__}, {trainer.get_num_trainable_parameters():,} parameters on "
            f"{trainer.args.device}: "
            f"{'an unknown number of' if plan.samples is None else plan.samples} samples, {plan.samples_per_step} per "
            f"update ({self._micro_batches} accumulated), "
            f"{plan.max_steps if plan.max_steps > 0 else 'an unknown number of'} steps"
            + ("" if checkpoint is None else f", resuming from {checkpoint} at step {trainer.state.global_step}")
        )
        if self.core.mesh.is_main:
            tell(trainer.args, logger, f"{text}.")
            if trainer.args.should_save:
                place = shlex.quote(str(trainer.args.output_url or self.directory.display_path))
                tell(trainer.args, logger, f"Its page: oneloop watch {place}, and at the end oneloop report {place}.")
            if checkpoint is not None and self.is_over:
                tell(trainer.args, logger, "The run was finished there: nothing is left to train.")
            computes = trainer.compute_metrics is not None
            unused_arguments.warn_unused(trainer.args, plan.max_steps, computes, self.contract.has_default_loss)

    @property
    def _micro_batches(self) -> str:
        budget, count = self.trainer.args.max_tokens_per_batch, f"{self.batch_size} x {self.plan.accumulation}"
        return count if budget is None else f"on average {count} in up to {budget} tokens"

    def _end(self) -> TrainOutput:
        """After the last step: pending checks on the device, the best model, and the metrics of the whole run."""
        core, trainer, plan = self.core, self.trainer, self.plan
        args, state = trainer.args, trainer.state
        for part in self.parts.having("check_pending"):
            part.check_pending()
        self.checkpointer.wait()
        for part in self.parts:
            part.end_run()
        self.modes.finish()
        if args.load_best_model_at_end:
            trainer._load_best_model()
        trainer.store_flos()
        steps = state.global_step - self.meter.first_step
        samples = steps * plan.rows_per_step
        if plan.samples is not None and plan.steps_per_epoch:
            whole, rest = divmod(steps, plan.steps_per_epoch)
            samples = whole * plan.samples + rest * plan.rows_per_step
        tokens = state.num_input_tokens_seen if args.include_tokens_per_second else None
        metrics: dict[str, Any] = speed_metrics("train", self.meter.started, samples, steps, tokens)
        metrics["total_flos"] = state.total_flos
        metrics["train_loss"] = self.losses.average()
        if core.engine.skipped:
            metrics["skipped_steps"] = core.engine.skipped
        trainer.is_in_train = False
        core.memory.stop("train", core.backend, args.device, metrics)
        metrics.update(core.memory.of_init)
        trainer.log(metrics)
        self.checkpointer.report_unsaved()
        if core.mesh.is_main:
            self.checkpointer.snapshots.remove()
        self.events.end()
        with self.checkpointer.model_files.saving_for_callbacks():
            self.call("on_train_end")
        core.extensions.run_ended()
        return TrainOutput(state.global_step, metrics["train_loss"], metrics)

    # -- what a checkpoint stores of it

    def position_state(self) -> PositionState:
        control, position = self.trainer.control, self.position
        return PositionState(
            epoch=position.epoch,
            step_in_epoch=position.step_in_epoch,
            epoch_ended=position.epoch_ended,
            # A run that a callback stopped stays stopped; one that reached its last step can be resumed with a larger
            # max_steps.
            stopped=control.should_training_stop and not self.plan.is_over(self.trainer.state.global_step),
            epoch_stopped=control.should_epoch_stop or position.epoch_stopped,
            # What the interruption by a signal postponed at this step, and the save that is to contain it.
            pending={name: getattr(control, name) for name in ("should_log", "should_evaluate")}
            | ({"should_save": True} if control.should_save else {}),
            **self.epochs.data_states(),
        )
