"""The bytes of a save: what is copied of a run while training waits, so that any thread can write it afterwards.

`Capture` gathers the state of all processes and copies it; `Contents` is the files that come of it, by name; `Buffers`
holds the host memory of the copies.

The Trainer's methods `_save_optimizer_and_scheduler`, `_save_scaler` and `_save_rng_state` decide what a checkpoint
stores: those of oneloop add their part, and an override that does not call them replaces it by files of its own. It
writes into the staged directory, so its files are committed with the others.
"""

import errno
import json
import logging
import math
import mmap
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.streams import properties as stream_properties
from ..distributed.collectives import ProcessGroup
from ..errors import UnsupportedError
from ..formats.durable import native_errors
from ..formats.safetensors_io import Raw, from_numpy, write, write_bytes
from ..formats.structure import INDEX, OPTIMIZER, RANDOM, RUN, STATE, WEIGHTS
from ..introspect import is_overridden
from ..state import has_state, states_by_class
from .log_history import LogHistory
from .run_state import ATTRIBUTES, BUFFER, GENERATOR, PositionState, RunState
from .saved_run import SavedRun
from .writer import run_at_low_priority

if TYPE_CHECKING:
    from .model_files import ModelFiles

logger = logging.getLogger(__name__)

SHARD_BYTES = 5 * 10**9
# Methods of the Trainer that add a part of a checkpoint.
PART_METHODS = ("_save_optimizer_and_scheduler", "_save_scaler", "_save_rng_state")


@dataclass
class Contents:
    """Files by name: text files as bytes, tensor files as named tensors with their metadata."""

    texts: dict[str, bytes] = field(default_factory=dict)
    tensors: dict[str, tuple[dict[str, Raw], dict[str, str]]] = field(default_factory=dict)

    def add_json(self, name: str, data: Any) -> None:
        """Values that JSON does not support, such as in a field of a subclass of the arguments, are written as
        str()."""
        self.texts[name] = (json.dumps(data, indent=2, sort_keys=True, default=str) + "\n").encode()

    def add_weights(self, tensors: dict[str, Raw], metadata: dict[str, str]) -> None:
        """model.safetensors, or several files and an index if it exceeds the size of one."""
        shards = split(tensors, SHARD_BYTES)
        if len(shards) == 1:
            self.tensors[WEIGHTS] = (tensors, metadata)
            return
        places: dict[str, str] = {}
        for i, shard in enumerate(shards, 1):
            name = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
            self.tensors[name] = (shard, metadata)
            places |= dict.fromkeys(shard, name)
        total = sum(raw.size for raw in tensors.values())
        self.add_json(INDEX, {"metadata": {"total_size": total}, "weight_map": places})

    @property
    def size(self) -> int:
        """Bytes on disk, without the headers."""
        tensors = sum(raw.size for group, _ in self.tensors.values() for raw in group.values())
        return tensors + sum(map(len, self.texts.values()))

    def write(self, folder: Path) -> dict[str, dict[str, Any]]:
        """Write every file; returns their entries for the manifest."""
        for name in (*self.tensors, *self.texts):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        facts = {name: write(folder / name, group, metadata) for name, (group, metadata) in self.tensors.items()}
        return facts | {name: write_bytes(folder / name, [text]) for name, text in self.texts.items()}


def split(tensors: dict[str, Raw], limit: int) -> list[dict[str, Raw]]:
    """Groups of at most `limit` bytes, in order; a larger tensor is alone in its group."""
    shards: list[dict[str, Raw]] = [{}]
    size = 0
    for name, raw in tensors.items():
        if shards[-1] and size + raw.size > limit:
            shards.append({})
            size = 0
        shards[-1][name] = raw
        size += raw.size
    return shards


def check_free_space(folder: Path, size: int) -> None:
    """Raise OSError before writing if the disk has too little space: the data and a bit more for headers."""
    try:
        total, _, free = shutil.disk_usage(folder)
    except OSError:  # unknown: writing will show
        return
    if not total:  # what file systems report that do not know, such as mounted object stores
        return
    needed = size * 1.02 + (1 << 20)
    if free < needed:  # rounded so that the figures agree with that
        needed, free = math.ceil(needed / 2**20), math.floor(free / 2**20)
        raise OSError(errno.ENOSPC, f"{needed} MB needed, but only {free} MB free", str(folder))


# -- copies of tensors

THREADS = 4  # that copy at once; more do not make memory faster


def _touch(arrays: list[np.ndarray]) -> None:
    """Write to every page, so that it is allocated; in blocks, so that the GIL is released in between."""
    for array in arrays:
        for start in range(0, array.size, 2**20):
            array[start : start + 2**20 : mmap.PAGESIZE] = 0


def _cores() -> int:
    """The number of CPU cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Buffers:
    """Copies of tensors, in buffers that are reused for every save."""

    # Allocating memory takes several times as long as the copy into it; below this size, neither matters.
    WORTH_PREPARING = 64 * 2**20
    # Copying less takes no longer than a few milliseconds.
    WORTH_THREADS = 16 * 2**20

    def __init__(self, weights: Any) -> None:
        self._weights = weights  # of the backend
        self._kept: dict[str, Any] = {}
        self._preparing: threading.Thread | None = None

    def prepare(self, tensors: dict[str, Any]) -> None:
        """Make buffers for these, and allocate their pages in the background before the first save needs them."""
        buffers = {name: self._weights.empty_like_host(tensor) for name, tensor in tensors.items()}
        raws = [self._weights.raw(buffer) for buffer in buffers.values()]
        arrays = [np.frombuffer(each.data, np.uint8) for each in raws if each.size]
        if sum(array.nbytes for array in arrays) < self.WORTH_PREPARING:
            return
        self._kept.update(buffers)
        self._preparing = threading.Thread(
            target=run_at_low_priority, args=(_touch, arrays), name="oneloop-buffers", daemon=True
        )
        self._preparing.start()

    def copy(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Copies of these tensors. All of them are complete when this returns, so that code of the user, which may
        change the tensors without a trace, never runs beside a copy."""
        weights = self._weights
        if self._preparing is not None:
            self._preparing.join()
            self._preparing = None
        shared = {name: tensor for name, tensor in tensors.items() if weights.allows_threaded_copy(tensor)}
        is_large = sum(tensor.nbytes for tensor in shared.values()) >= self.WORTH_THREADS
        threads = min(THREADS, _cores()) if is_large else 1
        shared = shared if threads > 1 else {}
        copies = {name: weights.copy_to(t, self._kept.get(name)) for name, t in tensors.items() if name not in shared}
        if shared:
            names = sorted(shared, key=lambda name: -shared[name].nbytes)  # large ones first: no thread waits long
            given = [shared[name] for name in names], [self._kept.get(name) for name in names]
            with ThreadPoolExecutor(threads, thread_name_prefix="oneloop-copy") as pool:
                copies |= zip(names, pool.map(weights.copy_to, *given), strict=True)
        self._kept.update(copies)
        return {name: copies[name] for name in tensors}


# -- one save


@dataclass
class GatheredState:
    """What one save stores apart from the model, gathered from all processes before one of them can write."""

    streams: dict[str, Any]
    position: PositionState
    is_sharded: bool
    optimizer: dict[str, Any] = field(default_factory=dict)  # its tensors
    optimizer_options: dict[str, Any] = field(default_factory=dict)
    scheduler: Any = None
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The tensors of parts of the run, by their names."""
    has_optimizer: bool = False
    has_scaler: bool = False
    has_rng_state: bool = False


class Capture:
    """Created for each run: its saves reuse the host buffers."""

    def __init__(self, run: SavedRun, model_files: "ModelFiles") -> None:
        self.run, self.core, self.trainer = run, run.core, run.core.trainer
        self._model_files = model_files
        self._buffers, self._history = Buffers(run.core.backend.weights), LogHistory()
        self._gathering: GatheredState | None = None  # of the save whose parts are being added
        self._has_warned = False  # of an optimizer that no checkpoint of the run stores
        self.is_reserved = False  # memory for the first save, or it is not worth it

    def reserve_memory(self) -> None:
        """Reserve memory for the copies of the first save, once the optimizer has its state; later saves reuse it."""
        self.is_reserved = True
        core = self.core
        args, weights, state = core.trainer.args, core.backend.weights, core.trainer.state
        one_writer = core.mesh.is_single and self._model_files.is_default_writer
        if args.save_strategy == "no" or not args.save_async or not one_writer:
            return
        if args.save_strategy == "steps" and 0 < state.max_steps < state.save_steps:
            return
        model = core.backend.models.unwrap(core.trainer.model)
        tensors: dict[str, Any] = {}
        if not core.backend.models.is_adapter(model):
            tensors |= {f"model/{name}": t for name, t in weights.model_tensors(model)[0].items()}
        if not args.save_only_model:
            found, _ = core.strategy.optimizer_state(core.trainer.optimizer, core.trainer.model)
            tensors |= {f"optimizer/{name}": t for name, t in found.items()}
        self._buffers.prepare(tensors)

    # -- from all processes

    def gather(self, is_sharded: bool, output_dir: Path) -> GatheredState:
        """The RNG and data states of each batch, and the optimizer's state. A collective on several processes."""
        core, trainer, processes = self.core, self.trainer, self.core.processes
        attributes, tensors = core.extensions.collect_state()
        streams = self.run.epochs.random_state() | tensors
        position = replace(self.run.position_state(), trainer=attributes, parts=self.run.parts.process_states() or None)
        if not core.mesh.is_single:
            streams, position = self._with_other_batches(streams, position)
        gathered = GatheredState(streams, position, is_sharded)
        for part in self.run.parts.having("tensors"):
            if part_tensors := part.tensors():
                gathered.parts[part.name] = core.strategy.gather_named(part_tensors)
        self._gathering, error = gathered, None
        try:
            with native_errors():
                trainer._save_optimizer_and_scheduler(str(output_dir))
                trainer._save_scaler(str(output_dir))
                trainer._save_rng_state(str(output_dir))
        except OSError as raised:
            error = raised
        finally:
            self._gathering = None
        if error is None and not gathered.has_optimizer:
            self._warn_if_optimizer_is_lost()
        # Each process may have written files, so all wait for each other.
        if any(is_overridden(trainer, name) for name in PART_METHODS) and any_failed(processes, error):
            raise error or failed_elsewhere(str(output_dir))
        return gathered

    def _with_other_batches(
        self, streams: dict[str, Any], position: PositionState
    ) -> tuple[dict[str, Any], PositionState]:
        """With the streams and states of the processes that have other batches, where a checkpoint is written. A
        collective."""
        mesh, processes = self.core.mesh, self.core.processes
        own = (streams, position.own_states()) if mesh.is_batch_leader else None
        everywhere = self.trainer.args.save_on_each_node
        every = processes.all_gather_object(own) if everywhere else processes.gather_object(own)
        if every is None:
            return streams, position
        others = mesh.per_batch(every)[1:]
        for number, (more, _) in enumerate(others, 1):
            streams |= {f"rank{number}/{name}": array for name, array in more.items()}
        return streams, replace(position, ranks=[states for _, states in others])

    def gathering(self) -> GatheredState:
        """The save to which one of PART_METHODS adds its part."""
        if self._gathering is None:
            raise UnsupportedError(
                f"{', '.join(PART_METHODS)} can only be called within a save, whose checkpoint they are a part of. "
                "Call super()._save_checkpoint(model, trial), which saves everything."
            )
        return self._gathering

    def add_optimizer_and_scheduler(self) -> None:
        """Add the optimizer and the schedule to the save. A scheduler's state is stored without what JSON cannot
        represent: functions, the optimizer."""
        gathered, strategy, trainer = self.gathering(), self.core.strategy, self.trainer
        state_of = strategy.local_optimizer_state if gathered.is_sharded else strategy.optimizer_state
        gathered.optimizer, gathered.optimizer_options = state_of(trainer.optimizer, trainer.model)
        if hasattr(trainer.lr_scheduler, "state_dict"):
            found = {key: _json_value(value) for key, value in trainer.lr_scheduler.state_dict().items()}
            gathered.scheduler = {key: value for key, value in found.items() if value is not _NOT_JSON}
        gathered.has_optimizer = True

    def _warn_if_optimizer_is_lost(self) -> None:
        """Once: what an override writes is kept in the checkpoint, and read by nobody."""
        if self._has_warned or is_overridden(self.trainer, "_load_optimizer_and_scheduler"):
            return
        self._has_warned = True
        logger.warning(
            "_save_optimizer_and_scheduler of %s does not call super(), and there is no override of "
            "_load_optimizer_and_scheduler that reads its files: a run that is resumed from this checkpoint starts "
            "with a new optimizer. Call super()._save_optimizer_and_scheduler(output_dir), or override the other too.",
            type(self.trainer).__name__,
        )

    # -- the files

    def checkpoint(self, stage: Path, state: Any, gathered: GatheredState | None) -> Contents:
        """All files of a checkpoint that one process writes, or those of the process that commits."""
        contents, files, models = Contents(), self._model_files, self.core.backend.models
        if not files.is_default_writer or models.is_adapter(models.unwrap(self.trainer.model)):
            files.finite_values.check_model(f"checkpoint-{state.global_step}")
        if files.is_default_writer:
            files.add_model(contents, stage, self._buffers.copy)
        else:
            files.save_without_side_effects(str(stage))  # an override may write anything
        if gathered is not None:
            if gathered.optimizer_options:  # otherwise an override has stored it
                self._add_copies(contents, OPTIMIZER, gathered.optimizer)
            for name, tensors in gathered.parts.items():
                self._add_copies(contents, f"{name}.safetensors", tensors)
            # If an override stores the RNG state, the data still needs that of the start of the epoch.
            kept = ("",) if gathered.has_rng_state else ("epoch/", BUFFER, ATTRIBUTES, GENERATOR)
            streams = {
                name: from_numpy(array.copy())
                for name, array in gathered.streams.items()
                if any(part in name for part in kept)
            }
            contents.tensors[RANDOM] = (streams, {})
            contents.add_json(RUN, run_state(self.run, gathered).to_json())
        contents.texts[STATE] = self._history.to_json(state).encode()
        return contents

    def shard(self, gathered: GatheredState | None) -> Contents:
        """What a process writes that does not commit."""
        contents, models = Contents(), self.core.backend.models
        if not models.is_adapter(models.unwrap(self.trainer.model)):
            self._model_files.add_weights(contents, self._buffers.copy)
        if gathered is not None and gathered.optimizer_options:
            self._add_copies(contents, OPTIMIZER, gathered.optimizer)
        return contents

    def _add_copies(self, contents: Contents, file: str, tensors: dict[str, Any]) -> None:
        weights, prefix = self.core.backend.weights, f"{file.removesuffix('.safetensors')}/"
        copies = self._buffers.copy({f"{prefix}{name}": tensor for name, tensor in tensors.items()})
        raws = {name.removeprefix(prefix): weights.raw(value) for name, value in copies.items()}
        contents.tensors[file] = (raws, {"format": weights.LAYOUT})


def any_failed(processes: ProcessGroup, error: OSError | None) -> bool:
    """Whether the disk has failed in any process. A collective on several processes."""
    return any(failed for (failed,) in processes.all_gather([error is not None]))


def failed_elsewhere(path: str) -> OSError:
    return OSError(errno.EIO, "another process cannot write", path)


_NOT_JSON = object()


def _json_value(value: Any) -> Any:
    """The value as JSON can represent it; _NOT_JSON if it cannot. Tensors of one number, which a learning rate may be,
    are that number; see `resume.in_current_types`."""
    if isinstance(value, dict):
        entries = {key: _json_value(each) for key, each in value.items()}
        return _NOT_JSON if any(each is _NOT_JSON for each in entries.values()) else entries
    if isinstance(value, (list, tuple)):
        values = [_json_value(each) for each in value]
        return _NOT_JSON if any(each is _NOT_JSON for each in values) else values
    if isinstance(value, (int, float, str, bool, type(None))):
        return value
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else _NOT_JSON


# -- run.json

# Arguments that change how a run continues, in addition to those in run_properties.
_ARGUMENTS = (
    *("adam_beta1", "adam_beta2", "adam_epsilon", "optim_args", "lr_scheduler_kwargs", "warmup_steps", "warmup_ratio"),
    *("label_smoothing_factor", "neftune_noise_alpha", "bf16", "fp16", "fp16_opt_level", "dataloader_drop_last"),
)
# Settings that are stored only if they are not these.
USUAL: dict[str, Any] = {
    "data_order": "oneloop",
    "stream_sharding": "samples",
    "optim_target_modules": None,
    "gradient_checkpointing_kwargs": None,
    "torch_compile": False,
    "world_invariant": False,
    "max_tokens_per_batch": None,
}


def run_state(run: SavedRun, gathered: GatheredState) -> RunState:
    """What run.json of a save holds."""
    core = run.core
    layout = core.backend.framework_layout.layout(core.trainer.model)
    norm = core.engine.grad_norm()
    return RunState(
        run_id=run.id,
        framework=core.backend.NAME,
        optimizer=gathered.optimizer_options,
        scheduler=gathered.scheduler,
        engine=core.engine.state() | ({} if gathered.has_scaler else {"scaler": None}),
        position=gathered.position,
        properties=run_properties(run),
        layout={name: [place.name, place.axes] for name, place in layout.items()},
        strategy=core.strategy.state(),
        grad_norm=None if norm is None else norm.hex(),
        cooldown=None if run.plan.cooldown is None else run.plan.cooldown.state(),
        parts=run.parts.state(),
    )


def run_properties(run: SavedRun) -> dict[str, Any]:
    """What should be the same in a resumed run."""
    plan, args = run.plan, run.core.trainer.args
    others = {name: getattr(args, name) for name in _ARGUMENTS}
    others |= {name: getattr(args, name) for name in USUAL if getattr(args, name) != USUAL[name]}
    plain = (int, float, str, bool, dict, list, type(None))
    chosen = run.parts.properties()
    if plan.accumulation != args.gradient_accumulation_steps:  # on another number of processes
        chosen = chosen | {"gradient_accumulation_steps": args.gradient_accumulation_steps}
    if plan.cooldown is not None:
        chosen = chosen | {"cooldown_steps": args.cooldown_steps, "cooldown_type": args.cooldown_type}
    return (
        chosen
        | stream_properties(run.core.trainer.train_dataset)
        | {
            "samples": plan.samples,
            "samples_per_step": plan.samples_per_step,
            "processes": run.core.mesh.num_batches,
            "accumulation": plan.accumulation,
            "max_steps": plan.max_steps,
            "seed": args.seed,
            "data_seed": run.core.data_seed,
            "sampling": str(args.train_sampling_strategy),
            "learning_rate": args.learning_rate,
            "lr_scheduler_type": str(args.lr_scheduler_type),
            "weight_decay": args.weight_decay,
            "max_grad_norm": args.max_grad_norm,
            "optim": str(args.optim),
            "workers": args.dataloader_num_workers > 0,
        }
        | {name: value if isinstance(value, plain) else str(value) for name, value in others.items()}
        | run.events.kept_arguments
    )


def callback_states(trainer: Any) -> dict[str, Any]:
    """The states of the control and of the callbacks that have one, by class; a list for several of a class."""
    stateful = [callback for callback in trainer.callback_handler.callbacks if has_state(callback)]
    return states_by_class([trainer.control, *stateful])
