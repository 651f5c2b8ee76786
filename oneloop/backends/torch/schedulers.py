"""Schedulers of oneloop that are also torch's: isinstance, get_lr, lr_lambdas, and initial_lr in the groups."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from ...optim.plateau import Greedy
from ...optim.scheduler import MetricScheduler, Scheduler


def _initial_rates(optimizer: Any) -> list[float]:
    """The learning rate of each group before any schedule changed it, which torch's schedulers keep in the group."""
    return [float(group.setdefault("initial_lr", group["lr"])) for group in optimizer.param_groups]


class StepScheduler(Scheduler, LambdaLR):
    """A schedule by the step. `lr_lambdas` has one factor for each group, and may be replaced."""

    @classmethod
    def initial_rate(cls, backend: Any, optimizer: Any) -> float:
        defaults = getattr(optimizer, "defaults", {})
        return float(defaults["lr"]) if "lr" in defaults else _initial_rates(optimizer)[0]

    def _initial_rates(self) -> list[float]:
        return _initial_rates(self.optimizer)

    @property
    def lr_lambdas(self) -> list[Callable[[int], float]]:
        return self.factors or [self.factor] * len(self.base_lrs)

    @lr_lambdas.setter
    def lr_lambdas(self, value: Iterable[Callable[[int], float]]) -> None:
        self.factors = list(value)

    @property
    def _step_count(self) -> int:
        return self.last_epoch + 1


class _FollowsMetric(MetricScheduler):
    """Attributes of the rule, under the names that they have in torch."""

    _NAMES: ClassVar[dict[str, str]] = {
        "num_bad_epochs": "bad",
        "num_good_epochs": "good",
        "cooldown_counter": "resting",
        "_last_lr": "lrs",
    }

    def __getattr__(self, name: str) -> Any:
        if name == "rule" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.rule, self._NAMES.get(name, name))


class PlateauScheduler(_FollowsMetric, ReduceLROnPlateau):
    """reduce_lr_on_plateau."""


def class_for(rule: Any = None) -> Any:
    """The class of schedulers by the step, or of those that follow a metric by this rule."""
    if rule is None:
        return StepScheduler
    return _FollowsMetric if isinstance(rule, Greedy) else PlateauScheduler
