"""Checkpoints that transformers' Trainer wrote: recognised, described and checked without unpickling anything."""

import json
import os
import zipfile
from pathlib import Path
from typing import Any

from ...errors import CheckpointError

WRITER = "transformers"
STATE = "trainer_state.json"
OPTIMIZER = "optimizer.pt"
SCHEDULER = "scheduler.pt"
SCALER = "scaler.pt"
# One file or an index of several; safetensors first, as a directory may hold both.
WEIGHTS = ("model.safetensors", "pytorch_model.bin", "adapter_model.safetensors", "adapter_model.bin")
# Files that transformers' Trainer writes and oneloop never does, and one of oneloop's that it never writes.
_MARKS = (OPTIMIZER, SCHEDULER, "training_args.bin", "rng_state.pth", "rng_state_0.pth", "pytorch_model.bin")
_OWN_MARK = "run.json"
_OF_PADDLENLP = ("optimizer.pdopt", "scheduler.pdparams", "model_state.pdparams", "lora_model_state.pdparams")


def looks_foreign(path: Path) -> bool:
    """Whether a directory without our manifest is a checkpoint of transformers' Trainer, complete or not."""
    if not (path / STATE).is_file() or (path / _OWN_MARK).exists():
        return False
    return any((path / name).is_file() for name in _MARKS)


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
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        if not names or any(Path(name).name != name for name in names):
            raise ValueError("its files are not in the same directory")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{index.name} is not an index of weight files: {error}") from error
    return names


def problems(path: Path, contents: bool = True) -> list[str]:
    """Why a run cannot resume from it. It has no checksums, but archives contain some, which `contents` verifies."""
    if any((path / name).is_file() for name in _OF_PADDLENLP):
        return [
            "PaddleNLP's Trainer wrote it, but a run can only resume from oneloop's own and from transformers'. Start "
            "a new run in another output_dir, with this directory as the model to load"
        ]
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
        wrong = f"{file.name} is missing{_why_missing(file)}" if not file.is_file() else _wrong_with(file, contents)
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
    if (file.parent / "latest").is_file() or any(file.parent.glob("global_step*")):
        return " (DeepSpeed wrote this checkpoint in pieces; only those of a plain or DDP run can be read)"
    if any(file.parent.glob("optimizer_*")) or (file.parent / "optimizer.bin").is_file():
        return " (FSDP wrote this checkpoint; only those of a plain or DDP run can be read)"
    return " (was it saved with save_only_model=True?)"


def _wrong_with(file: Path, contents: bool) -> str | None:
    """What is wrong with one file of a checkpoint; None if no problem is found."""
    try:
        if file.suffix == ".safetensors":
            return _wrong_with_safetensors(file)
        with open(file, "rb") as f:
            start = f.read(2)
        if not start:
            return f"{file.name} is empty"
        if start != b"PK":
            return None  # the format before torch 1.6, which only its reader can judge
        with zipfile.ZipFile(file) as archive:
            broken = archive.testzip() if contents else None
        return f"{file.name} has changed since it was written (checksum of {broken})" if broken else None
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError) as error:
        return f"{file.name} cannot be read: {error}"


def _wrong_with_safetensors(file: Path) -> str | None:
    size = file.stat().st_size
    with open(file, "rb") as f:
        length = int.from_bytes(f.read(8), "little")
        if not 2 <= length <= size - 8:
            return f"{file.name} is not a safetensors file, or is truncated"
        table = json.loads(f.read(length))
    try:
        end = max((entry["data_offsets"][1] for name, entry in table.items() if name != "__metadata__"), default=0)
    except (AttributeError, KeyError, TypeError, IndexError):
        return f"{file.name} is not a safetensors file"
    return f"{file.name} has {size} bytes instead of {8 + length + end}" if size != 8 + length + end else None


def read_state(path: Path) -> dict[str, Any]:
    """trainer_state.json, after checking the fields that a resume needs."""
    try:
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{STATE} cannot be read: {error}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{STATE} is not a JSON object")
    history, callbacks = state.get("log_history", []), state.get("stateful_callbacks", {})
    wrong = [
        name
        for name, good in (
            ("global_step", _is_number(state.get("global_step"), int)),
            ("epoch", state.get("epoch") is None or _is_number(state["epoch"], (int, float))),
            ("max_steps", _is_number(state.get("max_steps", 0), int, lowest=-1)),
            ("total_flos", _is_number(state.get("total_flos", 0), (int, float))),
            ("num_input_tokens_seen", _is_number(state.get("num_input_tokens_seen", 0), int)),
            ("log_history", isinstance(history, list) and all(isinstance(row, dict) for row in history)),
            ("best_model_checkpoint", isinstance(state.get("best_model_checkpoint"), (str, type(None)))),
            ("stateful_callbacks", isinstance(callbacks, dict) and all(map(_is_callback_state, callbacks.values()))),
        )
        if not good
    ]
    if wrong:
        raise CheckpointError(f"{STATE} has no usable {', '.join(wrong)}")
    return state


def _is_number(value: Any, kind: Any, lowest: int = 0) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and lowest <= value < 2**63


def _is_callback_state(value: Any) -> bool:
    states = value if isinstance(value, list) else [value]
    return bool(states) and all(
        isinstance(state, dict) and isinstance(state.get("args"), dict) and isinstance(state.get("attributes"), dict)
        for state in states
    )


def steps_per_epoch(state: dict[str, Any]) -> int | None:
    """The number of steps in an epoch of the old run, as far as its state shows."""
    epoch, step = state.get("epoch") or 0, state["global_step"]
    return round(step / epoch) if epoch > 0 and step > 0 else None


def version(path: Path) -> str | None:
    """The release of transformers that wrote the model's configuration; None when there is no such file."""
    try:
        found = json.loads((path / "config.json").read_text(encoding="utf-8")).get("transformers_version")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return found[:40] if isinstance(found, str) else None


def written(path: Path) -> float:
    """When it was written, according to the file system."""
    return os.stat(path / STATE).st_mtime
