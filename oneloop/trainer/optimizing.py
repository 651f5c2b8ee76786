"""Optimizer and schedule."""

import inspect
import logging
from typing import Any

from ..backends._common.helpers import parameter_groups
from ..compat import mode
from ..errors import ArgumentError, ModelError
from ..optim.scheduler import MetricScheduler, Scheduler, steps_by_metric
from ..optim.schedules import follows_metric, make_metric_schedule, make_schedule, needs_length
from .loss import accepts
from .parts import TrainerParts

logger = logging.getLogger(__name__)


class TrainerOptimizing(TrainerParts):
    """create_optimizer, create_scheduler and questions about them."""

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Both, unless they were given. Override it, or one of the two below."""
        if "lr_scheduler" in inspect.signature(self.create_optimizer).parameters:
            # An override for PaddleNLP, where an optimizer is built with its schedule.
            self.create_scheduler(num_training_steps=num_training_steps)
            self.create_optimizer(self.lr_scheduler)
            return
        self.create_optimizer()
        known = {"optimizer": self.optimizer} if accepts(self.create_scheduler, "optimizer") else {}
        self.create_scheduler(num_training_steps=num_training_steps, **known)

    def create_optimizer(self, model: Any = None) -> Any:
        """The optimizer over all trainable parameters; no decay on biases and norms.

        In place of a model, overrides written for PaddleNLP hand on the schedule, which is there already.
        """
        model = self.model if model is None or model is self.lr_scheduler else model
        if self.optimizer is not None:
            return self.optimizer
        named = self.backend.models.named_parameters(model)
        if not named:
            raise ModelError("the model has no trainable parameters; check requires_grad and frozen layers")
        groups = parameter_groups(named, set(self.get_decay_parameter_names(model)), self.args.weight_decay)
        cls, options = self.optimizer_cls_and_kwargs or self.get_optimizer_cls_and_kwargs(self.args, model)
        self.optimizer = self.strategy.build_optimizer(cls, groups, dict(options))
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The learning-rate schedule: a pure function of the step. Without an optimizer, one to build it with."""
        if self.lr_scheduler is not None:
            return self.lr_scheduler
        args = self.args
        optimizer = self.optimizer if optimizer is None else optimizer
        self.lr_scheduler = self.backend.optimizers.own_schedule(optimizer)
        if self.lr_scheduler is not None:  # an optimizer of the user's that was built with its schedule
            return self.lr_scheduler
        name = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
        options = dict(args.lr_scheduler_kwargs or {})
        if optimizer is None:
            factor = self._factor(name, num_training_steps, args.learning_rate, options)
            self.lr_scheduler = self.backend.optimizers.schedule_alone(args.learning_rate, factor)
            return self.lr_scheduler
        if follows_metric(name):
            options.setdefault("mode", "max" if args.greater_is_better else "min")
            rule = make_metric_schedule(name, self.backend.optimizers.learning_rates(optimizer), **options)
            self.lr_scheduler = MetricScheduler(self.backend, optimizer, rule)
            return self.lr_scheduler
        rate = self.backend.optimizers.learning_rates(optimizer)[0]
        self.lr_scheduler = Scheduler(self.backend, optimizer, self._factor(name, num_training_steps, rate, options))
        return self.lr_scheduler

    def _factor(self, name: str, num_training_steps: int, rate: float, options: dict[str, Any]) -> Any:
        """What the rate is multiplied by, a function of the step."""
        if follows_metric(name):
            raise ArgumentError(
                f"lr_scheduler_type={name!r} follows the evaluations and cannot be made before the optimizer: build "
                "the optimizer first, in a create_optimizer that takes no lr_scheduler."
            )
        if num_training_steps <= 0 and needs_length(name):
            raise ArgumentError(
                f"lr_scheduler_type={name!r} needs to know how long the run is, and the data set has no length: set "
                "max_steps, or use a schedule without an end such as constant, constant_with_warmup or inverse_sqrt"
            )
        return make_schedule(
            name,
            self.args.get_warmup_steps(max(num_training_steps, 0)),
            num_training_steps if num_training_steps > 0 else None,
            lr_init=rate,
            **options,
        )

    def get_decay_parameter_names(self, model: Any) -> list[str]:
        """Names of the parameters that weight decay applies to."""
        return self.backend.models.decay_names(model)

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: Any, model: Any = None) -> tuple[Any, dict[str, Any]]:
        """The optimizer class for args.optim, and what to build it with.

        Overrides of PaddleNLP's Trainer build the optimizer with a schedule in place of the rate, so for its scripts
        the rate is left out, as there.
        """
        from ..backends import guess, load, of_model

        backend = of_model(model) if model is not None else load(guess() or "torch")
        cls, options = backend.optimizers.class_and_options(args, model)
        if model is None and backend.NAME == "paddle" and mode.follows("paddlenlp"):
            options.pop("learning_rate", None)
        return cls, options

    def get_learning_rates(self) -> list[float]:
        """The rate of each parameter group."""
        if self.optimizer is None:
            raise ArgumentError("there is no optimizer yet: call train() or create_optimizer() first")
        return self.backend.optimizers.learning_rates(self.optimizer)

    def get_num_trainable_parameters(self) -> int:
        return self.backend.models.num_parameters(self.model, trainable=True)

    def get_optimizer_group(self, param: Any = None) -> Any:
        """The group of a parameter, given as itself or by name; all groups without one."""
        if self.optimizer is None:
            raise ArgumentError("there is no optimizer yet: call train() or create_optimizer() first")
        if isinstance(param, str):
            param = dict(self.backend.models.named_parameters(self.model))[param]
        return self.backend.optimizers.group_of(self.optimizer, param)

    @property
    def _steps_by_metric(self) -> bool:
        return self._metric_scheduler

    def _prepare_optimizer(self, num_training_steps: int) -> None:
        self.create_optimizer_and_scheduler(num_training_steps=num_training_steps)
        if self.optimizer is None or self.lr_scheduler is None:
            raise ModelError(
                "create_optimizer_and_scheduler (or an override of it) left no optimizer or no lr_scheduler; set "
                "self.optimizer and self.lr_scheduler"
            )
        self._optimizers_are_used = True
        self.optimizer = self.strategy.take_optimizer(self.optimizer)
        self.backend.optimizers.attach(self.optimizer, self.lr_scheduler)
        self.engine.include(self.optimizer)
        self._metric_scheduler = steps_by_metric(self.lr_scheduler)
        self.callback_handler.optimizer = self.optimizer
        self.callback_handler.lr_scheduler = self.lr_scheduler
