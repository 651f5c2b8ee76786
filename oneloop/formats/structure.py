"""What has to be in the files of a checkpoint, apart from the values of its tensors: rules for each file, and whether
they agree with each other. No framework, and no model: those compare shapes and types when they load.

Only files that the manifest lists are read. Those that an override of _save_checkpoint added are marked there, kept,
and never loaded by oneloop.
"""

import re
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError
from . import links, part_rules, safetensors_io
from .reading import parse_json, read_json
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

FORMAT = 1  # of all files of a checkpoint
MANIFEST = "manifest.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
OPTIMIZER = "optimizer.safetensors"
RANDOM = "random.safetensors"
STATE = "trainer_state.json"
RUN = "run.json"
ARGUMENTS = "training_args.json"

# Of a position: what differs between processes.
OWN_STATES = ("data", "collator", "dataset", "trainer", "ahead", "exhausted", "first_batch", "parts")
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
        "first_batch": optional(text("[0-9a-f]{64}", "a SHA-256 checksum")),
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

# run.json without the keys of the parts of a run, which declare theirs (formats/part_rules.py).
_RUN_REQUIRED = {
    "run_id": text(),
    "framework": text(),
    "optimizer": unless_empty(_OPTIMIZER),
    "scheduler": optional(mapping(anything)),
    "engine": record({}, {"skipped": integer(), "scaler": optional(LOSS_SCALER)}),
    "position": _POSITION,
    "course": record(
        {"samples_per_step": integer(1, 2**40), "samples": optional(integer())}, {"processes": integer(1, 2**20)}
    ),
}
_RUN_OPTIONAL = {
    "layout": optional(mapping(listing(text(), 2))),
    "strategy": record({}, {"unused": optional(flag)}),
    "grad_norm": optional(hex_number),
    "cooldown": record({"start": integer(), "schedule_steps": integer(-1)}, is_closed=True),
}
RESERVED = frozenset({"format", *_RUN_REQUIRED, *_RUN_OPTIONAL})  # keys that no part may have

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
    if links.leads_out(path, MANIFEST):
        raise CheckpointError(links.problem(MANIFEST))
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
    """Whether oneloop may load this file of a directory."""
    return CheckpointFiles(path).has(name)


def step_mismatch(path: Path, manifest: dict[str, Any]) -> str | None:
    """What is wrong if the directory is named after another step than the one that was saved."""
    match = _NAME.fullmatch(path.name or path.resolve().name)
    if match is None or int(match[1]) == manifest["step"]:
        return None
    return f"its name says step {int(match[1])}, but it was saved at step {manifest['step']}: it is a renamed copy"


def tensor_files(path: Path, kind: str) -> list[Path]:
    """The tensor files of a kind ("model", "optimizer") in a checkpoint; [] if there are none."""
    return CheckpointFiles(path).tensor_files(kind)


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
    return CheckpointFiles(path).indexed_files(index)


class CheckpointFiles:
    """The files of one checkpoint directory. Its manifest and its JSON files are read once, when they are needed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data: dict[str, bytes] = {}  # of JSON files that are not parsed yet
        self._values: dict[str, Any] = {}  # of JSON files

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """A CheckpointError if it is missing or invalid."""
        return load_manifest(self.path)

    def has(self, name: str) -> bool:
        """Whether oneloop may load this file: the manifest lists it, and not as added by an override. A directory
        without a manifest is no checkpoint of ours: save_model or another library wrote it."""
        if not (self.path / MANIFEST).exists():
            return (self.path / name).is_file()
        entry = self.manifest["files"].get(name)
        if entry is not None and links.leads_out(self.path, name):
            raise CheckpointError(f"{self.path}: {links.problem(name)}.")
        return entry is not None and not entry.get(ADDED, False)

    def json(self, name: str) -> Any:
        """The value in a JSON file. Callers share it, so they must not change it."""
        if name not in self._values:
            data = self._data.pop(name, None)
            self._values[name] = read_json(self.path / name) if data is None else parse_json(data, name)
        return self._values[name]

    def tensor_files(self, kind: str) -> list[Path]:
        """The tensor files of a kind ("model", "optimizer"); [] if there are none."""
        index, single = f"{kind}.safetensors.index.json", f"{kind}.safetensors"
        if self.has(index):
            return self.indexed_files(index)
        return [self.path / single] if self.has(single) else []

    def indexed_files(self, index: str) -> list[Path]:
        """The files that an index names, if the manifest lists them and they have exactly these tensors."""
        places = weight_map(self.path / index)
        names = sorted(set(places.values()))
        for name in names:
            if not self.has(name):
                raise CheckpointError(f"{index} names {name}, which {MANIFEST} does not list")
            found = set(safetensors_io.read_header(self.path / name))
            expected = {tensor for tensor, file in places.items() if file == name}
            if found != expected:
                some = ", ".join(sorted(found ^ expected)[:3])
                raise CheckpointError(f"{index} and {name} do not have the same tensors: {some}")
        return [self.path / name for name in names]


def tied_names(file: Path) -> dict[str, str]:
    """The other names of tied weights, from the metadata of a file of weights."""
    stored = safetensors_io.read_metadata(file).get("tied", "{}")
    return check(parse_json(stored.encode(), file.name), mapping(text()), f"the metadata of {file.name}")


# -- everything that can be checked without a model


def problems(files: CheckpointFiles) -> list[str]:
    """Why the files of a checkpoint, whose checksums are right, cannot be those of a run."""
    found = []
    for look in (_check_state_file, _check_run_file, _check_random_file, _check_tensor_files):
        try:
            look(files)
        except CheckpointError as error:
            found.append(str(error))
    return found


def _check_state_file(files: CheckpointFiles) -> None:
    if STATE not in files.manifest["files"]:
        raise CheckpointError(f"{MANIFEST} does not list {STATE}")
    state, step = check_state(files.json(STATE), STATE), files.manifest["step"]
    if state["global_step"] != step:
        raise CheckpointError(f"{STATE} is of step {state['global_step']}, {MANIFEST} of step {step}")


def read_state(path: Path) -> dict[str, Any]:
    """trainer_state.json of a checkpoint, also of one that another trainer wrote."""
    return check_state(read_json(path / STATE), STATE)


def check_state(value: Any, source: str) -> dict[str, Any]:
    """The fields of a Trainer's state, if they follow their rules."""
    return check(check(value, TRAINER_STATE, source), record({"global_step": anything}), source)


def _check_run_file(files: CheckpointFiles) -> None:
    if RUN not in files.manifest["files"]:  # save_only_model
        return
    check_run(files.json(RUN), RUN, files.manifest["step"])
    if RANDOM not in files.manifest["files"]:
        raise CheckpointError(f"{MANIFEST} does not list {RANDOM}")


def check_run(stored: Any, source: Any, step: int | None = None) -> dict[str, Any]:
    """run.json, if it follows its rules."""
    parts = part_rules.declared()
    rules = {key: rule for part in parts for key, rule in part.schema.items()}
    required = {key: rules.pop(key) for part in parts for key in part.required}
    check(stored, record(_RUN_REQUIRED | required, _RUN_OPTIONAL | rules), source)
    place = stored["position"]
    if step is not None and place["step_in_epoch"] > step:
        raise CheckpointError(f"{source} is {place['step_in_epoch']} steps into its epoch, at step {step} of the run")
    by_process = record({}, {part.name: part.process_schema for part in parts if part.process_schema is not None})
    for own in (place, *place.get("ranks", ())):
        check(own.get("parts") or {}, by_process, f"the state of a process in {source}")
    if len(place.get("ranks", ())) >= stored["course"].get("processes", 2**20):
        raise CheckpointError(f"{source} has the states of more processes than the run had")
    return stored


def _check_random_file(files: CheckpointFiles) -> None:
    if RANDOM in files.manifest["files"]:
        check_rng_states(safetensors_io.read(files.path / RANDOM))


def check_rng_states(tensors: dict[str, safetensors_io.Raw], source: str = RANDOM) -> None:
    """The states of Python's and NumPy's generators in random.safetensors, for each process and time."""
    for name in tensors:
        match = _PREFIXES.match(name)
        prefix = match[0] if match else ""
        if name.removeprefix(prefix) in _STREAMS:
            missing = [each for each in _STREAMS if prefix + each not in tensors]
            if missing:
                raise CheckpointError(f"{source} has {name}, but no {prefix}{missing[0]}")
            _check_rng_state(name, name.removeprefix(prefix), tensors[name], source)


def _check_rng_state(name: str, kind: str, raw: safetensors_io.Raw, source: str) -> None:
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


def _check_tensor_files(files: CheckpointFiles) -> None:
    has_tensors, parts = {}, part_rules.declared()
    for kind in ("model", "optimizer", *(part.name for part in parts)):
        found = files.tensor_files(kind)
        has_tensors[kind] = bool(found)
        for file in found:
            safetensors_io.read_header(file)
    if RUN not in files.manifest["files"]:
        return
    try:
        run = files.json(RUN)
    except CheckpointError:  # reported by _check_run_file
        return
    run = run if isinstance(run, dict) else {}
    for part in parts:
        if part.lacks_tensors(run) and not has_tensors[part.name]:
            raise CheckpointError(f"{RUN} describes {part.title}, but {MANIFEST} does not list {part.tensor_file}")
    optimizer = run.get("optimizer")
    is_described = isinstance(optimizer, dict) and optimizer and optimizer.get("stateless") is not True
    if is_described and not has_tensors["optimizer"]:
        raise CheckpointError(f"{RUN} describes an optimizer, but {MANIFEST} does not list {OPTIMIZER}")
