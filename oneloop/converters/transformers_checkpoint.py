"""Checkpoints that transformers' Trainer wrote: recognised, described and checked without unpickling anything."""

import os
import zipfile
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..formats.reading import json_object, open_file
from ..formats.safetensors_io import read_header
from ..formats.structure import read_state, weight_map

WRITER = "transformers"
FRAMEWORK = "torch"
STATE = "trainer_state.json"
OPTIMIZER = "optimizer.pt"
SCHEDULER = "scheduler.pt"
SCALER = "scaler.pt"
# One file or an index of several; safetensors first, as a directory may hold both.
WEIGHTS = ("model.safetensors", "pytorch_model.bin", "adapter_model.safetensors", "adapter_model.bin")
# Files that transformers' Trainer writes and oneloop never does.
_MARKS = (OPTIMIZER, SCHEDULER, "training_args.bin", "rng_state.pth", "rng_state_0.pth", "pytorch_model.bin")


def wrote(path: Path) -> bool:
    """Whether a directory with trainer_state.json is a checkpoint of transformers' Trainer, complete or not."""
    return any((path / name).is_file() for name in _MARKS)


def writer(path: Path) -> str:
    return WRITER


def state(path: Path) -> dict[str, Any]:
    """The Trainer's state, if it follows the rules of trainer_state.json."""
    return read_state(path)


def weight_files(path: Path) -> list[Path]:
    """The files with the weights, in order of precedence; empty if there are none."""
    for name in WEIGHTS:
        index = path / f"{name}.index.json"
        if (path / name).is_file():
            return [path / name]
        if index.is_file():
            return [path / shard for shard in _shards(index)]
    return []


def _shards(index: Path) -> list[str]:
    try:
        return sorted(set(weight_map(index).values()))
    except CheckpointError as error:
        raise CheckpointError(f"{index.name} is not an index of weight files: {error}") from error


def problems(path: Path, contents: bool = True) -> list[str]:
    """Why a run cannot resume from it. It has no checksums, but archives contain some, which `contents` verifies."""
    found = []
    try:
        files = weight_files(path)
        if not files:
            found.append(f"{WEIGHTS[0]} and {WEIGHTS[1]} are missing")
    except CheckpointError as error:
        files = []
        found.append(str(error))
    files += [path / OPTIMIZER, path / SCHEDULER, *([path / SCALER] if (path / SCALER).exists() else [])]
    for file in files:
        wrong = f"{file.name} is missing{_why_missing(file)}" if not file.is_file() else problem_with(file, contents)
        if wrong:
            found.append(wrong)
    try:
        read_state(path)
    except CheckpointError as error:
        found.append(str(error))
    return found


def _why_missing(file: Path) -> str:
    if file.name != OPTIMIZER:
        return ""
    if any(file.parent.glob("global_step*")):
        return " (DeepSpeed wrote this checkpoint, and its folder global_step* has no parts)"
    if any(file.parent.glob("optimizer_*")) or (file.parent / "optimizer.bin").is_file():
        return " (FSDP wrote this checkpoint; only those of a plain or DDP run can be read)"
    return " (was it saved with save_only_model=True?)"


def problem_with(file: Path, contents: bool) -> str | None:
    """What is wrong with one file of a checkpoint; None if no problem is found."""
    try:
        if file.suffix == ".safetensors":
            read_header(file)
            return None
        with open_file(file) as f:
            start = f.read(2)
        if not start:
            return f"{file.name} is empty"
        if start != b"PK":
            return None  # the format before torch 1.6, which only its reader can judge
        with zipfile.ZipFile(file) as archive:
            broken = archive.testzip() if contents else None
        return f"{file.name} has changed since it was written (checksum of {broken})" if broken else None
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError, EOFError) as error:
        return f"{file.name} cannot be read: {error}"


def steps_per_epoch(state: dict[str, Any]) -> int | None:
    """The number of steps in an epoch of the old run, as far as its state shows."""
    epoch, step = state.get("epoch") or 0, state["global_step"]
    return round(step / epoch) if epoch > 0 and step > 0 else None


def version(path: Path) -> str | None:
    """The release of transformers that wrote the model's configuration; None when there is no such file."""
    found = json_object(path / "config.json").get("transformers_version")
    return found[:40] if isinstance(found, str) else None


def written(path: Path) -> float:
    """When it was written, according to the file system."""
    return os.stat(path / STATE).st_mtime
