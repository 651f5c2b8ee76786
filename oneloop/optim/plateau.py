"""Schedules driven by a metric: one update per evaluation, with a state of plain data.

Both rules change the learning rates themselves, one per parameter group, and keep them in `lrs`: multiplying a
base learning rate by a running factor would round differently from torch's ReduceLROnPlateau.
"""

import math
from collections.abc import Sequence
from typing import Any

from ..errors import ArgumentError


def rates_of_groups(stored: Sequence[float], count: int) -> list[float]:
    """Stored learning rates for this number of groups: frameworks and earlier releases divide parameters into other
    groups, which have one rate."""
    return [stored[0]] * count if len(stored) != count and len(set(stored)) == 1 else list(stored)


class Plateau:
    """Multiplies the learning rates by `factor` after more than `patience` evaluations in a row without improvement."""

    best: float
    _state: tuple[str, ...] = ("lrs", "best", "bad", "resting")

    def __init__(
        self,
        lr_init: float | Sequence[float],
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | Sequence[float] = 0.0,
        eps: float = 1e-8,
    ):
        for option, value, choices in (
            ("mode", mode, ("min", "max")),
            ("threshold_mode", threshold_mode, ("rel", "abs")),
        ):
            if value not in choices:
                raise ArgumentError(
                    f"Invalid {option}={value!r}: expected {' or '.join(choices)}; fix lr_scheduler_kwargs"
                )
        if not 0.0 < factor < 1.0:
            raise ArgumentError(f"Invalid factor={factor}: expected a number between 0 and 1; fix lr_scheduler_kwargs")
        self.lr_init = [float(lr) for lr in lr_init] if isinstance(lr_init, Sequence) else [float(lr_init)]
        self.mode = mode
        self.factor = factor
        self.patience = patience
        self.threshold = threshold
        self.threshold_mode = threshold_mode
        self.cooldown = cooldown
        self.min_lrs = self._for_each_group("min_lr", min_lr)
        self.eps = eps
        self._reset()

    def update(self, metric: float) -> float:
        """Update with an evaluation's metric; returns the first group's learning rate over its base (see `lrs`)."""
        self._follow(float(metric))
        return self.lrs[0] / self.lr_init[0] if self.lr_init[0] else 1.0

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint, as JSON-compatible data: `best` is None before the first evaluation."""
        state = {name: getattr(self, name) for name in self._state}
        state = {name: list(value) if isinstance(value, list) else value for name, value in state.items()}
        return state | {"best": None if self.best == self._worst else self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        missing = [name for name in self._state if name not in state]
        if not missing:
            state = state | {"lrs": rates_of_groups(state["lrs"], len(self.lrs))}
        if missing or len(state["lrs"]) != len(self.lrs):
            raise ArgumentError(
                f"this is not the state of {type(self).__name__} for {len(self.lrs)} parameter groups: it has "
                f"{', '.join(sorted(state)) or 'nothing'}. Resume with the schedule and optimizer it was saved with."
            )
        for name in self._state:
            value = state[name]
            setattr(self, name, list(value) if isinstance(value, list) else value)
        if self.best is None:
            self.best = self._worst

    @property
    def _worst(self) -> float:
        return math.inf if self.mode == "min" else -math.inf

    def _reset(self) -> None:
        self.lrs = list(self.lr_init)
        self.best = self._worst
        self.bad = 0
        self.resting = 0  # remaining evaluations before bad ones count again

    def _follow(self, metric: float) -> None:
        if self._is_better(metric):
            self.best = metric
            self.bad = 0
        else:
            self.bad += 1
        if self.resting > 0:
            self.resting -= 1
            self.bad = 0
        if self.bad > self.patience:
            self._lower()
            self.resting = self.cooldown
            self.bad = 0

    def _is_better(self, metric: float) -> bool:
        if self.mode == "min":
            bar = self.best * (1.0 - self.threshold) if self.threshold_mode == "rel" else self.best - self.threshold
            return metric < bar
        bar = self.best * (1.0 + self.threshold) if self.threshold_mode == "rel" else self.best + self.threshold
        return metric > bar

    def _lower(self) -> None:
        for group, (lr, lowest) in enumerate(zip(self.lrs, self.min_lrs, strict=True)):
            lowered = max(lr * self.factor, lowest)
            if lr - lowered > self.eps:
                self.lrs[group] = lowered

    def _for_each_group(self, option: str, value: float | Sequence[float]) -> list[float]:
        values = list(value) if isinstance(value, Sequence) else [value] * len(self.lr_init)
        if len(values) != len(self.lr_init):
            raise ArgumentError(
                f"{option} has {len(values)} values for {len(self.lr_init)} parameter groups; pass one number, or one "
                "per group"
            )
        return values


class Greedy(Plateau):
    """Raises the learning rates while the metric improves and lowers them otherwise (GreedyLR, arXiv 2512.14527).

    `warmup` is the waiting period after a raise, as `cooldown` is after a reduction. With `smooth` a rolling mean of
    `window_size` finite metrics is used. After `reset_start` reductions with every group at its minimum, the rule
    restarts.
    """

    _state = (*Plateau._state, "good", "resets_in", "window", "window_sum")

    def __init__(
        self,
        lr_init: float | Sequence[float],
        mode: str = "min",
        factor: float = 0.95,
        patience: int = 10,
        threshold: float = 1e-6,
        threshold_mode: str = "abs",
        cooldown: int = 0,
        warmup: int = 0,
        min_lr: float | Sequence[float] = 1e-3,
        max_lr: float | Sequence[float] = 1.0,
        eps: float = 1e-8,
        smooth: bool = False,
        window_size: int = 50,
        reset_start: int = 500,
    ):
        self.warmup = warmup
        self.smooth = smooth
        self.window_size = window_size
        self.reset_start = reset_start
        super().__init__(lr_init, mode, factor, patience, threshold, threshold_mode, cooldown, min_lr, eps)
        self.max_lrs = self._for_each_group("max_lr", max_lr)

    def _reset(self) -> None:
        super()._reset()
        self.good = 0
        self.resets_in = self.reset_start
        self.window: list[float] = []
        self.window_sum = 0.0

    def _follow(self, metric: float) -> None:
        if self.smooth:
            metric = self._smoothed(metric)
        if self.resting > 0:
            self.resting -= 1
            self.bad = self.good = 0
            return
        if self._is_better(metric):
            self.best = metric
            self.good, self.bad = self.good + 1, 0
        else:
            self.good, self.bad = 0, self.bad + 1
        if self.good > self.patience:
            self._raise()
            self.resting = self.warmup
            self.good = 0
        elif self.bad > self.patience:
            self._lower()
            self.resting = self.cooldown
            self.bad = 0

    def _smoothed(self, metric: float) -> float:
        if not math.isfinite(metric):  # a running sum would never forget it
            return metric
        self.window.append(metric)
        self.window_sum += metric
        if len(self.window) > self.window_size:
            self.window_sum -= self.window.pop(0)
        return self.window_sum / len(self.window)

    def _raise(self) -> None:
        for group, (lr, highest) in enumerate(zip(self.lrs, self.max_lrs, strict=True)):
            raised = min(lr / self.factor, highest)
            if raised - lr > self.eps:
                self.lrs[group] = raised
        self.resets_in = self.reset_start

    def _lower(self) -> None:
        super()._lower()
        if all(lr <= lowest for lr, lowest in zip(self.lrs, self.min_lrs, strict=True)):
            self.resets_in -= 1
            if self.resets_in <= 0:
                self._reset()
