"""Optimizers by name, parameter groups, and their learning rates."""

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

import mindspore as ms
from mindspore import nn, ops
from mindspore.experimental import optim as experimental

from ...errors import ArgumentError, UnsupportedError
from ...optim.catalog import ADAMW_NAMES
from ...optim.scheduler import scheduler_class as scheduler_class
from .._common.helpers import optimizer_options
from .optimizer_kernels import SGD, AdamW

TWO_GROUPS = False

_SIMPLE = {
    "sgd": SGD,
    "adagrad": experimental.Adagrad,
    "rmsprop": experimental.RMSprop,
}


def is_optimizer(value: Any) -> bool:
    return isinstance(value, (nn.Optimizer, experimental.Optimizer))


def class_and_options(args: Any, model: Any = None) -> tuple[Any, dict[str, Any]]:
    """The optimizer class for args.optim, and its keyword arguments."""
    name = str(getattr(args.optim, "value", args.optim))
    extra = optimizer_options(args.optim_args)
    options: dict[str, Any] = {"lr": args.learning_rate}
    if name in ADAMW_NAMES:
        return AdamW, options | {"betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon} | extra
    if name in _SIMPLE:
        return _SIMPLE[name], options | extra
    raise ArgumentError(f"optim={name!r} is not supported on mindspore; use adamw, {', '.join(_SIMPLE)}")


def build(cls: Any, groups: list[dict[str, Any]], options: dict[str, Any]) -> Any:
    """An optimizer over these groups; an error lists options that the class does not accept."""
    options = dict(options)
    if issubclass(cls, nn.Optimizer) and "lr" in options:  # its name in mindspore.nn
        options["learning_rate"] = options.pop("lr")
    accepted = inspect.signature(cls.__init__).parameters
    wrong = [key for key in options if key not in accepted]
    if wrong and not any(p.kind == p.VAR_KEYWORD for p in accepted.values()):
        raise ArgumentError(
            f"{cls.__name__} does not accept {', '.join(wrong)} (from optim_args or optimizer_cls_and_kwargs); it "
            f"accepts {', '.join(list(accepted)[2:])}."
        )
    try:
        return cls(groups, **options)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"cannot create {cls.__name__}: {error}. Check learning_rate, the adam_ arguments, optim_args and "
            "optimizer_cls_and_kwargs."
        ) from error


def parameters_of(optimizer: Any) -> list[ms.Parameter]:
    """The parameters, in the order in which the optimizer takes their gradients."""
    return list(optimizer.parameters)


def groups(optimizer: Any) -> list[dict[str, Any]]:
    """The parameter groups of an optimizer, each with its weight decay."""
    if hasattr(optimizer, "param_groups"):
        return optimizer.param_groups
    decay = getattr(optimizer, "weight_decay", 0.0)
    return [{"params": parameters_of(optimizer), "weight_decay": decay if isinstance(decay, float) else 0.0}]


def _rates(optimizer: Any) -> list[Any]:
    """The rates: numbers or parameters, one per group."""
    if hasattr(optimizer, "param_groups"):
        return [group["lr"] for group in optimizer.param_groups]
    if getattr(optimizer, "dynamic_lr", False):
        raise ArgumentError(
            f"{type(optimizer).__name__} was created with its own learning-rate schedule, but the Trainer sets the "
            "rate of every step: create it with a number, and choose the schedule with lr_scheduler_type."
        )
    rate = optimizer.learning_rate
    return list(rate) if getattr(optimizer, "is_group_lr", False) else [rate]


def learning_rates(optimizer: Any) -> list[float]:
    return [rate if isinstance(rate, float) else float(rate.asnumpy()) for rate in _rates(optimizer)]


def set_learning_rates(optimizer: Any, rates: list[float]) -> None:
    for place, (current, rate) in enumerate(zip(_rates(optimizer), rates, strict=True)):
        if isinstance(current, float):
            optimizer.param_groups[place]["lr"] = rate
        else:  # a parameter: a new one would leave the compiled step of the optimizer with the old rate
            ops.assign(current, ms.Tensor(rate, ms.float32))


def attached_schedule(optimizer: Any) -> None:
    """The schedule inside an optimizer: none, since one of mindspore.nn with a schedule is an error, see above."""


def make_standalone_schedule(rate: float, factor: Callable[[int], float]) -> NoReturn:
    """A schedule with which an optimizer can be created; only Paddle has such schedules."""
    raise UnsupportedError(
        "the schedule needs an optimizer, but there is none yet: call create_optimizer before create_scheduler."
    )


def attach(optimizer: Any, scheduler: Any) -> None:
    """Connect an optimizer to a schedule that was created without one: not needed, schedules have their optimizer."""


def group_of(optimizer: Any, parameter: ms.Parameter | None) -> Any:
    """The group of the parameter, or all groups."""
    if parameter is None:
        return [group["params"] for group in groups(optimizer)]
    return next((group for group in groups(optimizer) if any(p is parameter for p in group["params"])), None)
