"""What has to be in the files of a checkpoint, apart from the values of its tensors: rules for each file, and whether
they agree with each other. No framework, and no model: those compare shapes and types when they load.

Only files that the manifest lists are read. Those that an override of _save_checkpoint added are marked there, kept,
and never loaded by oneloop.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError
from . import safetensors_io
from .reading import json_object, parse_json, read_json
from .schema import (
    any_number,
    anything,
    check,
    flag,
    hex_number,
    integer,
    listing,
    mapping,
    number,
    one_of,
    optional,
    record,
    text,
    unless_empty,
)

MANIFEST = "manifest.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
OPTIMIZER = "optimizer.safetensors"
RANDOM = "random.safetensors"
AVERAGE = "average.safetensors"  # of the weights
STATE = "trainer_state.json"
RUN = "run.json"
ARGUMENTS = "training_args.json"

# Of a position: what differs between processes.
OWN_STATES = ("data", "collator", "dataset", "trainer", "ahead", "exhausted")
PENDING = ("should_log", "should_evaluate", "should_save")  # what an interruption by a signal postponed
ADDED = "added"  # in an entry of the manifest: an override added the file to a complete checkpoint

LARGEST_MANIFEST = 1 << 26  # bytes
_NAME = re.compile(r"\.?checkpoint-([0-9]{1,18})(?:\.[0-9a-f]{8}\.\w+)?")  # also of a save that was interrupted
_EPOCHS = 2**31

# -- rules

_MANIFEST = record(
    {
        "format": anything,
        "step": integer(),
        "run_id": text(),
        "written": number(0, 1e12),
        "files": mapping(
            record({"bytes": integer(), "sha256": text("[0-9a-f]{64}", "a SHA-256 checksum")}, {ADDED: flag})
        ),
    },
    {"reason": text(), "unsealed": flag, "generation": integer()},
)

_CALLBACK = record({"args": mapping(anything), "attributes": mapping(anything)})
_INTERVAL = optional(number(0))

TRAINER_STATE = record(
    {},
    {
        "global_step": integer(),
        "epoch": optional(number(0, _EPOCHS)),
        "max_steps": integer(-1),
        "logging_steps": _INTERVAL,
        "eval_steps": _INTERVAL,
        "save_steps": _INTERVAL,
        "train_batch_size": optional(integer()),
        "num_train_epochs": number(-1, 2.0**63),
        "num_input_tokens_seen": integer(),
        "total_flos": number(0),
        "log_history": optional(listing(mapping(anything))),
        "best_metric": optional(any_number),
        "best_global_step": optional(integer()),
        "best_model_checkpoint": optional(text()),
        "is_local_process_zero": flag,
        "is_world_process_zero": flag,
        "is_hyper_param_search": flag,
        "trial_name": optional(text()),
        "trial_params": optional(mapping(anything)),
        "stateful_callbacks": mapping(one_of(_CALLBACK, listing(_CALLBACK))),
    },
)

_POSITION = record(
    {
        "epoch": integer(0, _EPOCHS),
        "step_in_epoch": integer(),
        "epoch_ended": flag,
        "stopped": flag,
        "epoch_stopped": flag,
    },
    {
        "pending": optional(record({}, dict.fromkeys(PENDING, flag), is_closed=True)),
        "trainer": optional(mapping(anything)),
        "ahead": optional(record({}, {"collator": anything, "dataset": anything}, is_closed=True)),
        "exhausted": optional(flag),
        "ranks": listing(record({}, dict.fromkeys(OWN_STATES, anything), is_closed=True)),
    },
)
_OPTIMIZER = record(
    {"class": text(), "groups": listing(record({"names": listing(text())}))},
    {"values": mapping(mapping(anything)), "stateless": one_of(flag, listing(text()))},
)
LOSS_SCALER = record(
    {},
    {
        "scale": one_of(number(above=0), listing(number(above=0))),
        "growth_factor": number(above=0),
        "backoff_factor": number(above=0),
        "growth_interval": integer(1),
        "_growth_tracker": integer(),
    },
)

_SPIKES = record(
    {
        "version": integer(1),
        "recent": record({}, {"loss": listing(hex_number), "grad_norm": listing(hex_number)}, is_closed=True),
        "rollbacks": listing(
            record(
                {
                    "spike": record(
                        {
                            "step": integer(1),
                            "name": text("loss|grad_norm", "loss or grad_norm"),
                            **dict.fromkeys(("value", "median", "limit"), hex_number),
                        },
                        is_closed=True,
                    ),
                    "checkpoint": integer(),
                    "steps": listing(integer(1), 2),
                },
                {"positions": listing(integer(), 3)},
                is_closed=True,
            )
        ),
    },
    {"scheduled": optional(integer(1))},
)

RUN_STATE = record(
    {
        "run_id": text(),
        "framework": text(),
        "optimizer": unless_empty(_OPTIMIZER),
        "scheduler": optional(mapping(anything)),
        "engine": record({}, {"skipped": integer(), "scaler": optional(LOSS_SCALER)}),
        "losses": record(
            {"total": hex_number, "since_log": hex_number, "steps": integer(), "steps_since_log": integer()},
            {"lost": integer(), "lost_since_log": integer()},
        ),
        "work": record({"tokens": integer(), "flops": number(0), "unpadded": integer()}),
        "position": _POSITION,
        "course": record(
            {"samples_per_step": integer(1, 2**40), "samples": optional(integer())}, {"processes": integer(1, 2**20)}
        ),
    },
    {
        "layout": optional(mapping(listing(text(), 2))),
        "strategy": record({}, {"unused": optional(flag)}),
        "grad_norm": optional(hex_number),
        "learning_rate": number(0),
        "split": integer(1, 2**20),
        "sources": mapping(listing(integer(), 4)),
        "cooldown": record({"start": integer(), "schedule_steps": integer(-1)}, is_closed=True),
        "spikes": _SPIKES,
        "seeded": listing(text()),
        "average": record({"kind": text("ema|swa", "ema or swa"), "count": integer()}, is_closed=True),
    },
)

_INDEX = record({"weight_map": mapping(text())})

# The streams that every framework stores: type and shape.
_STREAMS = {
    "python": ("U64", (625,)),
    "python.gauss": ("F64", (3,)),
    "numpy": ("U32", (624,)),
    "numpy.rest": ("F64", (3,)),
}
_PREFIXES = re.compile(r"(?:rank\d+/)?(?:epoch/|ahead/)?")


# -- the manifest, and the files that it lists


def load_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint directory; a CheckpointError if it is missing or invalid."""
    manifest = check(read_json(path / MANIFEST, LARGEST_MANIFEST), _MANIFEST, MANIFEST)
    outside = next((name for name in manifest["files"] if not is_inside(name)), None)
    if outside is not None:
        raise CheckpointError(f"{MANIFEST} lists a file outside of the checkpoint: {outside!a}")
    return manifest


def is_inside(name: str) -> bool:
    """Whether a name in a manifest is a valid file name within the checkpoint."""
    path = Path(name)
    return name.isprintable() and path.name != "" and not path.is_absolute() and ".." not in path.parts


def is_ours(path: Path, name: str) -> bool:
    """Whether oneloop may load this file of a directory: its manifest lists it, and not as added by an override. A
    directory without a manifest is no checkpoint of ours: save_model or another library wrote it."""
    if not (path / MANIFEST).exists():
        return (path / name).is_file()
    entry = load_manifest(path)["files"].get(name)
    return entry is not None and not entry.get(ADDED, False)


def wrong_step(path: Path, manifest: dict[str, Any]) -> str | None:
    """What is wrong if the directory is named after another step than the one that was saved."""
    match = _NAME.fullmatch(path.name or path.resolve().name)
    if match is None or int(match[1]) == manifest["step"]:
        return None
    return f"its name says step {int(match[1])}, but it was saved at step {manifest['step']}: it is a renamed copy"


def tensor_files(path: Path, kind: str) -> list[Path]:
    """The tensor files of a kind ("model", "optimizer") in a checkpoint; [] if there are none."""
    index, single = f"{kind}.safetensors.index.json", f"{kind}.safetensors"
    if is_ours(path, index):
        return indexed_files(path, index)
    return [path / single] if is_ours(path, single) else []


def weight_map(file: Path) -> dict[str, str]:
    """The name of each tensor and the file that has it, in the same directory as this index."""
    places = check(read_json(file), _INDEX, file.name)["weight_map"]
    if not places:
        raise CheckpointError(f"{file.name} names no tensors")
    for name in sorted(set(places.values())):
        if Path(name).name != name or name in ("", ".", "..") or "\\" in name:
            raise CheckpointError(f"{file.name} names the file {name!a}, which is not in its directory")
    return places


def indexed_files(path: Path, index: str) -> list[Path]:
    """The files that an index names, if the manifest lists them and they have exactly these tensors."""
    places = weight_map(path / index)
    names = sorted(set(places.values()))
    for name in names:
        if not is_ours(path, name):
            raise CheckpointError(f"{index} names {name}, which {MANIFEST} does not list")
        found = set(safetensors_io.read_header(path / name))
        expected = {tensor for tensor, file in places.items() if file == name}
        if found != expected:
            some = ", ".join(sorted(found ^ expected)[:3])
            raise CheckpointError(f"{index} and {name} do not have the same tensors: {some}")
    return [path / name for name in names]


def tied_names(file: Path) -> dict[str, str]:
    """The other names of tied weights, from the metadata of a file of weights."""
    stored = safetensors_io.read_metadata(file).get("tied", "{}")
    return check(parse_json(stored.encode(), file.name), mapping(text()), f"the metadata of {file.name}")


# -- everything that can be checked without a model


def problems(path: Path, manifest: dict[str, Any]) -> list[str]:
    """Why the files of a checkpoint, whose checksums are right, cannot be those of a run."""
    found = []
    for look in (_look_at_state, _look_at_run, _look_at_random, _look_at_tensors):
        try:
            look(path, manifest)
        except CheckpointError as error:
            found.append(str(error))
    return found


def _look_at_state(path: Path, manifest: dict[str, Any]) -> None:
    if STATE not in manifest["files"]:
        raise CheckpointError(f"{MANIFEST} does not list {STATE}")
    state = read_state(path)
    if state["global_step"] != manifest["step"]:
        raise CheckpointError(f"{STATE} is of step {state['global_step']}, {MANIFEST} of step {manifest['step']}")


def read_state(path: Path) -> dict[str, Any]:
    """trainer_state.json of a checkpoint, also of one that another trainer wrote."""
    return check_state(read_json(path / STATE), STATE)


def check_state(value: Any, source: str) -> dict[str, Any]:
    """The fields of a Trainer's state, if they follow their rules."""
    return check(check(value, TRAINER_STATE, source), record({"global_step": anything}), source)


def _look_at_run(path: Path, manifest: dict[str, Any]) -> None:
    if RUN not in manifest["files"]:  # save_only_model
        return
    check_run(read_json(path / RUN), RUN, manifest["step"])
    if RANDOM not in manifest["files"]:
        raise CheckpointError(f"{MANIFEST} does not list {RANDOM}")


def check_run(stored: Any, source: Any, step: int | None = None) -> dict[str, Any]:
    """run.json, if it follows its rules."""
    check(stored, RUN_STATE, source)
    place = stored["position"]
    if step is not None and place["step_in_epoch"] > step:
        raise CheckpointError(f"{source} is {place['step_in_epoch']} steps into its epoch, at step {step} of the run")
    if len(place.get("ranks", ())) >= stored["course"].get("processes", 2**20):
        raise CheckpointError(f"{source} has the states of more processes than the run had")
    return stored


def _look_at_random(path: Path, manifest: dict[str, Any]) -> None:
    if RANDOM in manifest["files"]:
        check_streams(safetensors_io.read(path / RANDOM))


def check_streams(tensors: dict[str, safetensors_io.Raw], source: str = RANDOM) -> None:
    """The states of Python's and NumPy's generators in random.safetensors, for each process and time."""
    for name in tensors:
        match = _PREFIXES.match(name)
        prefix = match[0] if match else ""
        if name.removeprefix(prefix) in _STREAMS:
            missing = [each for each in _STREAMS if prefix + each not in tensors]
            if missing:
                raise CheckpointError(f"{source} has {name}, but no {prefix}{missing[0]}")
            _check_stream(name, name.removeprefix(prefix), tensors[name], source)


def _check_stream(name: str, kind: str, raw: safetensors_io.Raw, source: str) -> None:
    if (raw.dtype, raw.shape) != _STREAMS[kind]:
        expected = f"{_STREAMS[kind][0]} of shape {_STREAMS[kind][1]}"
        raise CheckpointError(f"{name} in {source} is {raw.dtype} of shape {raw.shape}, expected {expected}")
    values = raw.array()
    if kind == "python":  # 624 words of 32 bits and a position
        good = bool((values[:624] < 2**32).all()) and values[624] <= 624
    elif kind == "python.gauss":
        good = values[0] == 3 and values[1] in (0, 1) and bool(np.isfinite(values[2]))
    elif kind == "numpy.rest":  # NumPy does not check the position, and would read beyond its array
        good = values[0] in range(625) and values[1] in (0, 1) and bool(np.isfinite(values[2]))
    else:
        good = True
    if not good:
        raise CheckpointError(f"{name} in {source} is not the state of a random number generator")


def _look_at_tensors(path: Path, manifest: dict[str, Any]) -> None:
    for kind in ("model", "optimizer", "average"):
        for file in tensor_files(path, kind):
            safetensors_io.read_header(file)
    if RUN not in manifest["files"]:
        return
    average = json_object(path / RUN).get("average")
    if isinstance(average, dict) and average.get("count") and not tensor_files(path, "average"):
        raise CheckpointError(f"{RUN} describes an average of the weights, but {MANIFEST} does not list {AVERAGE}")
    optimizer = json_object(path / RUN).get("optimizer")
    if (
        isinstance(optimizer, dict)
        and optimizer
        and optimizer.get("stateless") is not True
        and not tensor_files(path, "optimizer")
    ):
        raise CheckpointError(f"{RUN} describes an optimizer, but {MANIFEST} does not list {OPTIMIZER}")
