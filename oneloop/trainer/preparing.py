"""What a Trainer does once before it runs: its model, its data and its engine made ready."""

import logging
from typing import Any

from .. import backends
from ..callbacks import CallbackHandler
from ..compat.trainer_utils import takes_trial
from ..errors import DataError, ModelError
from ..randomness import enable_full_determinism, set_seed
from ..state import TrainerControl, TrainerState
from . import setup, validation
from .data import TrainerData
from .evaluation import check_batch_metrics
from .meter import MemoryTracker
from .parts import TrainerParts

logger = logging.getLogger(__name__)


class TrainerPreparing(TrainerParts):
    """The model from model_init, the checks of the data, and what the arguments ask of the model."""

    def _take_model(self, model: Any, model_init: Any) -> None:
        """The model, the backend that its type tells, and how the processes of this run share it."""
        seed = enable_full_determinism if self.args.full_determinism else set_seed
        setup.log_levels(self.args)
        seed(self.args.seed)
        self.model_init = model_init
        self.model = self._first_model(model, model_init)
        self.backend = backends.of_model(self.model)
        setup.bind(self.args, self.backend)
        self.processes = self.args.processes
        self.strategy = setup.strategy(self.args, self.backend, self.processes)
        self.memory = MemoryTracker(not self.args.skip_memory_metrics)
        self._init_memory: dict[str, Any] = {}
        self.memory.start("init", self.backend, self.args.device)
        seed(self.args.seed)  # again: a model_init that draws leaves the streams as a ready model does

    def _take_optimizers(self, optimizers: Any, optimizer_cls_and_kwargs: Any) -> None:
        self.optimizer, self.lr_scheduler = validation.optimizers(
            optimizers, optimizer_cls_and_kwargs, self.model_init, self.backend
        )
        self._given_optimizers, self._optimizers_are_used = (self.optimizer, self.lr_scheduler), False
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs

    def _set_up_callbacks(self, callbacks: Any) -> None:
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
        model = self.model_init(trial) if takes_trial(self.model_init) else self.model_init()
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
        own: Any = type(self)
        if own.get_train_dataloader is TrainerData.get_train_dataloader:
            given["train_dataset"] = self.train_dataset
        if own.get_eval_dataloader is TrainerData.get_eval_dataloader:
            several = self.eval_dataset if isinstance(self.eval_dataset, dict) else {"": self.eval_dataset}
            given |= {f"eval_dataset[{name!r}]" if name else "eval_dataset": each for name, each in several.items()}
        for name, dataset in given.items():
            if dataset is not None:
                validation.dataset(name, dataset, self.backend)
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

    def _renew_model(self, trial: Any) -> None:
        set_seed(self.args.seed)
        self.model = self.call_model_init(trial) if self._trial is None else self._trial.model(self)
        self._signature_columns = None
        self._prepare_model()
        self.callback_handler.model = self.model
        self.optimizer = self.lr_scheduler = None
