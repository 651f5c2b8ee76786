"""The loop. Everything else is a part that it calls."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import CheckpointError

if TYPE_CHECKING:
    from .distributed.step_sync import SharedUpdate
    from .trainer.run import Run


@dataclass
class Plan:
    """How long a run is. A step is one update; it takes `accumulation` micro-batches of the loader."""

    loader: Any
    accumulation: int
    steps_per_epoch: int | None  # None: the loader does not know its length
    max_steps: int  # -1: as long as the epochs last
    epochs: int
    samples: int | None  # in one epoch
    samples_per_step: int  # by the arguments
    batches_per_step: int = 1  # of all processes
    own_batch_size: int | None = None  # of a data set that makes batches itself, whatever the arguments say

    @property
    def rows_per_step(self) -> int:
        """Samples of one update as they come, for figures of speed."""
        if self.own_batch_size is None:
            return self.samples_per_step
        return self.own_batch_size * self.batches_per_step

    def is_over(self, step: int) -> bool:
        return 0 < self.max_steps <= step

    def epoch_at(self, epoch: int, step_in_epoch: int) -> float:
        """The epoch as a fraction, for logs."""
        if self.steps_per_epoch:
            return epoch + step_in_epoch / self.steps_per_epoch
        return epoch + (step_in_epoch / self.max_steps if self.max_steps > 0 else 0.0)


@dataclass
class Position:
    """Where a run stands: after this many steps of this epoch."""

    epoch: int = 0
    step_in_epoch: int = 0
    epoch_ended: bool = False  # its end has been logged, evaluated and saved
    epoch_stopped: bool = False  # a callback had ended it early


def plan_steps(steps_per_epoch: int | None, args: Any) -> tuple[int, int]:
    """(max_steps, epochs) from max_steps or num_train_epochs; a fraction of an epoch is trained."""
    if args.max_steps > 0:
        epochs = math.ceil(args.max_steps / steps_per_epoch) if steps_per_epoch else 2**62
        return args.max_steps, epochs
    if steps_per_epoch is None:
        return -1, math.ceil(args.num_train_epochs)
    return math.ceil(args.num_train_epochs * steps_per_epoch), math.ceil(args.num_train_epochs)


def accumulation_for(samples_per_step: int, batch_size: int, processes: int) -> int:
    """Micro-batches that make up an update of that many samples; an error that lists what fits when none does."""
    steps, rest = divmod(samples_per_step, batch_size * processes)
    if rest == 0 and steps > 0:
        return steps
    share, odd = divmod(samples_per_step, processes)
    fits = [str(size) for size in range(1, share + 1) if share % size == 0] if odd == 0 else []
    raise CheckpointError(
        f"the checkpoint has {samples_per_step} samples in an update, which {processes} process(es) with batches of "
        f"{batch_size} cannot make up. "
        + (
            f"With {processes} process(es), per_device_train_batch_size can be {', '.join(fits)}."
            if fits
            else f"Use a number of processes that divides {samples_per_step}."
        )
    )


def run(run: "Run") -> None:
    """Train from the run's position to the end of its plan, or until a callback stops it."""
    plan, position, state = run.plan, run.position, run.core.trainer.state
    for epoch in range(position.epoch, plan.epochs):
        if epoch != position.epoch:
            position.epoch, position.step_in_epoch, position.epoch_ended = epoch, 0, False
        if position.step_in_epoch == 0 and run.is_over:
            break
        batches = run.epochs.open(epoch, position.step_in_epoch)
        run.call("on_epoch_begin")
        run.core.trainer.control.should_epoch_stop, position.epoch_stopped = position.epoch_stopped, False
        for micro_batches, shared in updates(run, batches):
            run.call("on_step_begin")
            loss = run.update.accumulate(micro_batches, shared)
            run.update.apply(loss)
            position.step_in_epoch += 1
            state.global_step += 1
            state.epoch = plan.epoch_at(epoch, position.step_in_epoch)
            run.call("on_step_end")
            run.step_end.log_evaluate_save()
        if position.step_in_epoch == 0:
            run.end_of_empty_epoch()
            break
        state.epoch = plan.epoch_at(epoch, position.step_in_epoch) if plan.steps_per_epoch else float(epoch + 1)
        position.epoch_ended = True
        run.call("on_epoch_end")
        run.step_end.log_evaluate_save()


def updates(run: "Run", batches: Iterator[Any]) -> "Iterator[tuple[list[Any], SharedUpdate]]":
    """The micro-batches of each update, and what the processes agreed on, until the epoch or the run is over."""
    trainer = run.core.trainer
    while not run.is_over and not trainer.control.should_epoch_stop:
        micro_batches, num_items = trainer.get_batch_samples(batches, run.plan.accumulation, trainer.args.device)
        shared = run.sync.share(micro_batches, num_items)
        if not shared.has_batch:
            return
        yield micro_batches, shared
