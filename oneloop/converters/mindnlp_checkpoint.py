"""Checkpoints that the Trainer of mindnlp 0.4 wrote: recognised, checked and read as named arrays. No framework.

Weights are in model.safetensors under torch's names. The optimizer and the scheduler are pickles inside of a zip file,
the latter in spite of its name, scheduler.json. Optimizer state is numbered as in torch; the parameters of the numbers
are found by the rules of parameter_groups.py.
"""

import os
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError, a_type
from ..formats import safetensors_io
from ..formats.reading import json_object, open_file
from ..formats.safetensors_io import Raw
from ..formats.schema import is_finite, is_integer
from ..formats.structure import read_state
from . import parameter_groups, plain_pickle
from .parameter_groups import Loaded, Parameter, Shape

WRITERS = ("mindnlp",)
FRAMEWORK = "mindspore"
FRAMEWORKS: tuple[str, ...] = ("mindspore", "mindtorch")
WEIGHTS, OPTIMIZER, SCHEDULER = "model.safetensors", "optimizer.ckpt", "scheduler.json"

_TENSORS = frozenset({("mindspore.common.tensor", "Tensor"), ("mindspore.common.parameter", "Parameter")})
_STATES = {"AdamW": {"step", "exp_avg", "exp_avg_sq"}, "SGD": {"momentum_buffer"}}
# The options of a group that affect the results; the learning rate comes from the schedule.
_OPTIONS = ("betas", "eps", "weight_decay", "momentum", "dampening", "nesterov")


@dataclass
class Groups:
    """The parameter groups of an optimizer: names, and options, in each."""

    names: list[list[str]]
    options: list[dict[str, Any]]


# -- recognised and checked


def wrote(path: Path) -> bool:
    """Whether a directory with trainer_state.json is one of theirs."""
    return (path / OPTIMIZER).is_file() or (path / SCHEDULER).is_file()


def writer(path: Path) -> str:
    return WRITERS[0]


def version(path: Path) -> str | None:
    found = json_object(path / "config.json").get("mindnlp_version")
    return found[:40] if isinstance(found, str) else None


def state(path: Path) -> dict[str, Any]:
    """The Trainer's state, if it follows the rules of trainer_state.json."""
    return read_state(path)


def problems(path: Path, contents: bool = True) -> list[str]:
    """Why a run cannot resume from it. Without `contents`, pickles are not read."""
    found = []
    for look in (_check_weights, state, *((_optimizer, scheduler) if contents else (_check_files,))):
        try:
            look(path)
        except CheckpointError as error:
            found.append(str(error))
    return found


def _check_weights(path: Path) -> None:
    if not (path / WEIGHTS).is_file():
        sharded = (path / f"{WEIGHTS}.index.json").is_file() or any(path.glob("mindspore_model*.ckpt"))
        why = " (let mindnlp write it with save_safetensors=True, in one file)" if sharded else ""
        raise CheckpointError(f"{WEIGHTS} is missing{why}")
    safetensors_io.read_header(path / WEIGHTS)


def _check_files(path: Path) -> None:
    for name in (OPTIMIZER, SCHEDULER):
        if not (path / name).is_file():
            raise CheckpointError(f"{name} is missing (was it saved with save_only_model=True?)")


# -- contents


def weights(path: Path) -> dict[str, Raw]:
    """Weights and buffers by name."""
    _check_weights(path)
    return safetensors_io.read(path / WEIGHTS)


def scheduler(path: Path) -> dict[str, Any]:
    """The state of a scheduler as in torch: `last_epoch` is the number of its steps."""
    found = _mapping(path / SCHEDULER)
    if not is_integer(found.get("last_epoch")) or found["last_epoch"] < 0:
        raise CheckpointError(f"{path / SCHEDULER} has no last_epoch; it is not the state of a scheduler")
    return found


def _mapping(file: Path) -> dict[str, Any]:
    """The dict in a zip file with one pickle. Its parts are not compressed, so no more can come out than went in."""
    if not file.is_file():
        raise CheckpointError(f"{file.name} is missing (was it saved with save_only_model=True?)")
    try:
        with open_file(file) as opened, zipfile.ZipFile(opened) as archive:
            (entry,) = archive.infolist()
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > os.fstat(opened.fileno()).st_size:
                raise plain_pickle.NotPlain("its parts are compressed")
            value = plain_pickle.loads(archive.read(entry), _TENSORS)
    except (OSError, zipfile.BadZipFile, ValueError, RuntimeError, NotImplementedError) as error:
        raise CheckpointError(
            f"{file} cannot be read as arrays and plain data: {error}. It is corrupt, or contains objects that could "
            "only be loaded by executing code, which oneloop never does."
        ) from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} contains {a_type(value)} instead of a state dict")
    return value


def _optimizer(path: Path) -> tuple[dict[int, dict[str, Any]], list[dict[str, Any]]]:
    """State by number, and the groups, after checking their format."""
    data = _mapping(path / OPTIMIZER)
    states: Any = data.get("state")
    groups: Any = data.get("param_groups")
    good = isinstance(states, dict) and isinstance(groups, list)
    good = good and all(isinstance(group, dict) and _are_numbers(group.get("params")) for group in groups)
    good = good and all(isinstance(each, dict) for each in states.values())
    numbers = [number for group in groups for number in group["params"]] if good else []
    if not good or len(set(numbers)) != len(numbers) or not set(states) <= set(numbers):
        raise CheckpointError(f"{path / OPTIMIZER} is not the state of an optimizer")
    return {n: {str(key): _array(v, path) for key, v in each.items()} for n, each in states.items()}, groups


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_integer, value))


def _array(value: Any, path: Path) -> np.ndarray:
    """A tensor of MindSpore, which is stored with its values, or the number of updates."""
    if isinstance(value, dict):
        value = value.get("value")
        value = value[0] if type(value) is tuple and len(value) == 1 else value
    if is_finite(value) and value >= 0:
        return np.array(value, np.float32)
    if not isinstance(value, np.ndarray):
        raise CheckpointError(f"{path / OPTIMIZER} has a state that is neither a tensor nor a number")
    return value


def optimizer(
    path: Path, kind: str, parameters: list[Parameter], shapes: dict[str, Shape], own: Groups
) -> tuple[Loaded, dict[str, np.ndarray], list[dict[str, Any]]]:
    """How the state was matched; the state as "name:field"; and the options of the old run for each of our groups.

    `kind` is the class of the run's optimizer; `parameters` are those of the model, in its order.
    """
    file = path / OPTIMIZER
    if kind not in _STATES:
        raise CheckpointError(
            f"this run's optimizer is {kind}; from a checkpoint of mindnlp only the states of {', '.join(_STATES)} can "
            "be loaded. Use the optimizer that the checkpoint was written with, or start a new run from its weights."
        )
    states, groups = _optimizer(path)
    _check_fields(states, kind, file)
    candidates = parameter_groups.candidates(parameters, keep_empty=len(groups) == 2)
    candidates.append(("the groups of this run", own.names))
    kept = {n: {k: tuple(v.shape) for k, v in each.items() if k != "step"} for n, each in states.items()}
    rule, named = parameter_groups.choose(candidates, [g["params"] for g in groups], kept, shapes, str(file))
    home = {name: i for i, names in enumerate(named) for name in names}
    outside = sorted(name for names in own.names for name in names if name not in home)
    if outside:
        raise CheckpointError(f"{file} has no state for {', '.join(outside)}, which this run's optimizer trains")
    number = {name: n for names, group in zip(named, groups) for name, n in zip(names, group["params"])}
    found = {f"{n}:{key}": v for names in own.names for n in names for key, v in states.get(number[n], {}).items()}
    sources = [{home[name] for name in names} for names in own.names]
    options = [_agreed([groups[i] for i in sorted(source)]) for source in sources]
    return Loaded(rule, sources, _changed_decay(own, groups, home)), found, options


def _check_fields(states: Mapping[int, Mapping[str, Any]], kind: str, file: Path) -> None:
    for number, each in states.items():
        if set(each) != _STATES[kind]:
            raise CheckpointError(
                f"{file} is the state of another optimizer, or is incomplete: parameter {number} has "
                f"{', '.join(sorted(each)) or 'nothing'}; this run's {kind} has {', '.join(sorted(_STATES[kind]))}. "
                "Set optim to the optimizer that the checkpoint was written with."
            )


def _agreed(groups: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The options that all these groups have in common."""
    first, *others = groups
    return {key: first[key] for key in _OPTIONS if key in first and all(g.get(key) == first[key] for g in others)}


def _changed_decay(
    own: Groups, groups: list[dict[str, Any]], home: Mapping[str, int]
) -> dict[str, tuple[float, float]]:
    found = {}
    for names, options in zip(own.names, own.options):
        for name in names:
            old, new = groups[home[name]].get("weight_decay", 0.0), options.get("weight_decay", 0.0)
            if is_finite(old) and old != new:
                found[name] = (float(old), float(new))
    return found
