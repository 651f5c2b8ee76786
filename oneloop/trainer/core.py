"""The internal state of a Trainer, in one reserved attribute.

The attributes and methods of a Trainer are public: scripts use and override them, and a subclass may add any
others. Everything else is here, in `trainer._oneloop`, which only this module accesses. The objects of oneloop receive
an `Core`; the Trainer, with the methods that may be overridden, is `core.trainer`.
"""

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import behaviour
from ..arguments.sharding import recomputes
from ..backends import loading
from ..behaviour import Behaviour
from ..errors import ModelError
from ..extension import Extensions
from ..introspect import replaces, show_guesses
from ..randomness import set_seed
from . import setup, validation
from .clipping import can_clip, clips_itself
from .meter import MemoryTracker
from .model_info import ModelInfo

if TYPE_CHECKING:
    from ..backends.base import Backend, Engine
    from ..distributed.collectives import ProcessGroup
    from ..distributed.strategy import Strategy
    from ..outputs import TrainOutput
    from .part import Restart
    from .run import Run
    from .trainer import Trainer

logger = logging.getLogger(__name__)


@dataclass
class UserOptimizers:
    """The optimizer and the schedule that the user passed in, with which each train() starts."""

    optimizer: Any = None
    scheduler: Any = None
    used: bool = False  # a train() has stepped them

    def start(self, trainer: Any) -> None:
        """Called before a run: drop the optimizer and schedule of an earlier train(), so that a new run starts with
        new ones."""
        if self.used:
            trainer.optimizer, trainer.lr_scheduler = self.optimizer, self.scheduler
            # Otherwise the state of the earlier one would stay in memory until there is a new one.
            trainer.callback_handler.optimizer = self.optimizer

    def use(self) -> None:
        self.used = True


class Core:
    """Created once per Trainer; `run` is the current run, the last one, or one that has not started."""

    run: "Run"
    device: Any  # of the run, where its batches go
    to_device: Callable[[Any], Any]  # a batch, or nested tensors
    extensions: Extensions

    def __init__(self, trainer: "Trainer", framework: str) -> None:
        args = trainer.args
        self.trainer = trainer
        self.backend: Backend = loading.load(framework)
        self.processes: ProcessGroup = args.processes
        self.mesh = self.processes.mesh(args)
        self.processes.name_places(self.mesh)
        show_guesses(self.mesh.is_main)
        self.strategy: Strategy = setup.strategy(args, self.backend, self.processes, self.mesh)
        self.engine: Engine = None  # type: ignore[assignment]  # until make_engine()
        self.model_info: ModelInfo = None  # type: ignore[assignment]  # until prepare_model()
        self.compiled_for_eval: Any = None
        self.memory = MemoryTracker(not args.skip_memory_metrics)
        self.user_optimizers = UserOptimizers()

    def attach(self) -> None:
        """Create what depends on the Trainer's data and functions; called once they are set."""
        self.extensions = Extensions(self)
        self.begin_run()

    def begin_run(self, restart: "Restart | None" = None) -> "Run":
        """A new run, with no state of the previous one but what a restart takes over."""
        from .run import Run  # quick imports: with the first Trainer, not with its class

        args = self.trainer.args
        self.device, non_blocking = args.device, args.accelerator_config.non_blocking is not False
        self.to_device = partial(self.backend.devices.move, device=self.device, non_blocking=non_blocking)
        self.run = Run(self, restart)
        return self.run

    def train(self, wanted: Any, trial: Any, ignore_keys: list[str] | None, after: "Restart | None") -> "TrainOutput":
        """One run, to its end. `after`: a part has asked for it, to continue from a checkpoint."""
        trainer, run = self.trainer, self.begin_run(after)
        with run.sync.starting(trainer.args.preemption_signals), run.directory:
            checkpoint = self.processes.run_on_main(lambda: run.find_checkpoint(wanted), "looking for checkpoints")
            checkpoint = run.directory.provide_checkpoint(checkpoint, wanted)
            if trainer.model_init is not None:
                self.renew_model(trial)
            self.memory.start("train", self.backend, trainer.args.device)
            self.user_optimizers.start(trainer)
            if replaces(trainer, "_inner_training_loop"):  # a loop of its own, which there was a warning of
                return run.train(checkpoint, trial, ignore_keys)
            return trainer._inner_training_loop(
                batch_size=run.batch_size,
                args=trainer.args,
                resume_from_checkpoint=None if checkpoint is None else str(checkpoint),
                trial=trial,
                ignore_keys_for_eval=ignore_keys,
            )

    def set_user_optimizers(self, optimizer: Any, scheduler: Any) -> None:
        self.user_optimizers = UserOptimizers(optimizer, scheduler)

    @property
    def behaviour(self) -> Behaviour:
        """What is expected of this Trainer, with a model of this framework."""
        return behaviour.of(self.backend.NAME)

    @property
    def data_seed(self) -> int:
        args = self.trainer.args
        return args.seed if args.data_seed is None else args.data_seed

    @property
    def in_transformers_order(self) -> bool:
        return self.trainer.args.data_order == "transformers"

    @property
    def abandons_evaluations(self) -> bool:
        """Whether an evaluation that a signal interrupts is abandoned, since the run can save at once. Within an update
        it is finished, with the update."""
        return self.trainer.is_in_train and self.run.position.at_boundary

    # -- the model

    def prepare_model(self) -> None:
        """Put the model on the device and enable what the arguments request."""
        trainer, models = self.trainer, self.backend.models
        args = trainer.args
        info = ModelInfo.of(trainer.model, models)
        names = models.label_names(trainer.model)
        if info.returns_loss and self.behaviour.label_names_are_forward_parameters:
            parameters = models.forward_parameters(trainer.model) or []
            names = [name for name in names if name in parameters]
        trainer.label_names = names if args.label_names is None else list(args.label_names)
        if info.has_several_labels and args.label_smoothing_factor:
            warnings.warn(
                f"label_smoothing_factor={args.label_smoothing_factor} has no effect: the labels of multi-label "
                "classification (problem_type of the model's config) cannot be smoothed.",
                UserWarning,
                stacklevel=4,
            )
        config = models.config_of(trainer.model)
        if hasattr(config, "use_cache"):
            config.use_cache = args.use_cache
        if args.gradient_checkpointing or recomputes(args):
            models.recompute(trainer.model, args.gradient_checkpointing_kwargs)
        half = setup.half(args)
        if half and args.fp16_opt_level not in models.HALF_LEVELS:
            logger.warning(
                "fp16_opt_level=%r: %s has no %s is used.", args.fp16_opt_level, self.backend.NAME, models.NEAREST_HALF
            )
        if half and setup.pure_half(args):
            info = replace(info, input_half=half)
            trainer.model = models.to_half(trainer.model, half)
        elif half and args.fp16_opt_level == "O2" and "O2" in models.HALF_LEVELS:
            trainer.model = models.with_master_weights(trainer.model, half)
        self._place_model()
        self.model_info, self.compiled_for_eval = replace(info, model=trainer.model), None
        if args.torch_compile or args.jit_mode_eval:
            models.check_compiler(args.torch_compile_backend)
        if args.torch_compile:
            trainer.model_wrapped = self.compiled(trainer.model)

    def _place_model(self) -> None:
        trainer = self.trainer
        self.strategy.divide(trainer.model)
        if trainer.args.place_model_on_device:
            placed = trainer._move_model_to_device(trainer.model, trainer.args.device)
            trainer.model = trainer.model if placed is None else placed  # an override may return nothing
        self.strategy.broadcast_weights(trainer.model)
        trainer.model_wrapped = trainer.model

    def adopt_model(self) -> None:
        """Before train(): use the model that was assigned to trainer.model since the last one was prepared."""
        trainer = self.trainer
        if trainer.model is self.model_info.model:
            return
        self._place_model()
        info = ModelInfo.of(trainer.model, self.backend.models)
        self.model_info = replace(info, input_half=self.model_info.input_half, model=trainer.model)
        self.compiled_for_eval = None
        trainer._signature_columns = None
        trainer.callback_handler.model = trainer.model
        if trainer.args.torch_compile:
            trainer.model_wrapped = self.compiled(trainer.model)

    def renew_model(self, trial: Any) -> None:
        """Call model_init for a new model; done in each train()."""
        trainer = self.trainer
        set_seed(trainer.args.seed)
        trainer.model = self.extensions.new_model(lambda: trainer.call_model_init(trial))
        trainer._signature_columns = None
        self.prepare_model()
        trainer.callback_handler.model = trainer.model
        trainer.optimizer = trainer.lr_scheduler = None

    def compiled(self, model: Any) -> Any:
        args = self.trainer.args
        return self.backend.models.compiled(model, args.torch_compile_backend, args.torch_compile_mode)

    def wrap_model(self, again: bool = False) -> None:
        """Wrap the model for training on several processes; evaluations call the model itself."""
        trainer, contract = self.trainer, self.run.contract
        if self.mesh.is_single:
            trainer.model_wrapped = trainer._wrap_model(trainer.model_wrapped)
            return
        if contract.step_divides and not again:
            logger.warning(
                "training_step divides by num_items_in_batch itself. Gradients are averaged over the %d processes, so "
                "num_items_in_batch is the items of all processes divided by the number of processes. A training_step "
                "that reads self.accelerator.num_processes, or calls self.compute_loss, receives the items of all "
                "processes.",
                self.mesh.num_batches,
            )
        self.strategy.engine_runs_backward = contract.has_default_step
        trainer.model_wrapped = self.strategy.rewrap() if again else trainer._wrap_model(trainer.model)
        if trainer.args.torch_compile:
            trainer.model_wrapped = self.compiled(trainer.model_wrapped)

    def model_for_evaluation(self) -> Any:
        trainer = self.trainer
        if not trainer.args.jit_mode_eval:
            # The forward of a data-parallel wrapper may be a collective, which would hang when processes have fewer
            # batches.
            compiled = trainer.args.torch_compile and self.mesh.is_single
            return trainer._wrap_model(trainer.model_wrapped if compiled else trainer.model, training=False)
        if self.compiled_for_eval is None:
            self.compiled_for_eval = self.compiled(trainer.model)
        return self.compiled_for_eval

    @contextlib.contextmanager
    def half_precision_evaluation(self) -> Iterator[None]:
        """fp16_full_eval and bf16_full_eval: half-precision weights during the evaluation, then the exact originals
        again."""
        trainer, models = self.trainer, self.backend.models
        kind = "fp16" if trainer.args.fp16_full_eval else "bf16" if trainer.args.bf16_full_eval else None
        if kind is None:
            yield
            return
        if not trainer.is_in_train:  # within training it would be logged for every evaluation
            logger.info("Evaluating with %s weights.", kind)
        before, info = models.copy_values(trainer.model), self.model_info
        models.to_half(trainer.model, kind)
        self.model_info = replace(info, input_half=kind)
        try:
            yield
        finally:
            models.restore_values(trainer.model, before)
            self.model_info = info

    def inspect_model(self, **facts: Any) -> None:
        """Keep what was found out about the model."""
        self.model_info = replace(self.model_info, **facts)

    @property
    def clips_by_override(self) -> bool:
        """Whether methods of the Trainer's class clip the gradients, rather than the engine."""
        trainer_class: Any = type(self.trainer)
        return clips_itself(trainer_class) and can_clip(self)

    @contextlib.contextmanager
    def with_model(self, model: Any, optimizer: Any, strategy: "Strategy | None" = None) -> Iterator[None]:
        """A context in which the Trainer has this model, optimizer and strategy, and an engine for them; for simulated
        steps."""
        trainer, engine, own = self.trainer, self.engine, self.strategy
        before = {name: getattr(trainer, name) for name in ("model", "model_wrapped", "optimizer")}
        trainer.model = trainer.model_wrapped = model
        trainer.optimizer = optimizer
        self.strategy = own if strategy is None else strategy
        try:
            self.make_engine()
            yield
        finally:
            self.engine, self.strategy = engine, own
            for name, value in before.items():
                setattr(trainer, name, value)

    def make_engine(self) -> None:
        """Create the engine that computes gradients and updates of the model."""
        args = self.trainer.args
        self.engine = self.strategy.engine_class(self.backend.engine.Engine)(
            self.trainer.model,
            args.device,
            half=None if setup.pure_half(args) else setup.half(args),
            loss_scale=args.scale_loss,
            max_grad_norm=0.0 if self.clips_by_override else args.max_grad_norm or 0.0,
            nonfinite=args.nonfinite,
        )
        self.engine.strategy = self.strategy
        if self.behaviour.autocast == "forward" and not args.torch_compile:  # hooks would be compiled into the graph
            self.engine.limit_autocast()


def create(trainer: "Trainer", model: Any, model_init: Any) -> Core:
    """Set the model of a new Trainer, and create its internals with the backend of the model's type."""
    args = trainer.args
    setup.log_levels(args)
    setup.seed(args)
    trainer.model_init = model_init
    if model_init is None:
        trainer.model = validation.model(model)
    elif model is not None:
        raise ModelError("pass model or model_init, not both: model_init creates a new model for each train()")
    else:
        trainer.model = trainer.call_model_init()
    backend = loading.of_model(trainer.model)
    setup.adopt_layout(args, trainer.model, backend)
    setup.bind(args, backend)
    core = install(trainer, backend.NAME)
    core.memory.start("init", core.backend, args.device)
    setup.seed(args)  # again, so that the RNG state is the same with and without model_init
    return core


def install(trainer: Any, framework: str) -> Core:
    """Create the internals of a Trainer: in its constructor, or when it is unpickled in another process."""
    core = trainer._oneloop = Core(trainer, framework)
    return core


def core_of(trainer: Any) -> Core:
    """The internals of this Trainer."""
    return trainer._oneloop
