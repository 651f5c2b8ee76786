"""Whether this process only plans: `oneloop plan` runs a script until its Trainer would train."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from ..distributed import mesh
from ..extension import Extension
from .methods import PlanMethods
from .results import TrainingPlan


@dataclass(frozen=True)
class Request:
    """The arguments of Trainer.plan."""

    options: dict[str, Any]


class PlanMade(BaseException):  # not an Exception: scripts catch these around train()
    """Ends the script; has the plan."""

    def __init__(self, plan: TrainingPlan) -> None:
        super().__init__("the plan is made")
        self.plan = plan


_current: Request | None = None


@contextmanager
def planning(request: Request) -> Iterator[None]:
    """A context in which train() plans instead of training."""
    global _current
    before, _current = _current, request
    try:
        with mesh.standing_for_all():
            yield
    finally:
        _current = before


def is_active() -> bool:
    return _current is not None


class PlanRequests(Extension):
    """Plans instead of training, if this process only plans."""

    def before_train(self) -> None:
        if is_active():
            answer(self.core.trainer)


def answer(trainer: Any) -> NoReturn:
    """Build the plan instead of training, and end the script."""
    assert _current is not None
    raise PlanMade(PlanMethods.plan(trainer, **_current.options))
