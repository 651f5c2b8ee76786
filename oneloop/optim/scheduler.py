"""Sets the learning rate of each step on the optimizer."""

from collections.abc import Callable
from typing import Any

from .plateau import rates_of_groups
from .schedules import Factor


class Scheduler:
    """Sets every group's learning rate to its initial one times a factor, a pure function of the step."""

    factors: list[Callable[[int], float]] | None = None  # one for each group, in place of one for all

    def __init__(self, backend: Any, optimizer: Any, factor: Callable[[int], float], start: int = 0) -> None:
        self.backend = backend
        self.optimizer = optimizer
        self.factor = factor
        self._schedule = factor  # which `follow` may build upon
        self._base_rate = self.initial_rate(backend, optimizer)  # that of groups without their own
        self.base_lrs: list[float] = self._initial_rates()
        self.last_epoch: int = start  # the step; named as in torch's schedulers
        self._apply()

    @classmethod
    def initial_rate(cls, backend: Any, optimizer: Any) -> float:
        """The learning rate that schedules with a given last learning rate start from."""
        return backend.optimizers.learning_rates(optimizer)[0]

    def _initial_rates(self) -> list[float]:
        return self.backend.optimizers.learning_rates(self.optimizer)

    def follow(self, change: Callable[[Callable[[int], float]], Callable[[int], float]]) -> None:
        """Change the factor, or that of each group."""
        self.factor = change(self.factor)
        if self.factors is not None:
            self.factors = [change(factor) for factor in self.factors]
        self._apply()

    def get_lr(self) -> list[float]:
        """The learning rates of the current step."""
        if self.factors is not None:
            return [rate * factor(self.last_epoch) for rate, factor in zip(self.base_lrs, self.factors, strict=True)]
        factor = self.factor(self.last_epoch)
        return [rate * factor for rate in self.base_lrs]

    def _apply(self) -> None:
        self._last_lr = self.get_lr()
        self.backend.optimizers.set_learning_rates(self.optimizer, self._last_lr)

    def step(self, epoch: int | None = None) -> None:
        """Advance to the next step, or to the given one."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        rates = self.backend.optimizers.learning_rates(self.optimizer)
        if len(rates) > len(self.base_lrs):  # groups added by a callback: their current rate is the initial one
            self.base_lrs = [*self.base_lrs, *rates[len(self.base_lrs) :]]
        self._apply()

    def get_last_lr(self) -> list[float]:
        return list(self._last_lr)

    def state_dict(self) -> dict[str, Any]:
        return {"last_epoch": self.last_epoch, "base_lrs": self.base_lrs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.last_epoch = int(state["last_epoch"])
        before, base = self.base_lrs, self._base_rate
        self.base_lrs = rates_of_groups(state.get("base_lrs", before), len(before))
        # A schedule that ends at a given learning rate gets there from the stored one.
        self._base_rate = next((rate for rate, own in zip(self.base_lrs, before) if own == base), base)
        if self._base_rate != base and isinstance(self._schedule, Factor):
            self._schedule.start_from(self._base_rate)
        self._apply()


class MetricScheduler:
    """reduce_lr_on_plateau and greedy: the learning rates depend on evaluations."""

    def __init__(self, backend: Any, optimizer: Any, rule: Any) -> None:
        self.backend = backend
        self.optimizer = optimizer
        self.rule = rule

    def step(self, metrics: float | None = None) -> None:
        """Called with the metric after an evaluation; without a metric it does nothing."""
        if metrics is not None:
            self.rule.update(float(metrics))
            self.backend.optimizers.set_learning_rates(self.optimizer, list(self.rule.lrs))

    def get_last_lr(self) -> list[float]:
        return list(self.rule.lrs)

    def state_dict(self) -> dict[str, Any]:
        return self.rule.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rule.load_state_dict(state)
        self.backend.optimizers.set_learning_rates(self.optimizer, list(self.rule.lrs))


def scheduler_class(rule: Any = None) -> Any:
    """The class of schedulers by the step, or of those that follow a metric by this rule."""
    return Scheduler if rule is None else MetricScheduler


_BY_METRIC = ("ReduceLROnPlateau", "ReduceOnPlateau", "GreedyLR")  # of torch, of Paddle, and of scripts


def steps_by_metric(scheduler: Any) -> bool:
    """Whether a scheduler steps after evaluations instead of updates."""
    return isinstance(scheduler, MetricScheduler) or type(scheduler).__name__ in _BY_METRIC
