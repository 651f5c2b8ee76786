"""The training loop. The objects of the run, which it calls, do everything else.

The order within a step is fixed: get the micro-batches, agree with the other processes on them (a collective),
accumulate gradients, apply the update, count the step, call callbacks, then log, evaluate and save. A checkpoint
therefore always holds the state after complete steps.
"""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .distributed.step_sync import SharedUpdate
    from .trainer.run import Run


def run(run: "Run") -> None:
    """Train from the position of the run to the end of its plan, or until a callback stops it."""
    plan, position, trainer, state = run.plan, run.position, run.trainer, run.trainer.state
    for epoch in range(position.epoch + position.epoch_ended, plan.epochs):
        if epoch != position.epoch:
            position.begin(epoch)
        if position.step_in_epoch == 0 and run.is_over:
            break
        position.at_boundary = False
        batches = run.epochs.open(epoch, position.step_in_epoch)
        if run.modes.waiting:
            run.modes.train()
        run.call("on_epoch_begin")
        trainer.control.should_epoch_stop, position.epoch_stopped = position.epoch_stopped, False
        for micro_batches, shared in updates(run, batches):
            if run.modes.waiting:
                run.modes.train()
            run.update.begin(micro_batches, shared)
            run.call("on_step_begin")
            if shared is None:
                run.update.advance_without_update()
            else:
                loss = run.update.accumulate(micro_batches, shared)
                run.update.apply(loss)
            position.step_in_epoch += 1
            position.at_boundary = True
            state.global_step += 1
            state.epoch = plan.epoch_at(epoch, position.step_in_epoch)
            run.call("on_step_end")
            run.step_end.log_evaluate_save()
        if position.step_in_epoch == 0:
            run.handle_empty_epoch()
            break
        if plan.batches is None and plan.max_steps <= 0:  # the steps do not tell how far the run is
            state.epoch = float(epoch + 1)
        position.epoch_ended = position.at_boundary = True
        run.call("on_epoch_end")
        run.step_end.log_evaluate_save()


def updates(run: "Run", batches: Iterator[Any]) -> "Iterator[tuple[list[Any], SharedUpdate | None]]":
    """The micro-batches of each update, and what the processes agreed on, until the epoch or the run ends. None: these
    samples are left out, in all processes.

    `share` is a collective that every process calls once per update, also one that has no batch left: the processes
    leave this loop together or not at all.
    """
    trainer = run.trainer
    while not run.is_over and not trainer.control.should_epoch_stop:
        run.position.at_boundary = False
        begun = time.perf_counter()
        micro_batches, num_items = trainer.get_batch_samples(batches, run.plan.accumulation, run.core.device)
        run.meter.add_data_wait(time.perf_counter() - begun)
        if trainer.state.global_step + 1 in run.skipped_steps:
            if not run.sync.any_process_has_batch(micro_batches):  # it is the first step of the next epoch
                return
            yield micro_batches, None
            continue
        shared = run.sync.sync_before_update(micro_batches, num_items)
        if not shared.has_batch:
            return
        yield micro_batches, shared
