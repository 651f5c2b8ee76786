"""How long a run is, and how far it has come."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import CheckpointError

if TYPE_CHECKING:
    from .optim.cooldown import Cooldown


@dataclass
class StepPlan:
    """The length of a run. A step is one update; it takes `accumulation` micro-batches from the loader."""

    loader: Any
    accumulation: int
    batches: int | None  # micro-batches of one process in an epoch; None: the loader has no length
    max_steps: int  # -1: until the last epoch ends
    epochs: int
    samples: int | None  # in one epoch
    samples_per_step: int  # according to the arguments
    batches_per_step: int = 1  # of all processes
    cooldown: "Cooldown | None" = None  # of a run that was branched from a checkpoint
    own_batch_size: int | None = None  # of a dataset that yields batches, whose size the arguments do not decide

    @property
    def steps_per_epoch(self) -> int | None:
        """None: the loader has no length."""
        return None if self.batches is None else -(-self.batches // self.accumulation)

    @property
    def rows_per_step(self) -> int:
        """Actual samples of one update, for speed metrics."""
        if self.own_batch_size is None:
            return self.samples_per_step
        return self.own_batch_size * self.batches_per_step

    @property
    def schedule_steps(self) -> int:
        """The length of the run for its learning-rate schedule."""
        return self.max_steps if self.cooldown is None else self.cooldown.schedule_steps

    def is_over(self, step: int) -> bool:
        return 0 < self.max_steps <= step

    def epoch_at(self, epoch: int, step_in_epoch: int) -> float:
        """The epoch as a fraction, for logs. It counts micro-batches, of which the last update of an
        epoch may have fewer; data without a length counts as max_steps long."""
        done = step_in_epoch * self.accumulation
        if self.batches:
            return epoch + min(done, self.batches) / self.batches
        return epoch + (done / (self.max_steps * self.accumulation) if self.max_steps > 0 else 0.0)


@dataclass
class Position:
    """The position of a run: the epoch, and the number of completed steps in it."""

    epoch: int = 0
    step_in_epoch: int = 0
    epoch_ended: bool = False  # its end has been logged, evaluated and saved
    epoch_stopped: bool = False  # a callback ended it early
    at_boundary: bool = True  # no update is under way: what a checkpoint would have is what the next step starts from

    def begin(self, epoch: int) -> None:
        self.epoch, self.step_in_epoch, self.epoch_ended, self.epoch_stopped = epoch, 0, False, False


def plan_steps(steps_per_epoch: int | None, args: Any, last_step: int | None = None) -> tuple[int, int]:
    """(max_steps, epochs) from the last step if it is known, max_steps or num_train_epochs, which may be a fraction."""
    max_steps = last_step or args.max_steps
    if max_steps > 0:
        return max_steps, math.ceil(max_steps / steps_per_epoch) if steps_per_epoch else 2**62
    if steps_per_epoch is None:
        return -1, math.ceil(args.num_train_epochs)
    return math.ceil(args.num_train_epochs * steps_per_epoch), math.ceil(args.num_train_epochs)


def accumulation_for(samples_per_step: int, batch_size: int, processes: int) -> int:
    """The number of micro-batches in an update of that many samples; if it is not whole, an error lists sizes that
    fit."""
    steps, rest = divmod(samples_per_step, batch_size * processes)
    if rest == 0 and steps > 0:
        return steps
    share, odd = divmod(samples_per_step, processes)
    fits = [str(size) for size in range(1, min(share, 4096) + 1) if share % size == 0] if odd == 0 else []
    raise CheckpointError(
        f"the checkpoint has {samples_per_step} samples in an update, which is not a multiple of {processes} "
        f"process(es) x per_device_train_batch_size={batch_size}. "
        + (
            f"With {processes} process(es), set per_device_train_batch_size to {', '.join(fits)}."
            if fits
            else f"Use a number of processes that divides {samples_per_step}."
        )
    )


def accumulation_of_batches(micro_batches: int, processes: int) -> int:
    """The micro-batches of one process in an update that keeps their number (max_tokens_per_batch); if they cannot be
    divided equally, an error lists the numbers of processes that can."""
    if micro_batches % processes == 0:
        return micro_batches // processes
    fits = [str(number) for number in range(1, micro_batches + 1) if micro_batches % number == 0]
    raise CheckpointError(
        f"the checkpoint has {micro_batches} micro-batch(es) in an update, which max_tokens_per_batch keeps, and "
        f"{processes} processes cannot have equally many of them. Use {' or '.join(fits)} process(es)."
    )


def accumulation_of_kept(micro_batches: int, samples_per_step: int, batch_size: int, processes: int) -> int:
    """The micro-batches of one process in an update that keeps its micro-batches (world_invariant), and so their size;
    if they cannot be divided equally, an error lists the numbers of processes that can."""
    size = samples_per_step // micro_batches
    if batch_size != size:
        raise CheckpointError(
            f"the micro-batches of the checkpoint have {size} samples, which world_invariant=True keeps, but "
            f"per_device_train_batch_size is {batch_size}. Set it to {size}."
        )
    if micro_batches % processes == 0:
        return micro_batches // processes
    fits = [str(number) for number in range(1, micro_batches + 1) if micro_batches % number == 0]
    raise CheckpointError(
        f"the checkpoint has {micro_batches} micro-batch(es) in an update, which world_invariant=True keeps, and "
        f"{processes} processes cannot have equally many of them. Use {' or '.join(fits)} process(es)."
    )
