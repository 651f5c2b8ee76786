"""cooldown_steps: a run that is branched from a checkpoint and decays the learning rate from its value there."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ArgumentError

# The share of the learning rate that is left, by the share of the cooldown that is done.
_FALLS: dict[str, Callable[[float], float]] = {
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
    "1-sqrt": lambda done: 1.0 - math.sqrt(done),
}
KINDS = tuple(_FALLS)


@dataclass(frozen=True)
class Cooldown:
    """`start` is the step of the checkpoint that the run was branched from, and `schedule_steps` the length of the run
    that wrote it: its schedule decides the learning rate at the start."""

    start: int
    steps: int
    schedule_steps: int
    kind: str
    is_new: bool = False  # this train() branches the run; otherwise it resumes a branched one

    @property
    def end(self) -> int:
        """The last step of the run."""
        return self.start + self.steps

    def follow(self, schedule: Callable[[int], float]) -> Callable[[int], float]:
        """The factor of the learning rate: that of the schedule up to the start, then less and less of it."""

        def factor(step: int) -> float:
            done = min(max(0, step - self.start) / self.steps, 1.0)
            return schedule(min(step, self.start)) * _FALLS[self.kind](done)

        return factor

    def state(self) -> dict[str, int]:
        """What run.json has of it."""
        return {"start": self.start, "schedule_steps": self.schedule_steps}


def cooldown_of(
    args: Any, step: int | None, max_steps: int, stored: Mapping[str, int] | None, follows_metric: bool
) -> Cooldown | None:
    """The cooldown of a run that starts from a checkpoint of this step and of a run of max_steps; `stored` is what the
    checkpoint has of it, if its run had one. None without cooldown_steps."""
    if args.cooldown_steps is None:
        return None
    if step is None:
        raise ArgumentError(
            f"cooldown_steps={args.cooldown_steps} decays the learning rate from a checkpoint, but the run starts from "
            "the beginning. Pass resume_from_checkpoint, or remove it."
        )
    if follows_metric:
        raise ArgumentError(
            f"cooldown_steps={args.cooldown_steps} needs a schedule by the step, but lr_scheduler_type="
            f"'{args.lr_scheduler_type}' follows evaluations. Use another schedule, or remove cooldown_steps."
        )
    if stored is not None:
        return Cooldown(stored["start"], args.cooldown_steps, stored["schedule_steps"], args.cooldown_type)
    return Cooldown(step, args.cooldown_steps, max_steps, args.cooldown_type, is_new=True)
