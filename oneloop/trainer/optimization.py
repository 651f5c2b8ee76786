"""The optimizer and the learning-rate schedule that the Trainer creates where the user has passed none."""

from typing import TYPE_CHECKING, Any

from ..backends._common.helpers import from_factory, given_groups, is_factory, parameter_groups
from ..errors import ArgumentError, ModelError
from ..optim.schedules import follows_metric, make_metric_schedule, make_schedule, needs_length
from .core import core_of

if TYPE_CHECKING:
    from .trainer import Trainer


def build_optimizer(trainer: "Trainer", model: Any) -> Any:
    """An optimizer over the trainable parameters of the model: of optimizer_cls_and_kwargs, or of args.optim."""
    core = core_of(trainer)
    cls, options = trainer.optimizer_cls_and_kwargs or trainer.get_optimizer_cls_and_kwargs(trainer.args, model)
    if is_factory(cls):
        return from_factory(cls, model, options, core.backend.optimizers.is_optimizer)
    divide = getattr(options.get("params"), "divide", None)  # of optimizers that treat some parameters differently
    groups, options = given_groups(options)
    if groups is None or divide is not None:
        groups = _groups_of(trainer, model)
    groups = groups if divide is None else divide(groups)
    return core.strategy.build_optimizer(cls, groups, options)


def _groups_of(trainer: "Trainer", model: Any) -> list[dict[str, Any]]:
    """The parameter groups of a model, with and without weight decay."""
    backend = core_of(trainer).backend
    named = backend.models.named_parameters(model)
    if not named:
        raise ModelError("the model has no trainable parameters. Check requires_grad and frozen layers.")
    decay = set(trainer.get_decay_parameter_names(model))
    return parameter_groups(named, decay, trainer.args.weight_decay, backend.optimizers.TWO_GROUPS)


def build_scheduler(trainer: "Trainer", optimizer: Any, num_training_steps: int) -> Any:
    """The schedule of args.lr_scheduler_type; without an optimizer, one to create it with."""
    args, backend = trainer.args, core_of(trainer).backend
    own = backend.optimizers.attached_schedule(optimizer)
    if own is not None:  # the user's optimizer was created with its schedule
        return own
    name = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    options = dict(args.lr_scheduler_kwargs or {})
    if optimizer is None:
        factor = _factor(args, name, num_training_steps, args.learning_rate, options)
        return backend.optimizers.make_standalone_schedule(args.learning_rate, factor)
    if follows_metric(name):
        options.setdefault("mode", "max" if args.greater_is_better else "min")
        rule = make_metric_schedule(name, backend.optimizers.learning_rates(optimizer), **options)
        return backend.optimizers.scheduler_class(rule)(backend, optimizer, rule)
    cls = backend.optimizers.scheduler_class()
    factor = _factor(args, name, num_training_steps, cls.initial_rate(backend, optimizer), options)
    return cls(backend, optimizer, factor)


def _factor(args: Any, name: str, num_training_steps: int, rate: float, options: dict[str, Any]) -> Any:
    """The factor of the learning rate, as a function of the step."""
    if follows_metric(name):
        raise ArgumentError(
            f"lr_scheduler_type={name!r} depends on evaluations and cannot be created before the optimizer: create "
            "the optimizer first, in a create_optimizer that accepts no lr_scheduler."
        )
    if num_training_steps <= 0 and needs_length(name):
        raise ArgumentError(
            f"lr_scheduler_type={name!r} needs the number of steps, but the dataset has no length: set "
            "max_steps, or use a schedule without an end such as constant, constant_with_warmup or inverse_sqrt"
        )
    return make_schedule(
        name,
        args.get_warmup_steps(max(num_training_steps, 0)),
        num_training_steps if num_training_steps > 0 else None,
        lr_init=rate,
        **options,
    )
