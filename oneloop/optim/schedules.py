"""Learning rate schedules. A schedule is a pure function from the step to a factor of the base learning rate.

The step is the number of updates done so far, so the first update uses factor(0) and a checkpoint only needs to store
the step. Factors (float64) are the same bits as those of the usual functions for torch. Two rules depend on a metric
instead of the step and have a small state: Plateau and Greedy in plateau.py.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any

from ..errors import ArgumentError
from .plateau import Greedy, Plateau

Schedule = Callable[[int], float]


def make_schedule(
    name: str,
    num_warmup_steps: int | None = 0,
    num_training_steps: int | None = None,
    *,
    lr_init: float | None = None,
    **options: Any,
) -> "Factor":
    """The factor function of this name; `options` are its lr_scheduler_kwargs.

    `lr_init` is the base learning rate, needed by the schedules that end at a given learning rate.
    """
    name = _known(name)
    if follows_metric(name):
        raise ArgumentError(f"{name} depends on a metric, not the step; use make_metric_schedule")
    make = _BY_STEP[name]
    accepted = set(inspect.signature(make).parameters) - {"warmup", "total"}
    _check_options(name, options, accepted - {"lr_init"})
    again = partial(make_schedule, name, num_warmup_steps, num_training_steps, **options)
    if num_training_steps is None and needs_length(name) and options.get("num_stable_steps") is None:
        free = ", ".join(sorted(_BY_STEP.keys() & _ENDLESS))
        raise ArgumentError(
            f"the schedule {name} needs num_training_steps. Set max_steps, or train on a dataset that has a length, or "
            f"use a schedule that does not need it: {free}."
        )
    if "lr_init" in accepted:
        options["lr_init"] = lr_init
    warmup = num_warmup_steps or 0
    function = make(warmup, num_training_steps, **options)
    return Factor(function, _described(name, make, warmup, num_training_steps, options), again)


class Factor:
    """A schedule with its settings, under their usual names."""

    args: tuple = ()

    def __init__(self, function: Schedule, keywords: dict[str, Any], again: Callable[..., "Factor"]) -> None:
        self.func = function
        self.keywords = keywords
        self._again = again

    def start_from(self, rate: float) -> None:
        """Change the base learning rate, which schedules that end at a given learning rate depend on."""
        made = self._again(lr_init=rate)
        self.func, self.keywords = made.func, made.keywords

    def __call__(self, step: int) -> float:
        return self.func(step)


def _described(
    name: str, make: Callable[..., Any], warmup: int, total: int | None, options: dict[str, Any]
) -> dict[str, Any]:
    """All settings of a schedule, with defaults and in their final form."""
    if name == "constant":
        return {}
    parameters = list(inspect.signature(make).parameters.values())[2:]
    settings = {p.name: p.default for p in parameters} | options
    if "min_lr" in settings:
        rate = _lowest_rate(settings.pop("lr_init"), settings.pop("min_lr"), settings["min_lr_rate"])
        settings["min_lr_rate"] = rate
    if name == "inverse_sqrt" and settings["timescale"] is None:
        settings["timescale"] = warmup or 10_000
    if name == "warmup_stable_decay" and settings["num_stable_steps"] is None and total is not None:
        settings["num_stable_steps"] = total - warmup - settings["num_decay_steps"]
    ends = {"num_training_steps": total} if needs_length(name) and name != "warmup_stable_decay" else {}
    return {"num_warmup_steps": warmup} | ends | settings


def make_metric_schedule(name: str, lr_init: float | Sequence[float], **options: Any) -> Plateau:
    """The metric-driven rule of this name; `lr_init` is one learning rate, or one per parameter group."""
    name = _known(name)
    if not follows_metric(name):
        raise ArgumentError(f"{name} depends on the step, not a metric; use make_schedule")
    rule = _BY_METRIC[name]
    _check_options(name, options, set(inspect.signature(rule).parameters) - {"lr_init"})
    return rule(lr_init, **options)


def needs_length(name: str) -> bool:
    """Whether the schedule needs the total number of steps."""
    return _known(name) not in _ENDLESS


def follows_metric(name: str) -> bool:
    """Whether the learning rate changes after evaluations instead of after steps."""
    return _known(name) in _BY_METRIC


def _known(name: Any) -> str:
    name = getattr(name, "value", name)
    if name in _BY_STEP or name in _BY_METRIC:
        return name
    names = [*_BY_STEP, *_BY_METRIC]
    raise ArgumentError(f"Unknown schedule {name!r}{_nearest(name, names)} Expected one of {', '.join(names)}.")


def _check_options(name: str, options: dict[str, Any], accepted: set[str]) -> None:
    for option, value in options.items():
        if option not in accepted:
            has = f"accepts {', '.join(sorted(accepted))}" if accepted else "accepts no options"
            raise ArgumentError(
                f"the schedule {name} has no option {option!r}{_nearest(option, accepted)} It {has}; "
                "fix lr_scheduler_kwargs."
            )
        if isinstance(value, str) and not option.endswith(("_type", "mode")):
            raise ArgumentError(f"Invalid {option}={value!r} for the schedule {name}: expected a number, not a string")


def _nearest(name: Any, names: Any) -> str:
    match = get_close_matches(str(name).lower(), list(names), 1)
    return f"; did you mean {match[0]}?" if match else "."


# Schedules by step. `warmup` and `total` are counts of updates. The order of operations is part of the contract: other
# forms of the same formula round differently.


def _ramp(warmup: int, after: Schedule) -> Schedule:
    if not warmup:
        return after
    divisor = max(1, warmup)
    return lambda step: step / divisor if step < warmup else after(step)


def _constant(warmup: int, total: int | None) -> Schedule:
    return lambda step: 1.0


def _constant_with_warmup(warmup: int, total: int | None) -> Schedule:
    return _ramp(warmup, lambda step: 1.0)


def _linear(warmup: int, total: int) -> Schedule:
    span = max(1, total - warmup)
    return _ramp(warmup, lambda step: max(0.0, (total - step) / span))


def _cosine(warmup: int, total: int, *, num_cycles: float = 0.5) -> Schedule:
    return _ramp(warmup, _wave(warmup, total, num_cycles, 0.0))


def _cosine_with_restarts(warmup: int, total: int, *, num_cycles: float = 1) -> Schedule:
    span = max(1, total - warmup)

    def after(step: int) -> float:
        progress = (step - warmup) / span
        if progress >= 1.0:
            return 0.0
        return max(0.0, 0.5 * (1.0 + math.cos(math.pi * (num_cycles * progress % 1.0))))

    return _ramp(warmup, after)


def _cosine_with_min_lr(
    warmup: int,
    total: int,
    *,
    lr_init: float | None,
    num_cycles: float = 0.5,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
) -> Schedule:
    return _ramp(warmup, _wave(warmup, total, num_cycles, _lowest_rate(lr_init, min_lr, min_lr_rate)))


def _cosine_warmup_with_min_lr(
    warmup: int,
    total: int,
    *,
    lr_init: float | None,
    num_cycles: float = 0.5,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
    warmup_lr_rate: float | None = None,
) -> Schedule:
    # This schedule counts from 1: its warmup ends at the full learning rate and its cosine at the last update.
    after = _wave(warmup - 1, total - 1, num_cycles, _lowest_rate(lr_init, min_lr, min_lr_rate))
    if warmup_lr_rate is None:
        return lambda step: (step + 1.0) / max(1, warmup) if step < warmup else after(step)
    rate, divisor = float(warmup_lr_rate), max(1, warmup - 1)
    return lambda step: rate + (1.0 - rate) * step / divisor if step < warmup else after(step)


def _wave(start: int, end: int, num_cycles: float, lowest: float) -> Schedule:
    span = max(1, end - start)
    turns = math.pi * num_cycles * 2.0

    def factor(step: int) -> float:
        height = 0.5 * (1.0 + math.cos(turns * ((step - start) / span)))
        return max(0.0, height * (1 - lowest) + lowest)

    return factor


def _lowest_rate(lr_init: float | None, min_lr: float | None, min_lr_rate: float | None) -> float:
    if (min_lr is None) == (min_lr_rate is None):
        given = "neither is" if min_lr is None else "both are"
        raise ArgumentError(
            f"a schedule with a minimum learning rate needs either min_lr or min_lr_rate, but {given} given; "
            "set one of them in lr_scheduler_kwargs."
        )
    if min_lr_rate is not None:
        return min_lr_rate
    if min_lr is None or not lr_init:
        raise ArgumentError("min_lr needs a base learning rate above 0 (lr_init); set min_lr_rate instead")
    return min_lr / lr_init


def _polynomial(
    warmup: int, total: int, *, lr_init: float | None, lr_end: float = 1e-7, power: float = 1.0
) -> Schedule:
    if lr_init is None or lr_init <= lr_end:
        raise ArgumentError(
            f"the polynomial schedule ends at lr_end={lr_end}, but the base learning rate (lr_init) is {lr_init}; "
            "increase learning_rate above it, or lower lr_end in lr_scheduler_kwargs."
        )
    span = max(1, total - warmup)

    def after(step: int) -> float:
        if step > total:
            return lr_end / lr_init
        remaining = 1 - (step - warmup) / span
        return ((lr_init - lr_end) * remaining**power + lr_end) / lr_init

    return _ramp(warmup, after)


def _inverse_sqrt(warmup: int, total: int | None, *, timescale: float | None = None) -> Schedule:
    scale = (warmup or 10_000) if timescale is None else timescale
    if scale <= 0:
        raise ArgumentError(f"Invalid timescale={timescale} of inverse_sqrt: expected a number of steps above 0")
    return _ramp(warmup, lambda step: 1.0 / math.sqrt((step + (scale - warmup)) / scale))


def _warmup_stable_decay(
    warmup: int,
    total: int | None,
    *,
    num_decay_steps: int | None = None,
    num_stable_steps: int | None = None,
    warmup_type: str = "linear",
    decay_type: str = "cosine",
    min_lr_ratio: float = 0.0,
    num_cycles: float = 0.5,
) -> Schedule:
    if num_decay_steps is None:
        raise ArgumentError("warmup_stable_decay requires num_decay_steps; set it in lr_scheduler_kwargs")
    rises = {
        "linear": lambda done: done,
        "cosine": lambda done: 0.5 * (1.0 - math.cos(math.pi * done)),
        "1-sqrt": lambda done: 1.0 - math.sqrt(1.0 - done),
    }
    turns = math.pi * num_cycles * 2.0
    falls = {
        "linear": lambda done: 1.0 - done,
        "cosine": lambda done: 0.5 * (1.0 + math.cos(turns * done)),
        "1-sqrt": lambda done: 1.0 - math.sqrt(done),
    }
    for option, kind in (("warmup_type", warmup_type), ("decay_type", decay_type)):
        if kind not in rises:
            raise ArgumentError(f"Invalid {option}={kind!r} of warmup_stable_decay: expected one of {', '.join(rises)}")
    rise, fall = rises[warmup_type], falls[decay_type]
    if num_stable_steps is None:
        assert total is not None, "make_schedule requires one of the two"
        num_stable_steps = total - warmup - num_decay_steps
    decay = warmup + num_stable_steps  # the step at which the decay starts

    def factor(step: int) -> float:
        if step < warmup:
            height = rise(step / max(1, warmup))
        elif step < decay:
            return 1.0
        elif step < decay + num_decay_steps:
            height = fall((step - decay) / max(1, num_decay_steps))
        else:
            return float(min_lr_ratio)
        return max(0.0, height * (1.0 - min_lr_ratio) + min_lr_ratio)

    return factor


_BY_STEP: dict[str, Callable[..., Schedule]] = {
    "linear": _linear,
    "cosine": _cosine,
    "cosine_with_restarts": _cosine_with_restarts,
    "polynomial": _polynomial,
    "constant": _constant,
    "constant_with_warmup": _constant_with_warmup,
    "inverse_sqrt": _inverse_sqrt,
    "cosine_with_min_lr": _cosine_with_min_lr,
    "cosine_warmup_with_min_lr": _cosine_warmup_with_min_lr,
    "warmup_stable_decay": _warmup_stable_decay,
}
_BY_METRIC: dict[str, type[Plateau]] = {"reduce_lr_on_plateau": Plateau, "greedy": Greedy}
_ENDLESS = {"constant", "constant_with_warmup", "inverse_sqrt", *_BY_METRIC}
