"""Trainer: the class that users build, put together from its parts."""

import logging
import threading
import time
from pathlib import Path
from typing import Any

from .. import backends, loop
from ..accelerator import Accelerator
from ..callbacks import CallbackHandler
from ..checkpoint import store
from ..checkpoint.saver import Buffers, Saver
from ..errors import ArgumentError, DataError, ModelError
from ..evaluation import check_batch_metrics, loader_rows
from ..measuring import LossMeter, MemoryTracker, speed_metrics
from ..outputs import TrainOutput
from ..preemption import Watch
from ..randomness import enable_full_determinism, set_seed
from ..record import Record
from ..state import TrainerControl, TrainerState
from . import checks, setup
from .checks import has_length
from .data import TrainerData
from .evaluating import TrainerEvaluating
from .exporting import TrainerExporting
from .hub import TrainerHub
from .later import TrainerLater
from .optimizing import TrainerOptimizing
from .recording import TrainerRecording
from .reporting import TrainerReporting
from .resuming import TrainerResuming
from .saving import TrainerSaving, check_writable
from .saving_parts import TrainerSavingParts
from .surface import TrainerSurface, warn_unused_overrides
from .together import TrainerTogether, lost_processes
from .training import TrainerSteps

logger = logging.getLogger(__name__)


class Trainer(
    TrainerSteps,
    TrainerData,
    TrainerEvaluating,
    TrainerOptimizing,
    TrainerSaving,
    TrainerSavingParts,
    TrainerResuming,
    TrainerReporting,
    TrainerRecording,
    TrainerTogether,
    TrainerSurface,
    TrainerExporting,
    TrainerHub,
    TrainerLater,
):
    """Trains, evaluates and predicts with a torch.nn.Module, paddle.nn.Layer or mindspore.nn.Cell.

    Positional up to model_init, where the versions of other trainers agree; the rest by name. A criterion in second
    place, as PaddleNLP has it, is recognised by its type. `tokenizer` and `processing_class` are one argument.
    """

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        tokenizer: Any = None,
        model_init: Any = None,
        *positional: Any,
        criterion: Any = None,
        processing_class: Any = None,
        compute_loss_func: Any = None,
        compute_metrics: Any = None,
        callbacks: Any = None,
        optimizers: Any = (None, None),
        optimizer_cls_and_kwargs: Any = None,
        preprocess_logits_for_metrics: Any = None,
    ) -> None:
        if positional:
            raise ArgumentError(
                "Trainer takes positional arguments up to model_init; what follows differs between the versions that "
                "scripts were written for. Pass compute_metrics, callbacks, optimizers and the rest by name."
            )
        if setup.is_paddle_order(args, data_collator):
            # PaddleNLP's order: model, criterion, args, data_collator, train_dataset, eval_dataset, tokenizer
            criterion, args, data_collator, train_dataset, eval_dataset, tokenizer, model_init = (
                args,
                data_collator,
                train_dataset,
                eval_dataset,
                tokenizer,
                model_init,
                None,
            )
        self.args = setup.arguments(args)
        checks.functions(
            model_init=model_init,
            criterion=criterion,
            compute_loss_func=compute_loss_func,
            compute_metrics=compute_metrics,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
        )
        setup.log_levels(self.args)
        (enable_full_determinism if self.args.full_determinism else set_seed)(self.args.seed)
        self.model_init = model_init
        self.model = self._first_model(model, model_init)
        self.backend = backends.of_model(self.model)
        setup.bind(self.args, self.backend)
        self.team = self.args.team
        self.strategy = setup.strategy(self.args, self.backend, self.team)
        self.memory = MemoryTracker(not self.args.skip_memory_metrics)
        self._init_memory: dict[str, Any] = {}
        self.memory.start("init", self.backend, self.args.device)
        (enable_full_determinism if self.args.full_determinism else set_seed)(self.args.seed)

        self.processing_class = checks.tokenizer(tokenizer, processing_class)
        self.train_dataset = train_dataset
        self.eval_dataset = eval_dataset
        self.criterion = criterion
        self.compute_loss_func = compute_loss_func
        self.compute_metrics = compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.optimizer, self.lr_scheduler = checks.optimizers(
            optimizers, optimizer_cls_and_kwargs, model_init, self.backend
        )
        self._given_optimizers, self._optimizers_are_used = (self.optimizer, self.lr_scheduler), False
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        warn_unused_overrides(self)
        self._check_data()
        self._prepare_model()
        self.data_collator = setup.collator(data_collator, self.processing_class, self.backend.NAME)

        self._run_id = store.new_run_id()
        self._recorder, self._passed_over = Record(), []
        self._reset_counters()
        self.state = TrainerState(
            is_local_process_zero=self.is_local_process_zero(), is_world_process_zero=self.is_world_process_zero()
        )
        self.control = TrainerControl()
        self.callback_handler = CallbackHandler(
            setup.callbacks(self.args, callbacks, lambda: self._run_id, lambda: self._figures),
            self.model,
            self.processing_class,
            self.optimizer,
            self.lr_scheduler,
        )
        setup.link_writers(self)
        self.engine = self._make_engine()
        self.accelerator = Accelerator(self)
        self.is_in_train = False
        if self.args.push_to_hub:
            self.init_hf_repo()
        self.memory.stop("init", self.backend, self.args.device, self._init_memory)
        self.control = self.callback_handler.on_init_end(self.args, self.state, self.control)

    # -- making ready

    def _first_model(self, model: Any, model_init: Any) -> Any:
        if model_init is None:
            if model is None:
                raise ModelError("Trainer needs a model: pass model= or model_init=")
            if isinstance(model, type):
                raise ModelError(f"model is the class {model.__name__}; pass an instance: {model.__name__}(...)")
            return model
        if model is not None:
            raise ModelError("pass model or model_init, not both: model_init makes the model anew for each train()")
        return self.call_model_init()

    def call_model_init(self, trial: Any = None) -> Any:
        """A new model from model_init, which takes nothing or a trial."""
        import inspect

        parameters = list(inspect.signature(self.model_init).parameters.values())
        needed = [
            p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        if len(needed) > 1:
            raise ArgumentError(
                f"model_init needs {', '.join(needed)}; it should need nothing, or only the trial of a search"
            )
        takes_trial = bool(needed) or (len(parameters) == 1 and parameters[0].name == "trial")
        model = self.model_init(trial) if takes_trial else self.model_init()
        if model is None:
            raise ModelError("model_init returned None; it should return the model")
        return model

    def _check_data(self) -> None:
        args = self.args
        if args.eval_strategy != "no" and self.eval_dataset is None:
            raise DataError(
                f"eval_strategy={str(getattr(args.eval_strategy, 'value', args.eval_strategy))!r} needs data to "
                "evaluate on: pass eval_dataset=, or eval_strategy='no'"
            )
        given = {}  # an overridden get_..._dataloader may take whatever it likes
        if type(self).get_train_dataloader is TrainerData.get_train_dataloader:
            given["train_dataset"] = self.train_dataset
        if type(self).get_eval_dataloader is TrainerData.get_eval_dataloader:
            several = self.eval_dataset if isinstance(self.eval_dataset, dict) else {"": self.eval_dataset}
            given |= {f"eval_dataset[{name!r}]" if name else "eval_dataset": each for name, each in several.items()}
        for name, dataset in given.items():
            if dataset is not None:
                checks.dataset(name, dataset, self.backend)
        if args.label_smoothing_factor and (self.criterion is not None or self.compute_loss_func is not None):
            logger.warning(
                "label_smoothing_factor=%s does nothing here: the loss comes from %s, which does its own smoothing or "
                "none.",
                args.label_smoothing_factor,
                "criterion" if self.criterion is not None else "compute_loss_func",
            )
        if args.batch_eval_metrics and self.compute_metrics is not None:
            check_batch_metrics(self.compute_metrics)

    def _prepare_model(self) -> None:
        """Put the model on the device and switch on what the arguments ask of it."""
        args, models = self.args, self.backend.models
        self.label_names = list(args.label_names) if args.label_names is not None else models.label_names(self.model)
        base = models.base_of(self.model)
        self._shifts_labels = models.shifts_labels(self.model)
        self._can_return_loss = setup.returns_loss_by_default(models.forward_of(self.model))
        self._makes_decoder_inputs = hasattr(base, "prepare_decoder_input_ids_from_labels")
        self._main_input_name = getattr(base, "main_input_name", "input_ids")
        self._matrix_parameters = models.num_matrix_parameters(self.model)
        config = models.config_of(self.model)
        if hasattr(config, "use_cache"):
            config.use_cache = args.use_cache
        if args.gradient_checkpointing:
            models.recompute(self.model, args.gradient_checkpointing_kwargs)
        if setup.half(args) and args.fp16_opt_level not in models.HALF_LEVELS:
            logger.warning(
                "fp16_opt_level=%r: %s has no %s is used.",
                args.fp16_opt_level,
                self.backend.NAME,
                models.NEAREST_HALF,
            )
        self._half_inputs = None
        if setup.pure_half(args):
            self._half_inputs = setup.half(args)
            self.model = models.to_half(self.model, setup.half(args))
        elif setup.half(args) and args.fp16_opt_level == "O2" and "O2" in models.HALF_LEVELS:
            self.model = models.with_master_weights(self.model, setup.half(args))
        if args.place_model_on_device:
            self.model = self.backend.devices.place(self.model, args.device)
        self.strategy.agree(self.model)
        self._non_blocking = (args.accelerator_config or {}).get("non_blocking") is not False
        self.model_wrapped = self.model
        self._compiled_for_eval = None
        if args.torch_compile or args.jit_mode_eval:
            models.check_compiler(args.torch_compile_backend)
        if args.torch_compile:
            self.model_wrapped = models.compiled(self.model, args.torch_compile_backend, args.torch_compile_mode)

    def _make_engine(self) -> Any:
        args = self.args
        engine = self.strategy.engine_class(self.backend.engine.Engine)(
            self.model,
            args.device,
            half=None if setup.pure_half(args) else setup.half(args),
            loss_scale=args.scale_loss,
            max_grad_norm=args.max_grad_norm or 0.0,
            nonfinite=args.nonfinite,
        )
        engine.strategy = self.strategy
        return engine

    def _reset_counters(self) -> None:
        self._train_batch_size = self.args.train_batch_size
        self._accumulation = self.args.gradient_accumulation_steps
        self._counts_tokens = setup.token_counting(self.args)
        self._micro_items = []
        self._share = None
        self._sharing = 1
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
        self._best_before: tuple[Any, Any] = (None, None)
        self._stored_data_state: Any = None
        self._tokenizer_files = None
        self._saver = Saver(self.record_event)
        self._figures: dict[str, float] = {}
        self._figures_clock, self._is_recorded = 0, False
        self._parent_id: str | None = None
        self._leaving, self._said_no_common_disk = threading.Event(), False
        self._buffers = Buffers()
        self._plan = None
        self._train_started = time.time()
        self._log_clock = (time.perf_counter(), 0)
        self._ignore_keys_for_eval: list[str] | None = None
        self.losses = LossMeter(self.backend, self.args.logging_nan_inf_filter or self.args.nonfinite == "skip")
        self._read_overrides()

    # -- training

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
        args = self.args
        args.validate()
        setup.bind(args, self.backend)
        checkpoint = self.team.on_main(lambda: self._look_around(resume_from_checkpoint), "looking for checkpoints")
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
            with Watch(args.preemption_signals) as self._watch, lost_processes(self.team):
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

    def _look_around(self, resume_from_checkpoint: Any) -> Path | None:
        """The output directory can be written, and is cleared of what dead saves left; the checkpoint to go on from."""
        check_writable(self.args.output_dir)
        store.remove_leftovers(Path(self.args.output_dir))
        return self._find_checkpoint(resume_from_checkpoint)

    def _renew_model(self, trial: Any) -> None:
        set_seed(self.args.seed)
        self.model = self.call_model_init(trial)
        self._signature_columns = None
        self._prepare_model()
        self.callback_handler.model = self.model
        self.optimizer = self.lr_scheduler = None

    def _before_training(self) -> list[Any]:
        """Hooks that last as long as train() does."""
        undo = []
        if self.args.neftune_noise_alpha is not None:
            undo.append(self.backend.models.add_embedding_noise(self.model, self.args.neftune_noise_alpha))
        if "underflow_overflow" in self.args.debug:
            undo.append(self.backend.debugging.watch(self.model, lambda: self.state.global_step + 1))
        return undo

    def _train(self, checkpoint: Path | None, trial: Any) -> TrainOutput:
        args = self.args
        if checkpoint is not None:
            self._load_weights(checkpoint)
            self._load_state(checkpoint)
            self._keep_global_batch(checkpoint)
        else:
            self._fresh_state()
        plan = self._plan = self.make_plan()
        self._share_model()
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
        samples = steps * plan.samples_per_step
        if plan.samples is not None and plan.steps_per_epoch:
            whole, rest = divmod(steps, plan.steps_per_epoch)
            samples = whole * plan.samples + rest * plan.samples_per_step
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
            loader, accumulation, per_epoch, max_steps, epochs, samples, self.get_total_train_batch_size(args)
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

    def is_over(self, plan: loop.Plan) -> bool:
        """The last step is done, or a callback has stopped the run."""
        return self.control.should_training_stop or plan.is_over(self.state.global_step)

    def call(self, event: str) -> None:
        """One of the events without arguments, to all callbacks."""
        if event in self.callback_handler.active:
            self.control = getattr(self.callback_handler, event)(self.args, self.state, self.control)

    # -- callbacks and questions

    def add_callback(self, callback: Any) -> None:
        """Add a callback, given as an instance or a class."""
        self.callback_handler.add_callback(callback)
        setup.link_writers(self)

    def pop_callback(self, callback: Any) -> Any:
        """Remove a callback and return it."""
        return self.callback_handler.pop_callback(callback)

    def remove_callback(self, callback: Any) -> None:
        self.callback_handler.remove_callback(callback)

    def is_local_process_zero(self) -> bool:
        return self.args.local_process_index == 0

    def is_world_process_zero(self) -> bool:
        return self.args.process_index == 0

    def get_total_train_batch_size(self, args: Any = None) -> int:
        """Samples of one update: all devices, all accumulation steps."""
        args = args or self.args
        return self._train_batch_size * self._accumulation * args.world_size

    @property
    def tokenizer(self) -> Any:
        """The older name of processing_class."""
        return self.processing_class

    @tokenizer.setter
    def tokenizer(self, value: Any) -> None:
        self.processing_class = self.callback_handler.processing_class = value
