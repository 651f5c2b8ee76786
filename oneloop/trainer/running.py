"""train(): from the arguments to the end of the run, around the loop."""

import logging
import threading
import time
from pathlib import Path
from typing import Any

from .. import loop, profiling
from ..checkpoint import store
from ..checkpoint.holding import Hold, take_for_saving
from ..checkpoint.saver import Buffers, Saver
from ..errors import ArgumentError, DataError
from ..evaluation import loader_rows
from ..measuring import LossMeter, speed_metrics
from ..outputs import TrainOutput
from ..preemption import Watch
from ..state import TrainerControl, TrainerState
from . import notices, setup
from .checks import has_length
from .model_files import check_writable
from .parts import TrainerParts
from .together import lost_processes

logger = logging.getLogger(__name__)


class TrainerRunning(TrainerParts):
    """One run: its plan, its beginning and its end."""

    def train(
        self,
        resume_from_checkpoint: Any = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
        **kwargs: Any,
    ) -> TrainOutput:
        """Train to the end; with resume_from_checkpoint (a path, or True for the newest), go on from there."""
        if "model_path" in kwargs:  # the spelling of transformers 3
            resume_from_checkpoint = kwargs.pop("model_path")
        if kwargs:
            raise ArgumentError(f"train() takes no {', '.join(kwargs)}")
        if resume_from_checkpoint is None:
            resume_from_checkpoint = self.args.resume_from_checkpoint
        self.args.validate()
        setup.bind(self.args, self.backend)
        with Hold() as hold:
            checkpoint = self.team.on_main(
                lambda: self._look_around(resume_from_checkpoint, hold), "looking for checkpoints"
            )
            return self._train_from(checkpoint, trial, ignore_keys_for_eval)

    def _train_from(self, checkpoint: Path | None, trial: Any, ignore_keys_for_eval: list[str] | None) -> TrainOutput:
        args = self.args
        if self.model_init is not None:
            self._renew_model(trial)
        self.memory.start("train", self.backend, args.device)
        self._reset_counters()
        self._ignore_keys_for_eval = ignore_keys_for_eval
        if self._optimizers_are_used:  # those of an earlier train(): a new run starts with new ones
            self.optimizer, self.lr_scheduler = self._given_optimizers
        self.is_in_train = True
        undo = self._before_training()
        try:
            with Watch(args.preemption_signals) as self._watch, lost_processes(self.team, self._watch):
                return self._train(checkpoint, trial)
        except BaseException as error:
            self._leaving.set()
            self._record_end(error)
            raise
        finally:
            self.is_in_train = False
            self._saver.settle(self._tell_own)
            if self._plan is not None:
                self.backend.loaders.close(self._plan.loader)
            for remove in undo:
                remove()

    def _look_around(self, resume_from_checkpoint: Any, hold: Hold) -> Path | None:
        """The output directory can be written, and is cleared of what dead saves left; the checkpoint to go on from."""
        folder = Path(self.args.output_dir)
        check_writable(folder)
        if self.args.save_strategy != "no" or self.args.load_best_model_at_end:
            take_for_saving(hold, folder)
            store.remove_leftovers(folder)
        elif hold.take(folder, patience=0):
            store.remove_leftovers(folder)
            hold.release()
        return self._find_checkpoint(resume_from_checkpoint)

    def _before_training(self) -> list[Any]:
        """Hooks that last as long as train() does."""
        undo = []
        if self.args.neftune_noise_alpha is not None:
            undo.append(self.backend.models.add_embedding_noise(self.model, self.args.neftune_noise_alpha))
        if "underflow_overflow" in self.args.debug:
            undo.append(self.backend.debugging.watch(self.model, lambda: self.state.global_step + 1))
        if self.args.profile and self.team.is_main:
            undo.append(profiling.attach(self))  # type: ignore[arg-type]
        return undo

    def _train(self, checkpoint: Path | None, trial: Any) -> TrainOutput:
        args = self.args
        if checkpoint is not None:
            if not (later := self._reads_parts_of(checkpoint)):
                self._load_weights(checkpoint)
            self._load_state(checkpoint)
            self._keep_global_batch(checkpoint)
        else:
            self._fresh_state()
        plan = self._plan = self.make_plan()
        self._share_model()
        if checkpoint is not None and later:
            self._load_weights(checkpoint)
        self.engine = self._make_engine()
        self._prepare_optimizer(plan.max_steps)
        start = loop.Position()
        if checkpoint is not None:
            start = self._load_course(checkpoint)
        else:
            self._start_own_streams()
        self._run_id = self.team.from_main(self._run_id)
        self._announce(plan, checkpoint)
        self._set_up_state(plan, trial)
        self.engine.clear()
        self._train_started, first_step = time.time(), self.state.global_step
        self._log_clock = (time.perf_counter(), first_step)
        self._record_start(checkpoint)
        self.callback_handler.refresh()
        self.control = TrainerControl()
        self.call("on_train_begin")
        if args.eval_on_start and checkpoint is None:
            self._evaluate(self._ignore_keys_for_eval)
        self.control.should_training_stop = self.control.should_training_stop or self._resume_stopped
        self._place = start
        self._do_pending()
        loop.run(self, plan, start)
        return self._finish(plan, first_step)

    def _finish(self, plan: loop.Plan, first_step: int) -> TrainOutput:
        """Late news from the device, the best model, and the metrics of the whole run."""
        late = self.engine.read_pending()
        if late is not None:
            self._nonfinite_step(late)
        args = self.args
        self._end_saves()
        if args.load_best_model_at_end:
            self._load_best_model()
        self.store_flos()
        steps = self.state.global_step - first_step
        samples = steps * plan.rows_per_step
        if plan.samples is not None and plan.steps_per_epoch:
            whole, rest = divmod(steps, plan.steps_per_epoch)
            samples = whole * plan.samples + rest * plan.rows_per_step
        tokens = self.state.num_input_tokens_seen if args.include_tokens_per_second else None
        metrics: dict[str, Any] = speed_metrics("train", self._train_started, samples, steps, tokens)
        metrics["total_flos"] = self.state.total_flos
        metrics["train_loss"] = self.losses.average()
        if self.engine.skipped:
            metrics["skipped_steps"] = self.engine.skipped
        self.is_in_train = False
        self.memory.stop("train", self.backend, args.device, metrics)
        metrics.update(self._init_memory)
        self.log(metrics)
        self._record_end()
        with self._saving_for_callbacks():
            self.call("on_train_end")
        self._finish_pushes()
        return TrainOutput(self.state.global_step, metrics["train_loss"], metrics)

    def _fresh_state(self) -> None:
        if self.state.global_step or self.state.log_history:  # train() called again: a new run
            self._run_id = store.new_run_id()
        self.state = TrainerState(
            is_local_process_zero=self.is_local_process_zero(), is_world_process_zero=self.is_world_process_zero()
        )
        if store.find(Path(self.args.output_dir)) and not self.args.overwrite_output_dir:
            logger.warning(
                "%s holds checkpoints of an earlier run. This run starts from the beginning and leaves them alone; "
                "checkpoints with the same step are replaced. To go on from them, use resume_from_checkpoint=True.",
                self.args.output_dir,
            )

    def make_plan(self) -> loop.Plan:
        """How many steps and epochs; an error when the data and the arguments do not add up to a run."""
        args = self.args
        loader = self.get_train_dataloader()
        self.callback_handler.train_dataloader = loader
        batches = len(loader) if has_length(loader) else None
        if batches is not None and not self.is_dealt(loader):
            batches = -(-batches // self.team.size)
        if batches == 0:
            raise DataError("the training loader has no batch. Pass a train_dataset with at least one sample.")
        accumulation = self._accumulation
        per_epoch = None if batches is None else -(-batches // accumulation)
        max_steps, epochs = loop.plan_steps(per_epoch, args)
        if max_steps == 0:
            raise ArgumentError(f"num_train_epochs={args.num_train_epochs} is no training at all; use a value above 0")
        samples = loader_rows(loader)
        if samples is not None and args.dataloader_drop_last and batches is not None:
            samples = min(samples, batches * self._train_batch_size * args.world_size)
        return loop.Plan(
            loader,
            accumulation,
            per_epoch,
            max_steps,
            epochs,
            samples,
            samples_per_step=self.get_total_train_batch_size(args),
            batches_per_step=accumulation * args.world_size,
            own_batch_size=getattr(loader, "own_batch_size", None),
        )

    def end_of_empty_epoch(self, epoch: int) -> None:
        """The data gave nothing: an iterable that is used up ends the run, aloud."""
        if self.state.global_step == 0:
            raise DataError("the training data gave no batch at all. Pass data with at least one sample.")
        logger.warning(
            "The training data is used up after %d steps (max_steps is %s): the run ends here. An iterable data set "
            "that can be iterated again goes on for more epochs.",
            self.state.global_step,
            self.state.max_steps,
        )
        self.control.should_training_stop = True

    def _set_up_state(self, plan: loop.Plan, trial: Any) -> None:
        state = self.state
        state.max_steps = plan.max_steps
        state.num_train_epochs = plan.epochs if plan.epochs < 2**62 else 1
        state.train_batch_size = self._train_batch_size
        state.compute_steps(self.args, plan.max_steps)
        state.is_hyper_param_search = trial is not None
        if self._trial is not None:
            state.trial_name, state.trial_params = self._trial.name, self._trial.params
        if state.epoch is None:
            state.epoch = 0.0

    def _announce(self, plan: loop.Plan, checkpoint: Path | None) -> None:
        logger.info(
            "Training %d parameters on %s: %s samples, %d per update (%d x %d accumulated), %s steps%s.",
            self.get_num_trainable_parameters(),
            self.args.device,
            "unknown" if plan.samples is None else plan.samples,
            plan.samples_per_step,
            self._train_batch_size,
            plan.accumulation,
            plan.max_steps if plan.max_steps > 0 else "unknown",
            "" if checkpoint is None else f", going on from {checkpoint} at step {self.state.global_step}",
        )
        if self.team.is_main:
            notices.tell(self.args, plan.max_steps, self.compute_metrics is not None, self._own_loss)

    def is_over(self, plan: loop.Plan) -> bool:
        """The last step is done, or a callback has stopped the run."""
        return self.control.should_training_stop or plan.is_over(self.state.global_step)

    def call(self, event: str, **more: Any) -> None:
        """One of the events of the loop, to all callbacks that listen to it."""
        if event in self.callback_handler.active:
            self.control = getattr(self.callback_handler, event)(self.args, self.state, self.control, **more)

    def _reset_counters(self) -> None:
        self._train_batch_size = self.args.train_batch_size
        self._accumulation = self.args.gradient_accumulation_steps
        self._counts_tokens = setup.token_counting(self.args)
        self._micro_items = []
        self._own_items, self._num_items = None, None
        self._sharing = 1
        self._told, self._agreed, self._step_began = None, None, 0.0
        self._closes_early = self._idle = False
        self._stand_ins, self._spare = 0, None
        self._model_parts, self._work = None, (0, 0.0, 0)
        self._awaited, self._outcomes, self._hears_of_saves = [], [], False
        self._past = None
        self._split = 1
        self._rate_used = 0.0
        self._tokens = 0
        self._flops = 0.0
        self._unpadded = []
        self._unpadded_total = 0
        self._last_saved = None
        self._new_best = self._save_for_best = False
        self._metric_scheduler = False
        self._resume_random = self._epoch_random = None
        self._crosses_from: str | None = None
        self._resume_stopped = False
        self._resume_pending: dict[str, bool] = {}
        self._resume_streams = None
        self._best_before = (None, None)
        self._stored_data_state: Any = None
        self._tokenizer_files = None
        self._saver = Saver(self.record_event)
        self._figures: dict[str, float] = {}
        self._figures_clock, self._is_recorded = 0, False
        self._parent_id: str | None = None
        self._leaving, self._said_no_common_disk = threading.Event(), False
        self._buffers, self._has_room = Buffers(), False
        self._plan = None
        self._train_started = time.time()
        self._log_clock = (time.perf_counter(), 0)
        self._ignore_keys_for_eval = None
        self._said: set[Any] = set()
        self.losses = LossMeter(self.backend, self.args.logging_nan_inf_filter or self.args.nonfinite == "skip")
        self._read_overrides()
