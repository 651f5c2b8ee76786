"""Resuming: find the checkpoint, load its contents, and restore the position in the data."""

import logging
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import behaviour
from ..converters import other_trainers
from ..data.cost_batches import LAYOUT
from ..data.process_sharding import is_rank_independent
from ..distributed.mesh import Mesh
from ..errors import CheckpointError
from ..formats.reading import restoring
from ..formats.safetensors_io import read as read_tensors
from ..formats.safetensors_io import read_header
from ..formats.schema import alike, check, flag, integer, listing, number, record
from ..formats.structure import WEIGHTS, tied_names
from ..secrets import restored
from ..state import TrainerControl
from ..steps import Position, accumulation_for, accumulation_of_batches, accumulation_of_kept
from . import from_framework, from_other_trainers, log_history, store
from .capture import USUAL, run_properties
from .reader import Checkpoint
from .run_state import OWN_STATES, STATE, DataStates, PositionState, ResumePoint, RunState
from .saved_run import SavedRun, SavedTrainer

logger = logging.getLogger(__name__)

# Restored with the optimizer and its schedule, regardless of the arguments; or the resume is refused.
_STORED = ("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "optim_args")


# -- which checkpoint


def find(wanted: Any, output_dir: str) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint for resume_from_checkpoint, or None to start from the beginning; and those that were skipped."""
    if wanted is None or wanted is False:
        return None, []
    if wanted is True or wanted == "latest":
        return _newest_complete(output_dir)
    path = Path(wanted) if isinstance(wanted, (str, os.PathLike)) else None
    if path is None or not (path.is_dir() or store.is_external(path)):
        raise CheckpointError(
            f"resume_from_checkpoint={wanted!r} is not a directory. Pass a checkpoint-N directory, or True "
            "for the newest one in output_dir; or a checkpoint of another trainer in one file."
        )
    newest = None if store.find(path) or store.is_external(path) else other_trainers.newest_file(path)
    if newest is not None:
        raise CheckpointError(
            f"{path} is a folder with checkpoints of {other_trainers.writer(newest)}. Pass one of them, such as "
            f"{newest}, which is the newest."
        )
    if not (path / store.MANIFEST).exists() and store.newest_first(path):
        return _newest_complete(str(path))  # the output_dir of a run
    checkpoint = Checkpoint(path)
    wrong = checkpoint.problems()
    _warn_about_unlisted_files(checkpoint)
    if wrong:
        whole = [str(c.path) for c in store.find(path.parent) if not c.open().problems()]
        raise CheckpointError(
            f"the checkpoint {path} is incomplete or corrupt: {'; '.join(wrong)}. "
            + (
                f"Complete checkpoints next to it: {', '.join(whole)}."
                if whole
                else "There is no complete one next to it."
            )
        )
    return checkpoint, []


def _newest_complete(output_dir: str) -> tuple[Checkpoint | None, list[str]]:
    """The newest complete checkpoint of the run that wrote last; others are skipped with a warning."""
    every = store.newest_first(Path(output_dir))
    passed_over: list[str] = []
    for candidate in every:
        checkpoint = candidate.open()
        wrong = checkpoint.problems()
        if not wrong:
            _warn_about_unlisted_files(checkpoint)
            return checkpoint, passed_over
        passed_over.append(f"{candidate.path.name}: {'; '.join(wrong)}")
        logger.warning("Skipping %s, which is incomplete or corrupt: %s.", candidate.path, "; ".join(wrong))
    if every:
        raise CheckpointError(
            f"none of the {len(every)} checkpoints in {output_dir} is complete; see the warnings above. "
            "Remove resume_from_checkpoint to start from the beginning."
        )
    if behaviour.current().missing_checkpoint_is_error:
        raise CheckpointError(
            f"No valid checkpoint found in output directory ({output_dir}). Remove resume_from_checkpoint to start "
            "from the beginning."
        )
    logger.warning("resume_from_checkpoint is set, but %s has no checkpoint; starting from the beginning.", output_dir)
    return None, passed_over


def _warn_about_unlisted_files(checkpoint: Checkpoint) -> None:
    found = store.unlisted(checkpoint)
    if found:
        logger.warning(
            "The run that wrote %s ended while its own _save_checkpoint was adding files. What oneloop saves is "
            "complete; these files may not be: %s.",
            checkpoint.path,
            ", ".join(found),
        )


# -- weights


def load_weights(core: SavedTrainer, checkpoint: Checkpoint) -> None:
    """Load the weights of a checkpoint, or of a directory that save_model wrote."""
    backend, strategy, model, path = core.backend, core.strategy, core.trainer.model, checkpoint.path
    if checkpoint.is_external:
        other_trainers.check_framework(path, backend.NAME)
        backend.external_checkpoint.load_weights(model, path, strategy)
        return
    files = checkpoint.tensor_files("model")
    if not files and backend.models.is_adapter(backend.models.unwrap(model)):
        with restoring("the adapter", path):
            strategy.load_adapter(model, path)
        return
    if not files:
        raise CheckpointError(f"{path} has no {WEIGHTS}. Pass a directory that contains it.")
    tied, run = tied_names(files[0]), checkpoint.run
    if run is not None and from_framework.is_needed(core, run):
        with restoring("the weights", path):
            from_framework.load_weights(core, run, path, files, tied)
        return
    tensors: dict[str, Any] = {}
    for file in files:
        tensors |= strategy.load_tensors(file)
    with restoring("the weights", path):
        strategy.load_model(model, tensors, tied, str(path))


def loads_after_wrapping(core: SavedTrainer, checkpoint: Checkpoint) -> bool:
    """Whether each process reads its shard of the weights after the model is sharded. Adapters, which are small, and
    whole files of other trainers and other frameworks are read completely before."""
    models = core.backend.models
    if not core.strategy.loads_sharded or models.is_adapter(models.unwrap(core.trainer.model)):
        return False
    if checkpoint.is_external:
        return core.backend.external_checkpoint.LOADS_SHARDED and other_trainers.is_divided(checkpoint.path)
    return checkpoint.run is None or not from_framework.is_needed(core, checkpoint.run)


def load_best_model(run: SavedRun, last_saved: str | None) -> None:
    core, directory = run.core, run.checkpointer.directory
    best = core.trainer.state.best_model_checkpoint
    if best is None:
        logger.warning(
            "load_best_model_at_end=True, but no evaluation has determined a best model; keeping the last one."
        )
        return
    path = directory.resolve(best)
    directory.provide_best(path)
    checkpoint = Checkpoint(path)
    wrong = checkpoint.problems()
    if wrong:
        raise CheckpointError(
            f"cannot load the best model, {best}: {'; '.join(wrong)}. Training is complete; the model of the "
            f"last step is in memory and in {last_saved}."
        )
    logger.info("Loading the best model: %s (%s).", best, core.trainer.state.best_metric)
    load_weights(core, checkpoint)
    if checkpoint.run is not None:
        position = position_of_this_process(checkpoint.run.position, core.mesh)
        run.parts.load_best_model(StoredRun(core, checkpoint, position))


# -- the Trainer's state


def load_state(trainer: Any, checkpoint: Checkpoint) -> None:
    """Restore step, logs and callbacks of a checkpoint; must come before the plan is computed, which needs the step."""
    folder = checkpoint.path.parent
    state = trainer.state = checkpoint.trainer_state()
    state.log_history = log_history.restored(state.log_history, checkpoint)
    state.is_world_process_zero = trainer.is_world_process_zero()
    state.is_local_process_zero = trainer.is_local_process_zero()
    best = state.best_model_checkpoint
    if best and (folder / Path(best).name).is_dir():  # the run may have been moved or copied
        best = state.best_model_checkpoint = str(folder / Path(best).name)
    if best and trainer.args.load_best_model_at_end and store.problems(Path(best), contents=False):
        logger.warning(
            "The best checkpoint so far, %s, is missing, incomplete or corrupt; tracking the best model restarts here.",
            best,
        )
        state.best_model_checkpoint = state.best_metric = state.best_global_step = None
    trainer.compare_trainer_and_checkpoint_args(trainer.args, state)
    trainer._load_callback_state()


def load_callbacks(trainer: Any) -> None:
    """Restore the callbacks from what the state has stored of them."""
    every = {
        name: iter([stored] if isinstance(stored, dict) else stored)
        for name, stored in trainer.state.stateful_callbacks.items()
    }
    for callback in trainer.callback_handler.callbacks:
        stored = next(every.get(type(callback).__name__, iter(())), None)
        if not stored or not hasattr(callback, "from_state"):
            continue
        values = dict(stored["attributes"])
        if trainer.args.restore_callback_states_from_checkpoint:
            values |= stored["args"]
        # A secret is not in the file: the callback has its own.
        values = {key: restored(value, getattr(callback, key, None), key) for key, value in values.items()}
        _check_attributes(callback, values)
        with restoring(f"the state of {type(callback).__name__}", STATE):
            for name, value in values.items():
                setattr(callback, name, value)
    control = next(every.get("TrainerControl", iter(())), None)
    if control and trainer.args.restore_callback_states_from_checkpoint:
        flags = dict.fromkeys(vars(TrainerControl()), flag)
        check(control["args"], record({}, flags, is_closed=True), f"the state of TrainerControl in {STATE}")
        trainer.control = TrainerControl.from_state(control)


def _check_attributes(callback: Any, values: dict[str, Any]) -> None:
    """The attributes of a callback replace its data and not its methods; those of oneloop's callbacks are of the kind
    of the current ones."""
    name = type(callback).__name__
    methods = [key for key in values if key.startswith("__") or callable(getattr(type(callback), key, None))]
    if methods:
        raise CheckpointError(f"the state of {name} in {STATE} replaces {methods[0]}, which is not an attribute")
    if type(callback).__module__.startswith("oneloop."):
        rules = getattr(callback, "state_rules", {})
        current = {key: getattr(callback, key, None) for key in values if key not in rules}
        check(values, alike(current, is_finite_only=False), f"the state of {name} in {STATE}")
        check(values, record({}, rules), f"the state of {name} in {STATE}")


def keep_global_batch(run: SavedRun, checkpoint: Checkpoint) -> None:
    """On another number of processes, keep the number of samples in an update by changing the accumulation."""
    stored = checkpoint.run
    if stored is None:
        return
    core, now = run.core, run.core.mesh.num_batches
    if core.trainer.args.world_invariant:
        _keep_micro_batches(run, stored, now)
        return
    if stored.processes == now:
        core.strategy.load_state(stored.strategy)
        given, actual = (stored.properties.get(name) for name in ("gradient_accumulation_steps", "accumulation"))
        if given == core.trainer.args.gradient_accumulation_steps and isinstance(actual, int) and actual != given:
            run.set_accumulation(actual)  # the run had been moved to this number of processes before
        return
    if stored.properties.get("stream_sharding") == "shards":
        raise CheckpointError(
            f"the checkpoint was written by {stored.processes} process(es) that each read their own shards "
            f"(stream_sharding='shards'), and this run has {now}: their positions do not fit. Use "
            f"{stored.processes} process(es); stream_sharding='samples', from the start, resumes on any number."
        )
    if core.trainer.args.max_tokens_per_batch is not None:
        kept = stored.properties.get("accumulation", 1) * stored.processes
        run.set_accumulation(accumulation_of_batches(kept, now))
        logger.warning(
            "The checkpoint was written by %d process(es), this run has %d: an update keeps its %d micro-batches. The "
            "random numbers of dropout and of data augmentation differ.",
            stored.processes,
            now,
            kept,
        )
        return
    wanted, size = stored.properties["samples_per_step"], run.batch_size
    accumulation = accumulation_for(wanted, size, now)
    run.set_accumulation(accumulation)
    logger.warning(
        "The checkpoint was written by %d process(es), this run has %d: an update keeps its %d samples with "
        "%d x %d samples and %d accumulation step(s). The order of the data is the same, but the random numbers of "
        "dropout and of data augmentation differ; seed_each_sample=True, from the start of a run, keeps those of "
        "the data.",
        stored.processes,
        now,
        wanted,
        now,
        size,
        accumulation,
    )


def _keep_micro_batches(run: SavedRun, stored: RunState, processes: int) -> None:
    """world_invariant: an update keeps its micro-batches, whatever the arguments say about accumulation."""
    properties = stored.properties
    own = properties.get("accumulation", 1) * stored.processes  # of a run that was not invariant
    micro_batches = stored.parts.get("world_invariant", {}).get("micro_batches", own)
    accumulation = accumulation_of_kept(micro_batches, properties["samples_per_step"], run.batch_size, processes)
    run.set_accumulation(accumulation)
    if stored.processes != processes:
        logger.info(
            "The checkpoint was written by %d process(es), this run has %d: each computes %d of the %d micro-batches "
            "of an update, with the same results.",
            stored.processes,
            processes,
            accumulation,
            micro_batches,
        )


# -- optimizer, schedule, parts and position


class StoredRun:
    """A checkpoint of oneloop's, as parts of a run see it: their keys of run.json, and their tensors."""

    def __init__(
        self, core: SavedTrainer, checkpoint: Checkpoint, position: PositionState, same_samples: bool = True
    ) -> None:
        self._core = core
        self._checkpoint = checkpoint
        self._position = position  # of this process
        self.same_samples = same_samples  # the samples of a step are those of when it was written

    @property
    def path(self) -> Path:
        return self._checkpoint.path

    def state_of(self, keys: Iterable[str]) -> dict[str, Any]:
        """The values of these keys in run.json, as far as it has them."""
        stored = self._checkpoint.complete_run().parts
        return {key: stored[key] for key in keys if key in stored}

    def process_state_of(self, name: str) -> Any:
        """What this process stored of a part; None for nothing."""
        return (self._position.parts or {}).get(name)

    def has_tensors(self, name: str) -> bool:
        """Whether the part of this name has stored tensors."""
        return self._checkpoint.has(f"{name}.safetensors")

    def tensor_types(self, name: str) -> dict[str, str]:
        """The types of its tensors, as in the file."""
        return {key: dtype for key, (dtype, _) in read_header(self.path / f"{name}.safetensors").items()}

    def arrays(self, name: str) -> dict[str, Any]:
        """Its tensors as NumPy arrays, whichever framework wrote them."""
        return {key: raw.array() for key, raw in read_tensors(self.path / f"{name}.safetensors").items()}

    def tensors(self, name: str) -> dict[str, Any]:
        """Its tensors, which have the names of weights of the model, for this framework and in the layout of its
        weights; such as `backend.tensors.assign` takes them."""
        file, run = self.path / f"{name}.safetensors", self._checkpoint.complete_run()
        if from_framework.is_needed(self._core, run):
            whole = from_framework.load_tensors(self._core, run, self.path, [file])
            return self._core.strategy.take_parts(whole)
        return self._core.strategy.load_tensors(file)

    def part_of(self, parameter: Any, tensor: Any) -> Any:
        """Of one of these tensors, what this process has of the parameter of its name."""
        return self._core.strategy.part_of(parameter, tensor)


def load_run(run: SavedRun, checkpoint: Checkpoint) -> Position:
    """Restore everything else of a checkpoint. The RNG state is restored last, when the epoch opens, since what comes
    before may draw random numbers."""
    if checkpoint.is_external:
        return from_other_trainers.load_run(run, checkpoint)
    stored, path, core = checkpoint.complete_run(), checkpoint.path, run.core
    crosses_from = stored.framework if from_framework.is_needed(core, stored) else None
    run.set_run_id(*_resumed_or_new_id(run, checkpoint))
    core.trainer._load_optimizer_and_scheduler(str(path))
    core.engine.load_state(stored.engine | {"scaler": None})
    core.trainer._load_scaler(str(path))
    core.engine.norm = None if stored.grad_norm is None else float.fromhex(stored.grad_norm)
    position = position_of_this_process(stored.position, core.mesh)
    run.parts.load(StoredRun(core, checkpoint, position, same_samples=not _differs(run, stored)))
    _warn_about_changes(run, stored.properties)
    run.checkpointer.cleanup_after_resume(checkpoint)
    return _start(run, stored, position, path, crosses_from)


def load_optimizer_and_scheduler(run: SavedRun, checkpoint: Checkpoint) -> None:
    """Restore both from a checkpoint, of oneloop or of another trainer."""
    path = checkpoint.path
    if checkpoint.is_external:
        from_other_trainers.load_optimizer_and_scheduler(run, path)
        return
    stored, trainer = checkpoint.complete_run(), run.core.trainer
    if stored.optimizer:
        _load_optimizer(run.core, stored, checkpoint)
    else:
        logger.warning(
            "%s has no optimizer state, since an override of _save_optimizer_and_scheduler has not called super(). "
            "Unless an override of _load_optimizer_and_scheduler restores it, the optimizer starts from scratch.",
            path,
        )
    scheduler = trainer.lr_scheduler
    load = getattr(scheduler, "load_state_dict", getattr(scheduler, "set_state_dict", None))
    if stored.scheduler is not None and load is not None:  # Paddle's schedulers use the second name
        if type(scheduler).__module__.startswith("oneloop."):
            _check_schedule(scheduler, stored.scheduler, path)
        with restoring("the schedule", path):
            load(in_current_types(stored.scheduler, scheduler.state_dict(), run.core.backend.tensors))


def in_current_types(stored: Any, current: Any, tensors: Any) -> Any:
    """The stored state of a scheduler with its numbers as tensors where the current state has tensors."""
    if isinstance(stored, dict) and isinstance(current, dict):
        return {key: in_current_types(value, current.get(key), tensors) for key, value in stored.items()}
    if isinstance(stored, list) and isinstance(current, (list, tuple)) and len(stored) == len(current):
        return [in_current_types(value, other, tensors) for value, other in zip(stored, current)]
    if isinstance(stored, (int, float)) and tensors.is_tensor(current):
        return tensors.from_numpy(np.asarray(stored, tensors.to_numpy(current).dtype))
    return stored


def _check_schedule(scheduler: Any, stored: dict[str, Any], path: Path) -> None:
    """The state is of the kind of the current one. Frameworks divide parameters into other groups: rates may be fewer
    or more, if they are equal."""
    rates = listing(number(0))
    current = {key: value for key, value in scheduler.state_dict().items() if key not in ("base_lrs", "lrs")}
    check(stored, record({}, {"last_epoch": integer(), "base_lrs": rates, "lrs": rates}), f"the schedule in {path}")
    check(stored, alike(current), f"the schedule in {path}")
    for name in ("base_lrs", "lrs"):
        if name in stored and not stored[name]:
            raise CheckpointError(f"the schedule in {path} has no learning rates")


def load_scaler(run: SavedRun, checkpoint: Checkpoint) -> None:
    """Restore the loss scaler from a checkpoint, of oneloop or of another trainer."""
    if checkpoint.is_external:
        from_other_trainers.load_scaler(run, checkpoint.path)
    else:
        with restoring("the loss scaler", checkpoint.path):
            run.core.engine.load_state(checkpoint.complete_run().engine)


def _load_optimizer(core: SavedTrainer, stored: RunState, checkpoint: Checkpoint) -> None:
    files, path = checkpoint.tensor_files("optimizer"), checkpoint.path
    if from_framework.is_needed(core, stored):
        logger.warning(
            "The checkpoint was written on %s: weights, optimizer state, schedule, position and logs are restored; "
            "the RNGs of the framework, such as dropout's, are seeded again.",
            stored.framework,
        )
        with restoring("the optimizer state", path):
            from_framework.load_optimizer(core, stored, path, files)
        return
    tensors: dict[str, Any] = {}
    for file in files:
        tensors |= core.strategy.load_tensors(file)
    trainer = core.trainer
    with restoring("the optimizer state", path):
        core.strategy.load_optimizer(trainer.optimizer, trainer.model, tensors, stored.optimizer, str(path))


def _resumed_or_new_id(run: SavedRun, checkpoint: Checkpoint) -> tuple[str, str | None]:
    """(the id of the resumed run, the id of the run that it is branched from). A run that resumes from an older
    checkpoint gets a new id: the later checkpoints belong to the old one, and are kept."""
    trainer, restart, run_id = run.core.trainer, run.restart, checkpoint.complete_run().run_id
    if restart is not None:
        return restart.run_id, restart.parent_id
    if run.plan.cooldown is not None and run.plan.cooldown.is_new:
        return store.new_run_id(), run_id
    every = store.find(run.checkpointer.directory.path, checkpoint)
    beyond = [c for c in every if c.run_id == run_id and c.step > trainer.state.global_step]
    later = [c.path.name for c in beyond if not c.open().problems()]
    if not later:
        return run_id, None
    logger.warning(
        "The run has later checkpoints than this one: %s. This is now a new run, which keeps them until it "
        "reaches their steps.",
        ", ".join(later),
    )
    return store.new_run_id(), run_id


def _format_short(value: Any) -> str:
    return value if isinstance(value, str) and value.isprintable() else str(value)[:200]


def _warn_about_changes(run: SavedRun, before: dict[str, Any]) -> None:
    now = run_properties(run)
    elastic: tuple[str, ...] = ("processes", "accumulation") if before.get("processes") != now["processes"] else ()
    elastic += () if run.plan.cooldown is None else ("max_steps",)
    before, now = USUAL | before, USUAL | now
    changed = {
        key: f"{key} was {_format_short(before[key])}, is {_format_short(now[key])}"
        for key in before
        if key in now and before[key] != now[key] and key not in elastic
    }
    run.events.keep_arguments({key: (before[key], now[key]) for key in changed if key in _STORED})
    if stored := [text for key, text in changed.items() if key in _STORED]:
        logger.warning(
            "These arguments differ from those of the run that wrote the checkpoint, whose values are used: %s.",
            "; ".join(stored),
        )
    if others := [text for key, text in changed.items() if key not in _STORED]:
        logger.warning(
            "This run differs from the one that wrote the checkpoint, so its result will not be bit-exact: %s.",
            "; ".join(others),
        )


def _differs(run: SavedRun, stored: RunState) -> bool:
    """Whether the dataset is another one, or which samples are in an update."""
    before, plan = stored.properties, run.plan
    if before.get(LAYOUT) != run.parts.properties().get(LAYOUT):
        return True
    return before["samples_per_step"] != plan.samples_per_step or before["samples"] != plan.samples


def _start(run: SavedRun, stored: RunState, place: PositionState, path: Path, crosses_from: str | None) -> Position:
    """The position where the run starts, and what remains to be restored when its first epoch opens."""
    trainer, plan = run.core.trainer, run.plan
    epoch, done, ended = place.epoch, place.step_in_epoch, place.epoch_ended
    if ended and not plan.is_over(trainer.state.global_step) and not place.epoch_stopped:
        # The epoch was cut short by the last step of the run, which now has more steps.
        ended = not (plan.steps_per_epoch and done < plan.steps_per_epoch)
    if plan.steps_per_epoch and _differs(run, stored):  # recompute the position from the step
        epoch, done = divmod(trainer.state.global_step, plan.steps_per_epoch)
        ended = False
    if trainer.args.ignore_data_skip and not ended:
        done = 0
    owners = {"collator": trainer.data_collator, "dataset": trainer.train_dataset}
    if place.trainer:
        with restoring("what the Trainer keeps between steps", path):
            run.core.extensions.restore_state(place.trainer, run.epochs.local_tensors(path))
    if crosses_from is None:
        with restoring("a model that follows the trained one", path):
            run.core.extensions.restore_models(path)
    data = DataStates(
        position=None if trainer.args.ignore_data_skip else place.data,
        exhausted=bool(place.exhausted) and not trainer.args.ignore_data_skip,
        first_batch=place.first_batch,
        is_waiting=True,
        owners=owners,
        own={"collator": place.collator, "dataset": place.dataset},
        ahead=place.ahead or {},
    )
    resume = ResumePoint(
        random=run.checkpointer.directory.resolve(path),
        crosses_from=crosses_from,
        stopped=place.stopped,
        pending=place.pending,
        data=data,
    )
    data.load()
    run.epochs.start_from(resume)
    return Position(epoch, done, epoch_ended=ended, epoch_stopped=place.epoch_stopped)


def position_of_this_process(position: PositionState, mesh: Mesh) -> PositionState:
    """The position with what the processes of this batch alone had."""
    others = position.ranks
    if mesh.num_batches != len(others) + 1:
        kept: dict[str, Any] = dict.fromkeys(OWN_STATES)
        if is_rank_independent(position.data) or not others:
            kept["data"] = position.data
        return replace(position, **kept)
    return replace(position, **others[mesh.batch_index - 1]) if mesh.batch_index else position
