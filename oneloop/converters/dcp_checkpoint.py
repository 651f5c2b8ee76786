"""Checkpoints in the files of torch.distributed.checkpoint (DCP), of FSDP and of accelerate.

- A folder of DCP: `.metadata` and `__RANK_N.distcp`; torchtitan and scripts write these.
- What transformers' Trainer and accelerate write with FSDP: `pytorch_model_fsdp_0/` and `optimizer_0/`, which are such
  folders, or whole files (`pytorch_model_fsdp.bin`, `optimizer.bin`).
- Other folders of `accelerator.save_state`: `model.safetensors`, `optimizer.bin`, `scheduler.bin`.
"""

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..formats import links
from ..formats.reading import read_bytes
from ..formats.safetensors_io import places
from ..formats.structure import read_state
from . import plain_pickle, state_trees, torch_archive, transformers_checkpoint
from .named_state import NamedState
from .plain_pickle import Extras, NotPlain, Unknown
from .stored_tensors import BoxedTensor, Shape, StoredTensor, Tensor, is_covered

FRAMEWORK = "torch"
STATE = transformers_checkpoint.STATE
WRITERS = ("torch.distributed.checkpoint", "accelerate")
METADATA = ".metadata"
LARGEST_METADATA = 1 << 30  # bytes
MODEL, OPTIMIZER = "pytorch_model_fsdp", "optimizer"

steps_per_epoch = transformers_checkpoint.steps_per_epoch


def wrote(path: Path) -> bool:
    """Whether a directory has such files."""
    if (path / METADATA).is_file() or (path / f"{MODEL}_0" / METADATA).is_file() or (path / f"{MODEL}.bin").is_file():
        return True
    return (path / "optimizer.bin").is_file() and not (path / transformers_checkpoint.OPTIMIZER).exists()


def writer(path: Path) -> str:
    if (path / STATE).is_file():
        return transformers_checkpoint.WRITER
    return WRITERS[0] if (path / METADATA).is_file() else WRITERS[1]


def layout(path: Path) -> str | None:
    """How the run was divided, in words."""
    if (path / METADATA).is_file():
        return "a folder of torch.distributed.checkpoint" if (path / STATE).is_file() else None
    if (path / f"{MODEL}_0").is_dir():
        return "FSDP, sharded"
    return "FSDP, whole files" if (path / f"{MODEL}.bin").is_file() else None


def version(path: Path) -> str | None:
    return transformers_checkpoint.version(path)


def written(path: Path) -> float:
    return os.stat(path).st_mtime


def state(path: Path) -> dict[str, Any]:
    """The Trainer's state; of other programs, the number of steps."""
    if (path / STATE).is_file():
        return read_state(path)
    return {"global_step": opened(path).known_step(str(path))}


def problems(path: Path, contents: bool = True) -> list[str]:
    """Why a run cannot resume from it."""
    try:
        found = folder_problems(path, contents)
        if found:
            return found
        named = opened(path)
        if not named.weights:
            return ["it has no weights"]
        if not named.has_optimizer:
            return ["it has no state of an optimizer, only weights"]
        state(path)
        for file in _files(path) if contents else ():
            wrong = transformers_checkpoint.problem_with(file, contents)
            found += [wrong] if wrong else []
        return found
    except CheckpointError as error:
        return [str(error)]


def folder_problems(path: Path, contents: bool) -> list[str]:
    """What is wrong with the files of torch.distributed.checkpoint in a folder. Each item in them is an archive with
    checksums, which `contents` verifies."""
    outside = [links.problem(name) for name in links.leading_out(path)]
    if outside or not contents:
        return outside
    folders = [f for f in (path, path / f"{MODEL}_0", path / f"{OPTIMIZER}_0") if (f / METADATA).is_file()]
    items = {item[1:] for folder in folders for stored in _described(folder)[1].values() for item in stored}
    found = [torch_archive.problem(*item) for item in sorted(items)]
    return [each for each in dict.fromkeys(found) if each is not None]


def _files(path: Path) -> list[Path]:
    names = (f"{MODEL}.bin", "optimizer.bin", "scheduler.bin", transformers_checkpoint.SCHEDULER)
    return [path / name for name in names if (path / name).is_file()]


def opened(path: Path) -> NamedState:
    """Weights and optimizer state, checked; tensors are not read yet."""
    parts = [path, path / f"{MODEL}_0", path / f"{OPTIMIZER}_0"]
    files = [f for part in parts if part.is_dir() for f in sorted(part.iterdir()) if f.is_file()]
    key = [(str(f.relative_to(path)), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    return _read(path, tuple(key))


@lru_cache(maxsize=2)
def _read(path: Path, key: tuple[tuple[str, int, int], ...]) -> NamedState:
    if (path / METADATA).is_file():
        return state_trees.named_state(tree(path), str(path))
    _refuse_others(path)
    found: dict[str, Any] = {}
    if (path / f"{MODEL}_0" / METADATA).is_file():
        found |= tree(path / f"{MODEL}_0")
    else:
        found["model"] = _whole_weights(path)
    if (path / f"{OPTIMIZER}_0" / METADATA).is_file():
        found |= tree(path / f"{OPTIMIZER}_0")
    elif (path / "optimizer.bin").is_file():
        found["optimizer"] = torch_archive.read(path / "optimizer.bin")
    schedule = next(
        (path / n for n in (transformers_checkpoint.SCHEDULER, "scheduler.bin") if (path / n).is_file()), None
    )
    if schedule is not None:
        found["lr_scheduler"] = torch_archive.read(schedule)
    named = state_trees.named_state(found, str(path))
    named.is_partial = True
    _fit_schedule(named)
    return named


def _fit_schedule(named: NamedState) -> None:
    """accelerate steps a schedule once for each process."""
    step, schedule = named.step, named.scheduler
    if step and schedule is not None and schedule["last_epoch"] > step and schedule["last_epoch"] % step == 0:
        times = schedule["last_epoch"] // step
        named.missing.append(f"the schedule made {times} steps in each update, as accelerate does, and makes one here")
        named.scheduler = schedule | {"last_epoch": step}


def _refuse_others(path: Path) -> None:
    names = sorted(f.name for f in path.glob("*_rank*.bin"))
    if names:
        raise CheckpointError(
            f"{path} has {names[0]}, a file of one process (LOCAL_STATE_DICT, or use_dcp=False), which does not say "
            "where its tensors belong. Save there with SHARDED_STATE_DICT or FULL_STATE_DICT."
        )
    several = [path / f"{OPTIMIZER}_1", path / "optimizer_1.bin", path / f"{MODEL}_1", path / "model_1.safetensors"]
    if any(each.exists() for each in several):
        raise CheckpointError(f"{path} has several models or optimizers, and a run has one of each")


def _whole_weights(path: Path) -> dict[str, Tensor]:
    named = path / f"{MODEL}.bin"
    files = [named] if named.is_file() else transformers_checkpoint.weight_files(path)
    if not files:
        raise CheckpointError(f"{path} has no weights: {named.name} and model.safetensors are missing")
    found: dict[str, Tensor] = {}
    for file in files:
        if file.suffix == ".safetensors":
            found |= {n: StoredTensor(file, at, dtype, shape) for n, (dtype, shape, at) in places(file).items()}
            continue
        values = torch_archive.read(file)
        values = values.get("model", values) if isinstance(values, dict) else values
        if not isinstance(values, dict):
            raise CheckpointError(f"{file} has no state dict")
        found |= {str(name): value for name, value in values.items() if isinstance(value, Tensor)}
    return found


# -- a folder of torch.distributed.checkpoint


@dataclass(frozen=True)
class ArchivedTensor(StoredTensor):
    """A tensor in a part of a file, which is an archive of torch.save; it is opened when it is read."""

    length: int = 0

    def elements(self, first: int, last: int) -> Any:
        inner = torch_archive.read(self.path, self.start, self.length)
        if not isinstance(inner, StoredTensor) or inner.shape != self.shape or inner.dtype != self.dtype:
            raise CheckpointError(f"{self.path} has another tensor than {METADATA} describes")
        return inner.elements(first, last)


Place = tuple[Shape, Path, int, int]  # the offset in a tensor, and the part of a file that has the box


def tree(folder: Path) -> dict[Any, Any]:
    """The state that was saved: tensors, not read yet, and other values."""
    metadata, by_name = _described(folder)
    paths = metadata.get("planner_data")
    paths = paths if isinstance(paths, dict) else {}
    found: dict[Any, Any] = {}
    for name, facts in metadata["state_dict_metadata"].items():
        if not isinstance(name, str) or not isinstance(facts, Unknown):
            raise CheckpointError(f"{folder / METADATA} describes something without a name")
        parts = by_name.get(name, [])
        if facts.name.endswith(".BytesStorageMetadata"):
            value = _value(folder, name, parts)
        else:
            value = _tensor(folder, name, facts, parts)
        _put(found, paths.get(name), name, value)
    return found


def _described(folder: Path) -> tuple[dict[str, Any], dict[str, list[Place]]]:
    """The metadata of a folder, and where the parts of each item are."""
    metadata = _metadata(folder)
    described, stored = metadata.get("state_dict_metadata"), metadata.get("storage_data")
    if not isinstance(described, dict) or not isinstance(stored, dict):
        raise CheckpointError(f"{folder / METADATA} is not the metadata of torch.distributed.checkpoint")
    by_name: dict[str, list[Place]] = {}
    sizes: dict[str, int] = {}
    for index, info in stored.items():
        name, offset, file, start, length = _place(folder, index, info, sizes)
        by_name.setdefault(name, []).append((offset, file, start, length))
    return metadata, by_name


def _metadata(folder: Path) -> dict[str, Any]:
    file = folder / METADATA
    made = {("torch", "Size"): torch_archive.size}
    try:
        found = plain_pickle.loads(read_bytes(file, LARGEST_METADATA), extras=Extras(made, _no_storage))
    except NotPlain as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from None
    if not isinstance(found, Unknown) or not isinstance(found.state, dict):
        raise CheckpointError(f"{file} is not the metadata of torch.distributed.checkpoint")
    return found.state


def _no_storage(key: Any) -> Any:
    raise NotPlain("it has a tensor")


def _place(folder: Path, index: Any, info: Any, sizes: dict[str, int]) -> tuple[str, Shape, Path, int, int]:
    """The name of an item, its offset in its tensor, and the part of a file that has it."""
    source = f"{folder / METADATA}"
    if not isinstance(index, Unknown) or not isinstance(info, Unknown):
        raise CheckpointError(f"{source} has an item that is not described")
    name, file = index.get("fqn"), info.get("relative_path")
    start, length = info.get("offset"), info.get("length")
    if not isinstance(name, str) or not isinstance(file, str) or not re.fullmatch(r"[\w.\-]+", file) or file[0] == ".":
        raise CheckpointError(f"{source} names a file that is not in its folder: {str(file)[:80]!r}")
    if info.get("transform_descriptors"):
        raise CheckpointError(f"{source}: {file} is compressed or encrypted, and cannot be read")
    if file not in sizes:
        if not (folder / file).is_file():
            raise CheckpointError(f"{folder.name}/{file} is missing")
        sizes[file] = (folder / file).stat().st_size
    if not all(type(n) is int and n >= 0 for n in (start, length)) or start + length > sizes[file]:
        raise CheckpointError(f"{folder.name}/{file} has {sizes[file]} bytes, and {name[:200]} would be beyond its end")
    return name, _numbers(index.get("offset") or (), source), folder / file, start, length


def _numbers(value: Any, source: str) -> Shape:
    if (
        not isinstance(value, (list, tuple))
        or len(value) > 32
        or not all(type(n) is int and 0 <= n < 2**48 for n in value)
    ):
        raise CheckpointError(f"{source} has a shape or an offset that is none")
    return tuple(value)


def _value(folder: Path, name: str, parts: list[Place]) -> Any:
    if len(parts) != 1:
        raise CheckpointError(f"{folder / METADATA} has {len(parts)} places for {name[:200]}")
    _, file, start, length = parts[0]
    return torch_archive.read(file, start, length)


def _tensor(folder: Path, name: str, facts: Unknown, parts: list[Place]) -> Tensor:
    source = f"{folder / METADATA}, at {name[:200]},"
    properties = facts.get("properties")
    kind = properties.state[0] if isinstance(properties, Unknown) and isinstance(properties.state, tuple) else None
    dtype = torch_archive.DTYPES.get(getattr(kind, "name", ""))
    if dtype is None:
        raise CheckpointError(f"{source} has a tensor of a type that is not known")
    shape, chunks = _numbers(facts.get("size"), source), facts.get("chunks")
    if not isinstance(chunks, list) or not all(isinstance(chunk, Unknown) for chunk in chunks):
        raise CheckpointError(f"{source} has no chunks")
    boxes = [(_numbers(c.get("offsets"), source), _numbers(c.get("sizes"), source)) for c in chunks]
    if not is_covered(shape, boxes):
        raise CheckpointError(f"{source} has chunks that are not the whole tensor of shape {shape}")
    stored = {offset or (0,) * len(shape): (file, start, length) for offset, file, start, length in parts}
    pieces = []
    for offset, sizes in boxes:
        if offset not in stored:
            raise CheckpointError(f"{source} has no file for the chunk at {offset}")
        file, start, length = stored[offset]
        pieces.append((offset, ArchivedTensor(file, start, dtype, sizes, length)))
    return BoxedTensor(dtype, shape, tuple(pieces))


def _put(found: dict[Any, Any], path: Any, name: str, value: Any) -> None:
    """Where the value was in the tree."""
    keys = list(path) if isinstance(path, (list, tuple)) and path else [name]
    if not all(type(key) in (str, int) for key in keys) or len(keys) > 20:
        keys = [name]
    for key in keys[:-1]:
        inner = found.setdefault(key, {})
        if not isinstance(inner, dict):
            raise CheckpointError(f"the place of {name[:200]} is also that of a value")
        found = inner
    found[keys[-1]] = value
