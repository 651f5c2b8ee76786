"""Checkpoints in one file of torch.save: Lightning's `.ckpt` and those of scripts; and the folders that Lightning's
ModelParallelStrategy and FSDPStrategy write, which have the files of torch.distributed.checkpoint beside `meta.pt`.
"""

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..formats.reading import open_file
from . import dcp_checkpoint, state_trees, torch_archive, transformers_checkpoint
from .named_state import NamedState
from .plain_pickle import Unknown

FRAMEWORK = "torch"
WRITERS = ("Lightning", "torch.save")
SUFFIX = ".ckpt"
META = "meta.pt"
_VERSION = "pytorch-lightning_version"
_SCALERS = ("MixedPrecision", "MixedPrecisionPlugin", "NativeMixedPrecisionPlugin", "native_amp_scaling_state")
# What a run has no use for, or what is read in another way.
_SILENT = {_VERSION, "epoch", "global_step", "loops", "hparams_name", "hyper_parameters", "hparams_type", *_SCALERS}
_SILENT |= {"datamodule_hparams_name", "datamodule_hyper_parameters", "datamodule_hparams_type"}

steps_per_epoch = transformers_checkpoint.steps_per_epoch


def wrote(path: Path) -> bool:
    """Whether it is such a file, by its first bytes, or such a folder."""
    if (path / META).is_file():
        return (path / dcp_checkpoint.METADATA).is_file()
    if not path.is_file():
        return False
    try:
        with open_file(path) as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False


def writer(path: Path) -> str:
    try:
        is_lightning = _VERSION in _tree(path)
    except CheckpointError:
        is_lightning = path.suffix == SUFFIX or path.is_dir()
    return WRITERS[0] if is_lightning else WRITERS[1]


def version(path: Path) -> str | None:
    try:
        found = _tree(path).get(_VERSION)
    except CheckpointError:
        return None
    return found[:40] if isinstance(found, str) else None


def layout(path: Path) -> str:
    """How the run stored it, in words."""
    return "a sharded folder" if path.is_dir() else "one file"


def written(path: Path) -> float:
    return os.stat(path).st_mtime


def state(path: Path) -> dict[str, Any]:
    """The number of steps."""
    return {"global_step": opened(path).known_step(str(path))}


def position(path: Path) -> tuple[int, int] | None:
    """The epoch, and the updates in it, as Lightning counts them; None if they are not recorded."""
    loop = _inside(_tree(path), "loops", "fit_loop")
    epoch = _inside(loop, "epoch_progress", "current", "completed")
    done = _inside(loop, "epoch_loop.batch_progress", "current", "completed")
    batches = _inside(loop, "epoch_loop.batch_progress", "total", "completed")
    if not all(type(n) is int and 0 <= n < 2**31 for n in (epoch, done, batches)) or not batches:
        return None
    return epoch, round(done * opened(path).step / batches)  # it counts batches, of which an update may have several


def problems(path: Path, contents: bool = True) -> list[str]:
    """Why a run cannot resume from it."""
    try:
        found = dcp_checkpoint.folder_problems(path, contents) if path.is_dir() else []
        named = opened(path)
        if not named.weights:
            return ["it has no weights: a file of Lightning or of a script has them under state_dict or model"]
        if not named.has_optimizer:
            return ["it has no state of an optimizer, only weights (save_weights_only=True?)"]
        state(path)
        wrong = transformers_checkpoint.problem_with(path / META if path.is_dir() else path, contents)
        return found + ([wrong] if wrong else [])
    except CheckpointError as error:
        return [str(error)]


def opened(path: Path) -> NamedState:
    """Weights and optimizer state, checked; tensors are not read yet."""
    return _named(path, _key(path))


def _tree(path: Path) -> dict[Any, Any]:
    return _read(path, _key(path))


def _key(path: Path) -> tuple[tuple[str, int, int], ...]:
    try:
        files = sorted(f for f in path.iterdir() if f.is_file()) if path.is_dir() else [path]
        return tuple((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error


@lru_cache(maxsize=2)
def _read(path: Path, key: tuple[tuple[str, int, int], ...]) -> dict[Any, Any]:
    found = torch_archive.read(path / META if path.is_dir() else path)
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} has no state of a run: it is not a dict")
    if not path.is_dir():
        return found
    parts = dcp_checkpoint.tree(path)
    optimizers = [value for key, value in sorted(parts.items(), key=lambda item: str(item[0])) if _is_optimizer(key)]
    weights = parts.get("state_dict", parts.get("model"))
    return found | {"state_dict": weights, "optimizer_states": optimizers}


def _is_optimizer(key: Any) -> bool:
    return str(key).startswith("optimizer_")


@lru_cache(maxsize=2)
def _named(path: Path, key: tuple[tuple[str, int, int], ...]) -> NamedState:
    tree = _read(path, key)
    if _VERSION not in tree:
        return state_trees.named_state(tree, str(path))
    named = state_trees.named_state({k: v for k, v in tree.items() if k not in _SILENT | {"callbacks"}}, str(path))
    step = tree.get("global_step")
    named.step = step if type(step) is int and 0 <= step < 2**48 else named.step
    callbacks = tree.get("callbacks")
    kept = [str(name).split("{")[0][:60] for name in callbacks] if isinstance(callbacks, dict) else []
    if kept:
        named.missing.append(f"the state of its callbacks ({', '.join(kept[:8])}) is not used")
    named.missing.append("Lightning stores neither losses nor random states: the log begins here")
    named.scaler = next((_plain_scaler(tree[name]) for name in _SCALERS if isinstance(tree.get(name), dict)), None)
    _fit_schedule(named)
    return named


def _fit_schedule(named: NamedState) -> None:
    """Lightning steps a schedule after epochs, unless it is told otherwise; here it has a step for each update."""
    if named.scheduler is not None and named.step is not None and named.scheduler["last_epoch"] != named.step:
        named.missing.append(
            f"the schedule made {named.scheduler['last_epoch']} steps in {named.step} updates; it makes one in each "
            f"update here, and is set to step {named.step}"
        )
        named.scheduler = named.scheduler | {"last_epoch": named.step}


def _plain_scaler(stored: dict[Any, Any]) -> dict[str, Any] | None:
    found = {str(key): value for key, value in stored.items() if isinstance(value, (int, float))}
    return found if "scale" in found else None


def _inside(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, (dict, Unknown)) else None
    return value
