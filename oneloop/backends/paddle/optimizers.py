"""Optimizers by name, parameter groups, and their learning rates.

Paddle has one learning rate per optimizer, and a group's `learning_rate` is a factor of it. Optimizers that accept
apply_decay_param_fun get a plain list of parameters, with which they are faster than with groups.
"""

import inspect
import weakref
from collections.abc import Callable
from typing import Any

import paddle
from paddle.optimizer.lr import LRScheduler
from paddle.regularizer import L2Decay

from ...errors import ArgumentError
from ...optim.catalog import ADAMW_NAMES
from ...optim.scheduler import scheduler_class as scheduler_class
from .._common.helpers import optimizer_options

TWO_GROUPS = False
_DECAY_FUNCTION = "apply_decay_param_fun"


_known_factors: weakref.WeakKeyDictionary[Any, list[float]] = weakref.WeakKeyDictionary()


class _Decay(L2Decay):
    """Weight decay that oneloop has set on a parameter, where it stays after the optimizer is deleted."""


def is_optimizer(value: Any) -> bool:
    if isinstance(value, (type, LRScheduler)):
        return False
    return isinstance(value, paddle.optimizer.Optimizer) or (hasattr(value, "step") and hasattr(value, "clear_grad"))


def class_and_options(args: Any, model: paddle.nn.Layer | None = None) -> tuple[Any, dict[str, Any]]:
    """The optimizer class for args.optim, and its keyword arguments."""
    name = str(getattr(args.optim, "value", args.optim))
    extra = optimizer_options(args.optim_args)
    options: dict[str, Any] = {"learning_rate": float(args.learning_rate)}
    # With half-precision weights (O2), the optimizer has the float32 master weights.
    master = {"multi_precision": True} if (args.fp16 or args.bf16) and args.fp16_opt_level == "O2" else {}
    if name in ADAMW_NAMES:
        adam = {"beta1": args.adam_beta1, "beta2": args.adam_beta2, "epsilon": args.adam_epsilon}
        return paddle.optimizer.AdamW, options | adam | master | extra
    if name == "sgd":
        # torch's SGD has a momentum; in Paddle that is a class of its own.
        cls = paddle.optimizer.Momentum if "momentum" in extra else paddle.optimizer.SGD
        return cls, options | master | extra
    if name == "adagrad":
        return paddle.optimizer.Adagrad, options | extra
    if name == "rmsprop":
        return paddle.optimizer.RMSProp, options | extra
    raise ArgumentError(f"optim={name!r} has no implementation on paddle; use adamw, sgd, rmsprop or adagrad")


def build(cls: Any, groups: list[dict[str, Any]], options: dict[str, Any]) -> Any:
    """An optimizer over these groups; an error lists options that the class does not accept."""
    accepted = inspect.signature(cls).parameters
    wrong = [key for key in options if key not in accepted]
    if wrong and not any(p.kind == p.VAR_KEYWORD for p in accepted.values()):
        raise ArgumentError(
            f"{cls.__name__} does not accept {', '.join(wrong)} (from optim_args or optimizer_cls_and_kwargs); it "
            f"accepts {', '.join(name for name in accepted if name != 'parameters')}."
        )
    words = [f"{key}={value!r}" for key, value in options.items() if isinstance(value, str) and key != "name"]
    if words:  # Paddle would only fail in its first step
        raise ArgumentError(f"cannot create {cls.__name__}: {', '.join(words)} is not a number. Check optim_args.")
    try:
        return cls(**options | _decayed(accepted, groups, options))
    except (TypeError, ValueError, AssertionError) as error:
        raise ArgumentError(
            f"cannot create {cls.__name__}: {error}. Check learning_rate, the adam_ arguments, optim_args and "
            "optimizer_cls_and_kwargs."
        ) from error


def _decayed(accepted: Any, groups: list[dict[str, Any]], options: dict[str, Any]) -> dict[str, Any]:
    """Parameters and weight decay, in the format that this class accepts."""
    flat = [p for group in groups for p in group["params"]]
    others = {key for group in groups for key in group} - {"params", "weight_decay"}
    if others:
        raise ArgumentError(
            f"a parameter group has {', '.join(sorted(others))}; on Paddle, a group that get_optimizer_cls_and_kwargs "
            "returns has params and weight_decay only. For other options, override create_optimizer."
        )
    for p in flat:
        if isinstance(getattr(p, "regularizer", None), _Decay):
            p.regularizer = None
    rates = {group["weight_decay"] for group in groups} - {0.0}
    if "weight_decay" in options or _DECAY_FUNCTION in options:
        return {"parameters": flat}
    if _DECAY_FUNCTION not in accepted:
        if not rates or "weight_decay" not in accepted:
            return {"parameters": flat}
        return {"parameters": [group | {"weight_decay": _Decay(group["weight_decay"])} for group in groups]}
    if not rates:
        return {"parameters": flat, "weight_decay": 0.0}
    names = frozenset(p.name for group in groups if group["weight_decay"] for p in group["params"])
    return {"parameters": flat, "weight_decay": max(rates), _DECAY_FUNCTION: names.__contains__}


def groups(optimizer: Any) -> list[dict[str, Any]]:
    """The parameters of an optimizer in groups, each with its weight decay, whatever its internal format."""
    listed = getattr(optimizer, "_param_groups", None) or getattr(optimizer, "_parameter_list", None) or []
    if listed and isinstance(listed[0], dict):
        return [group | {"weight_decay": _rate(group.get("weight_decay"))} for group in listed]
    rate = _rate(getattr(optimizer, "_weight_decay", None) or getattr(optimizer, "regularization", None))
    chosen = getattr(optimizer, f"_{_DECAY_FUNCTION}", None)
    if not rate or chosen is None:
        return [{"params": list(listed), "weight_decay": rate}]
    made = [
        {"params": [p for p in listed if chosen(p.name)], "weight_decay": rate},
        {"params": [p for p in listed if not chosen(p.name)], "weight_decay": 0.0},
    ]
    return [group for group in made if group["params"]]


def _rate(decay: Any) -> float:
    """Weight decay as a number: Paddle accepts numbers and regularizer objects."""
    if decay is None or isinstance(decay, (int, float)):
        return float(decay or 0.0)
    return float(getattr(decay, "_coeff", getattr(decay, "_regularization_coeff", 0.0)))


def _factors(optimizer: Any) -> list[float]:
    """The factor of the optimizer's rate for each group. Cached, since it is used in each step."""
    if optimizer not in _known_factors:
        _known_factors[optimizer] = [float(group.get("learning_rate", 1.0)) for group in groups(optimizer)] or [1.0]
    return _known_factors[optimizer]


def learning_rates(optimizer: Any) -> list[float]:
    rate = optimizer.get_lr()
    return [rate * factor for factor in _factors(optimizer)]


def set_learning_rates(optimizer: Any, rates: list[float]) -> None:
    """Paddle has one rate for all groups: set it from the first group; the others follow from their factors."""
    optimizer.set_lr(rates[0] / _factors(optimizer)[0])


def attached_schedule(optimizer: Any) -> Any:
    """The schedule that an optimizer was created with in place of a rate; None if it has a rate."""
    rate = getattr(optimizer, "_learning_rate", None)
    return rate if isinstance(rate, LRScheduler) else None


def make_standalone_schedule(rate: float, factor: Callable[[int], float]) -> LRScheduler:
    """A schedule with which an optimizer can be created, as overrides of create_scheduler do."""
    return paddle.optimizer.lr.LambdaDecay(rate, factor)


def attach(optimizer: Any, scheduler: Any) -> None:
    """Connect the optimizer to a schedule of Paddle that was passed in separately."""
    if isinstance(scheduler, LRScheduler) and attached_schedule(optimizer) is not scheduler:
        optimizer.set_lr_scheduler(scheduler)


def group_of(optimizer: Any, parameter: paddle.Tensor | None) -> Any:
    """The group of the parameter, or all groups."""
    if parameter is None:
        return [group["params"] for group in groups(optimizer)]
    return next((group for group in groups(optimizer) if any(p is parameter for p in group["params"])), None)
