"""Resumes from a checkpoint that another library's Trainer wrote."""

import logging
import math
from pathlib import Path
from typing import Any

from .. import randomness
from ..converters import other_trainers
from ..errors import UnsupportedError
from ..formats.reading import restoring
from ..formats.safetensors_io import from_numpy
from ..formats.schema import check, is_finite, optional
from ..formats.structure import LOSS_SCALER, check_rng_states
from ..optim.scheduler import MetricScheduler, Scheduler
from ..steps import Position
from . import store
from .reader import Checkpoint
from .run_state import ResumePoint
from .saved_run import SavedRun

logger = logging.getLogger(__name__)


def load_run(run: SavedRun, checkpoint: Checkpoint) -> Position:
    """Load optimizer, schedule, loss scale and counters of the old run; weights and logs are loaded already.

    The run has an id of its own, so that it does not delete the old checkpoints.
    """
    core, trainer, path = run.core, run.core.trainer, checkpoint.path
    if core.strategy.is_sharded and not core.backend.external_checkpoint.LOADS_SHARDED:
        raise UnsupportedError(
            f"{path} was written by {other_trainers.writer(path)}, and on {core.backend.NAME} its optimizer state "
            "cannot be sharded while loading. Resume from it for one step without sharding; any strategy can resume "
            "from the checkpoint of that step."
        )
    other_trainers.check_framework(path, core.backend.NAME)
    state = other_trainers.state(path)
    run.set_run_id(store.new_run_id() if run.restart is None else run.restart.run_id)
    run.epochs.resume.keep_external(None)
    trainer._load_optimizer_and_scheduler(str(path))
    trainer._load_scaler(str(path))
    rule, notes, decay = run.epochs.resume.external or ("the Trainer's own class", [], {})
    _load_callbacks(run, state)
    for part in run.parts:
        part.load_from_other_trainer(path, state)
    start = _position(run, state, path)
    if _continues_data_order(run, path):
        notes = notes + _load_rng_state_of_run(run, path, start)
    notes = notes + _changes(run, state, decay) + other_trainers.missing(path)
    logger.warning("%s", _message(run, path, rule, start, notes))
    return start


def load_optimizer_and_scheduler(run: SavedRun, path: Path) -> None:
    """Load both; what was found is kept for the message."""
    trainer, reader = run.core.trainer, run.core.backend.external_checkpoint
    loaded = reader.load_optimizer(trainer.optimizer, trainer.model, path, run.core.strategy)
    notes = _load_schedule(trainer.lr_scheduler, reader.scheduler_state(path), loaded.sources)
    run.epochs.resume.keep_external((loaded.rule, notes, loaded.decay))


def load_scaler(run: SavedRun, path: Path) -> None:
    core = run.core
    state = core.backend.external_checkpoint.scaler_state(path)
    check(state, optional(LOSS_SCALER), f"the loss scaler in {path}")
    with restoring("the loss scaler", path):
        core.engine.load_state({"skipped": 0, "scaler": state})


def _load_schedule(scheduler: Any, state: dict[str, Any], sources: list[set[int]]) -> list[str]:
    """Set the schedule to the step of the old one; returns notes on what could not be restored."""
    if isinstance(scheduler, MetricScheduler):
        return ["the schedule depends on evaluations, and its history of them is not restored"]
    if not isinstance(scheduler, Scheduler):  # one of the user's own: of the same class, as far as anyone can tell
        load = getattr(scheduler, "load_state_dict", getattr(scheduler, "set_state_dict", None))
        if load is not None:  # Paddle's schedulers use the second name
            with restoring("the schedule", "the checkpoint"):
                load(state)
        return []
    if "last_lr" in state and "base_lrs" not in state:
        return _load_paddle_schedule(scheduler, state)
    rates, notes = list(scheduler.base_lrs), []
    listed = state.get("base_lrs")
    stored = [rate for rate in listed if is_finite(rate) and rate >= 0] if isinstance(listed, list) else []
    for i, source in enumerate(sources):
        known = {float(stored[j]) for j in source if j < len(stored)}
        if len(known) == 1:
            old = known.pop()
            if old != rates[i]:
                notes.append(f"learning_rate was {old}, and is kept (the arguments have {rates[i]})")
            rates[i] = old
        else:
            notes.append(f"the learning rate of parameter group {i} is this run's, {rates[i]}")
    scheduler.load_state_dict({"last_epoch": state["last_epoch"], "base_lrs": rates})
    return list(dict.fromkeys(notes))


def _load_paddle_schedule(scheduler: Scheduler, state: dict[str, Any]) -> list[str]:
    """Schedulers of Paddle store the rate of the step, and not the one that they started from."""
    scheduler.load_state_dict({"last_epoch": state["last_epoch"]})
    now, before = scheduler.get_last_lr()[0], state["last_lr"]
    if math.isclose(now, before, rel_tol=1e-6, abs_tol=1e-12):
        return []
    return [f"the learning rate at this step was {before}, and is {now} by the arguments of this run"]


def _load_callbacks(run: SavedRun, state: dict[str, Any]) -> None:
    """What callbacks of the old run kept elsewhere."""
    trainer = run.core.trainer
    for callback in trainer.callback_handler.callbacks:
        # Theirs compares with the state's best metric instead of its own.
        if hasattr(callback, "early_stopping_patience_counter") and getattr(callback, "best", 0) is None:
            callback.best = state.get("best_metric")


def _position(run: SavedRun, state: dict[str, Any], path: Path | None = None) -> Position:
    """Counted from the step; data without a length from the epoch, which is a fraction of max_steps then, or by what
    the library counted."""
    plan, args, step = run.plan, run.core.trainer.args, state["global_step"]
    counted = None if plan.steps_per_epoch or path is None else other_trainers.position(path)
    if plan.steps_per_epoch:
        epoch, done = divmod(step, plan.steps_per_epoch)
    elif counted is not None:
        epoch, done = counted
    else:
        fraction = float(state.get("epoch") or 0.0)
        epoch = int(fraction)
        done = step if epoch == 0 else round((fraction - epoch) * max(state.get("max_steps", 0), 0))
    return Position(epoch, 0 if args.ignore_data_skip else done)


def _continues_data_order(run: SavedRun, path: Path) -> bool:
    """Whether the run continues with the samples and random numbers of the library that wrote the checkpoint."""
    return run.core.in_transformers_order and other_trainers.has_known_order(path)


def _load_rng_state_of_run(run: SavedRun, path: Path, start: Position) -> list[str]:
    """data_order="transformers": continue with the random numbers that the old run would have drawn; returns notes."""
    core, mesh = run.core, run.core.mesh
    streams = core.backend.external_checkpoint.random_state(path, mesh.batch_index, mesh.num_batches)
    before = run.plan.accumulation + 1 if start.step_in_epoch else 0  # it looks one batch ahead
    states = None
    if streams is not None:
        with restoring("the RNG state", path):
            states = randomness.as_arrays(streams)
            check_rng_states({name: from_numpy(array) for name, array in states.items()}, str(path))
        randomness.check_state(core.backend, states, str(path))
    run.epochs.start_from(ResumePoint(streams=states, is_external=True, batches_before=before))
    notes = []
    if streams is None:
        notes.append(
            f"there is no RNG state for process {mesh.batch_index} of {mesh.num_batches}, so its RNGs are seeded again"
        )
    if start.step_in_epoch and start.epoch and core.trainer.args.train_sampling_strategy == "group_by_length":
        notes.append(other_trainers.LOST_ORDER)
    return notes


def _changes(run: SavedRun, state: dict[str, Any], decay: dict[str, tuple[float, float]]) -> list[str]:
    """How this run differs from the old one, as far as its files show."""
    plan, notes, size = run.plan, [], run.batch_size
    before, batch = other_trainers.steps_per_epoch(state), state.get("train_batch_size")
    if plan.steps_per_epoch and before and before != plan.steps_per_epoch:
        notes.append(f"an epoch had {before} steps, and has {plan.steps_per_epoch}")
    if batch and batch != size:
        notes.append(f"the batch of a process had {batch} samples, and has {size}")
    if state.get("max_steps", 0) > 0 and state["max_steps"] != plan.max_steps:
        notes.append(f"max_steps was {state['max_steps']}, and is {plan.max_steps}")
    by_change: dict[tuple[float, float], list[str]] = {}
    for name, change in decay.items():
        by_change.setdefault(change, []).append(name)
    for (old, new), names in by_change.items():
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        notes.append(f"weight decay was {old}, and is {new}, for {shown}")
    return notes


def _message(run: SavedRun, path: Path, rule: str, start: Position, notes: list[str]) -> str:
    """Log what is restored, where the run resumes, and what differs."""
    trainer, plan = run.core.trainer, run.plan
    step, args = trainer.state.global_step, trainer.args
    library, release = other_trainers.writer(path), other_trainers.version(path)
    divided = other_trainers.layout(path)
    by = f"the Trainer of {library}" if other_trainers.is_of_trainer(path) else library
    writer = by + (f" {release}" if release else "") + (f" ({divided})" if divided else "")
    restored = "schedule, step and log history" if other_trainers.has_log(path) else "schedule and step"
    length = f" of {plan.steps_per_epoch}" if plan.steps_per_epoch else ""
    seen = start.step_in_epoch * plan.samples_per_step
    streams = f"The RNGs, such as dropout's, are seeded again with seed={args.seed}."
    if _continues_data_order(run, path):
        data = f"The run continues with the samples that {library} would use next."
        streams = "The RNG state is restored."
    elif start.step_in_epoch:
        data = (
            f"The order of the data differs from that of {library}: in the rest of this epoch up to "
            f"{seen} samples may be repeated, and as many skipped; the next epoch has every sample once."
        )
    elif args.ignore_data_skip:
        data = "ignore_data_skip=True: the epoch restarts, and samples are repeated."
    else:
        data = (
            f"The order of the data differs from that of {library}; an epoch starts here, so none of its "
            "samples is repeated."
        )
    return (
        f"Resuming from {path}, written by {writer}: weights, optimizer state (by the rule of: {rule}), "
        f"{restored} are restored. The run resumes in epoch {start.epoch} (counted from 0) after "
        f"step {start.step_in_epoch}{length}, which is step {step} of the whole run. {data} {streams} "
        + (f"Different from the old run: {'; '.join(notes)}. " if notes else "")
        + "New checkpoints are in oneloop's format; those of the old run are kept."
    )
