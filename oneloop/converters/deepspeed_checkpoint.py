"""Checkpoints of transformers' Trainer that DeepSpeed wrote: each process its part, at ZeRO stages 1, 2 and 3.

A tag's folder has `*_model_states.pt` (names and shapes, buffers, frozen weights) and one `*_optim_states.pt` for each
process: float32 weights and moments, as parts of one flat tensor for each group of parameters. At stages 1 and 2 the
flat tensor of a group is divided among the processes; at stage 3 each parameter is.
"""

import math
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..formats import links
from ..formats.reading import read_bytes
from ..formats.structure import read_state
from . import torch_archive, transformers_checkpoint
from .named_state import NamedState, number, plain_options, scale_of
from .plain_pickle import Unknown
from .stored_tensors import Elements, FlatTensor, StoredTensor, Tensor

WRITER = transformers_checkpoint.WRITER
FRAMEWORK = transformers_checkpoint.FRAMEWORK
STATE = transformers_checkpoint.STATE
MOST_PROCESSES = 1 << 16
_OPTIMIZER_FILE = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d{1,5})_mp_rank_(\d{1,5})_optim_states\.pt")
_ELSEWHERE = re.compile(r"(?:layer_|expert_|expp_rank_|.*_expert_).*\.pt")

steps_per_epoch = transformers_checkpoint.steps_per_epoch
version = transformers_checkpoint.version


def wrote(path: Path) -> bool:
    """Whether a directory with trainer_state.json has parts that DeepSpeed wrote."""
    return (path / "latest").is_file() or any(path.glob("global_step*/*_states.pt"))


def writer(path: Path) -> str:
    return WRITER if (path / STATE).is_file() else "DeepSpeed"


def state(path: Path) -> dict[str, Any]:
    """The Trainer's state; of other programs, such as those with accelerate, the number of steps."""
    if (path / STATE).is_file():
        return read_state(path)
    step = opened(path).step
    if step is None:
        raise CheckpointError(f"{path} does not say how many steps were made: it has neither {STATE} nor global_steps")
    return {"global_step": step}


def problems(path: Path, contents: bool = True) -> list[str]:
    """Why a run cannot resume from it. Its files have checksums of their parts, which `contents` verifies."""
    found = []
    try:
        parts = files(path)
        found = [links.problem(f.relative_to(path).as_posix()) for f in parts if links.leads_out(path, _name(path, f))]
        if not found:
            opened(path)
        for file in parts if contents and not found else ():
            wrong = transformers_checkpoint.problem_with(file, contents)
            found += [wrong] if wrong else []
    except CheckpointError as error:
        found.append(str(error))
    try:
        state(path)
    except CheckpointError as error:
        found.append(str(error))
    return list(dict.fromkeys(found))


def _name(path: Path, file: Path) -> str:
    return file.relative_to(path).as_posix()


def folder(path: Path) -> Path:
    """The folder of the tag that `latest` names, or of the last step."""
    if (path / "latest").is_file():
        tag = read_bytes(path / "latest", 4096).decode("utf-8", "replace").strip()
        if not re.fullmatch(r"[\w.\-]+", tag) or tag.strip(".") == "":
            raise CheckpointError(f"{path / 'latest'} does not name a folder of the checkpoint")
        return path / tag
    steps = [f for f in path.glob("global_step*") if re.fullmatch(r"global_step\d{1,18}", f.name)]
    if not steps:
        raise CheckpointError(f"{path} has no folder global_step*")
    return max(steps, key=lambda f: int(f.name.removeprefix("global_step")))


def files(path: Path) -> list[Path]:
    """All that DeepSpeed wrote of the tag."""
    return sorted(folder(path).glob("*.pt"))


def opened(path: Path) -> NamedState:
    """Weights and optimizer state, checked; tensors are not read yet."""
    return _zero(path)[0]


def layout(path: Path) -> str:
    """How the run was divided, in words."""
    _, stage, processes = _zero(path)
    return f"DeepSpeed ZeRO stage {stage}, {processes} process{'es' * (processes != 1)}"


def _zero(path: Path) -> tuple[NamedState, int, int]:
    tag = folder(path)
    if not tag.is_dir():
        raise CheckpointError(f"{tag} is missing, with the parts that DeepSpeed wrote")
    key = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in sorted(tag.glob("*.pt"))]
    return _read(tag, tuple(key))


@lru_cache(maxsize=2)
def _read(tag: Path, key: tuple[tuple[str, int, int], ...]) -> tuple[NamedState, int, int]:
    names = [name for name, _, _ in key]
    parts = _optimizer_files(tag, names)
    stored = [_mapping(torch_archive.read(tag / name), "optimizer_state_dict", tag / name) for name in parts]
    stage = _stage(stored[0], tag / parts[0])
    models = ["mp_rank_00_model_states.pt"]
    if stage == 3:
        models = [f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" for rank in range(len(parts))]
    missing = [name for name in models if name not in names]
    if missing:
        raise CheckpointError(f"{tag.name} has no {missing[0]}")
    described = [_mapping(torch_archive.read(tag / name), None, tag / name) for name in models]
    return _Zero(tag, stage, stored, described).state(), stage, len(parts)


def _optimizer_files(tag: Path, names: Iterable[str]) -> list[str]:
    """The part of each process, by rank."""
    names = list(names)
    found: dict[int, str] = {}
    for name in names:
        match = _OPTIMIZER_FILE.fullmatch(name)
        if _ELSEWHERE.fullmatch(name) or (match and int(match[2])):
            raise CheckpointError(
                f"{tag.name}/{name} is part of a model that was divided by layers, experts or tensors (pipeline, "
                "expert or tensor parallelism), and only those of data parallelism (ZeRO) can be read. Save the "
                "weights with save_16bit_model, and start a new run from them."
            )
        if match:
            found[int(match[1])] = name
    if not found and "mp_rank_00_model_states.pt" in names:
        raise CheckpointError(
            f"{tag.name} has no *_optim_states.pt: it was written at ZeRO stage 0, whose optimizer state is in another "
            "form, or without its optimizer. Resume there once at stage 1 and save, or start again from its weights."
        )
    if not found:
        raise CheckpointError(f"{tag.name} has no *_optim_states.pt, the parts of the optimizer's state")
    gap = next((rank for rank in range(len(found)) if rank not in found), None)
    if gap is not None:
        raise CheckpointError(f"{tag.name} has no part of process {gap}: zero_pp_rank_{gap}_mp_rank_00_optim_states.pt")
    return [found[rank] for rank in sorted(found)]


def _mapping(value: Any, key: str | None, file: Path) -> dict[str, Any]:
    value = value.get(key) if key is not None and isinstance(value, dict) else value
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} has no {key or 'state'}: it is not a file of DeepSpeed's")
    return value


def _stage(stored: dict[str, Any], file: Path) -> int:
    """The stage is an enum, or missing in what the optimizer for bf16 writes."""
    stage = stored.get("zero_stage")
    if isinstance(stage, Unknown) and stage.arguments and stage.arguments[0] in (1, 2, 3):
        return stage.arguments[0]
    if type(stage) is int and stage in (1, 2, 3):
        return stage
    if "single_partition_of_fp32_groups" in stored:
        return 1
    raise CheckpointError(f"{file} does not say its ZeRO stage; it is not a file of ZeRO stages 1 to 3")


class _Zero:
    """The parts of all processes, put together."""

    def __init__(self, tag: Path, stage: int, stored: list[dict[str, Any]], models: list[dict[str, Any]]) -> None:
        self.tag, self.stage, self.stored, self.models = tag, stage, stored, models
        self.processes = len(stored)
        count = stored[0].get("partition_count")
        counts = count if isinstance(count, (list, tuple)) else [count]
        if any(n != self.processes for n in counts):
            raise CheckpointError(
                f"{tag.name} was written by {' or '.join(sorted({str(n)[:20] for n in counts}))} process(es), "
                f"but has the parts of {self.processes}. Copy those that are missing, or remove those of another run."
            )
        shapes = models[0].get("param_shapes")
        if not isinstance(shapes, (list, tuple)) or not all(isinstance(group, dict) for group in shapes):
            raise CheckpointError(f"{tag.name}: the model's file has no param_shapes")
        self.shapes = [{str(n): _shape(s, str(n), tag) for n, s in group.items()} for group in shapes]
        every = [name for group in self.shapes for name in group]
        if len(set(every)) != len(every):
            raise CheckpointError(f"{tag.name}: a parameter is in two groups")

    def state(self) -> NamedState:
        key = "fp32_flat_groups" if self.stage == 3 else "single_partition_of_fp32_groups"
        weights: dict[str, Tensor] = self._unpartitioned()
        for i in range(len(self.shapes)):
            weights |= self._spread(i, [self._item(part.get(key), i, key) for part in self.stored], key)
        shared = self.models[0].get("shared_params")
        for name, first in (shared if isinstance(shared, dict) else {}).items():
            if isinstance(first, str) and first in weights:
                weights[str(name)] = weights[first]
        states, groups = self._optimizer()
        schedule, step = self.models[0].get("lr_scheduler"), self.models[0].get("global_steps")
        return NamedState(
            weights,
            states,
            groups,
            step=step if _is_count(step) else None,
            scaler=scale_of(self.stored[0].get("loss_scaler")),
            scheduler=schedule if isinstance(schedule, dict) else None,
            is_partial=True,
        )

    def _unpartitioned(self) -> dict[str, Tensor]:
        """Buffers and frozen weights. At stage 3 the module's weights are empty, and frozen ones are divided too."""
        module = self.models[0].get("module")
        module = module if isinstance(module, dict) else {}
        if self.stage < 3:
            return {str(name): value for name, value in module.items() if isinstance(value, Tensor)}
        buffers = self.models[0].get("buffer_names")
        names = {name for name in buffers if isinstance(name, str)} if isinstance(buffers, (list, tuple)) else set()
        found = {str(n): v for n, v in module.items() if n in names and isinstance(v, Tensor)}
        shapes = self.models[0].get("frozen_param_shapes")
        for name, shape in (shapes if isinstance(shapes, dict) else {}).items():
            parts = [_stored(model.get("frozen_param_fragments"), name, self.tag) for model in self.models]
            found[str(name)] = self._divided(str(name), _shape(shape, str(name), self.tag), parts, 0)
        return found

    def _optimizer(self) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
        key = "optimizer_state_dict" if self.stage == 3 else "base_optimizer_state"
        fields: list[dict[Any, Any] | None] = []
        options: Any = []
        for rank, part in enumerate(self.stored):
            inner = part.get(key)
            if isinstance(inner, dict):
                fields.append(inner.get("state"))
                options = inner.get("param_groups") or [] if rank == 0 else options
            else:  # elastic checkpoints: the state of each group, without its options
                fields.append(dict(enumerate(inner)) if isinstance(inner, list) else None)
        if not all(isinstance(each, dict) for each in fields) or not isinstance(options, list):
            raise CheckpointError(f"{self.tag.name}: the optimizer's state is not that of a torch optimizer")
        owners = self._owners(options)
        states: dict[str, dict[str, Any]] = {}
        groups: dict[int, dict[str, Any]] = {}
        for i, shapes in enumerate(self.shapes):
            of_group = options[owners[i]] if options and isinstance(options[owners[i]], dict) else {}
            group = groups.setdefault(owners[i], plain_options(of_group) | {"param_names": []})
            group["param_names"] += shapes
            for name, values in self._moments(
                i, [each.get(i) for each in fields if each is not None], of_group
            ).items():
                states[name] = values
        return states, [groups[i] for i in sorted(groups)]

    def _owners(self, options: list[Any]) -> dict[int, int]:
        """The group of parameters of each flat tensor: at stage 3 a group has several."""
        if not options:
            return {i: i for i in range(len(self.shapes))}
        found = {}
        for place, group in enumerate(options):
            numbers = group.get("params") if isinstance(group, dict) else None
            for n in numbers if isinstance(numbers, (list, tuple)) else ():
                if type(n) is int:
                    found[n] = place
        if any(i not in found for i in range(len(self.shapes))):
            raise CheckpointError(f"{self.tag.name}: the groups of the optimizer are not those of the parameters")
        return found

    def _moments(self, i: int, parts: list[Any], options: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """The state of the parameters of one flat tensor."""
        if all(part is None for part in parts):
            return {}
        if not all(isinstance(part, dict) for part in parts):
            raise CheckpointError(f"{self.tag.name}: the optimizer's state of group {i} is not in every part")
        found: dict[str, dict[str, Any]] = {name: {} for name in self.shapes[i]}
        steps = {_step(part, options, self.tag) for part in parts}
        if len(steps) != 1:
            raise CheckpointError(f"{self.tag.name}: the processes count other numbers of steps")
        step = steps.pop()
        for own in found.values():
            own |= {} if step is None else {"step": step}
        for key in parts[0]:
            if key != "step" and isinstance(parts[0][key], Tensor):
                flat = [_stored(part, key, self.tag) for part in parts]
                for name, tensor in self._spread(i, flat, str(key)).items():
                    found[name][str(key)] = tensor
        return found

    def _item(self, value: Any, i: int, key: str) -> StoredTensor:
        if not isinstance(value, (list, tuple)) or i >= len(value) or not isinstance(value[i], StoredTensor):
            raise CheckpointError(f"{self.tag.name}: a part has no {key} of group {i}")
        return value[i]

    def _spread(self, i: int, parts: list[StoredTensor], what: str) -> dict[str, Tensor]:
        """The parameters whose elements these parts of a flat tensor have."""
        found: dict[str, Tensor] = {}
        at = 0
        if self.stage == 3:
            for name, shape in self.shapes[i].items():
                found[name] = self._divided(name, shape, parts, at)
                at += -(-math.prod(shape) // self.processes)
            if any(part.size < at for part in parts):
                raise CheckpointError(f"{self.tag.name}: {what} of group {i} has fewer elements than its parameters")
            return found
        starts = [sum(part.size for part in parts[:rank]) for rank in range(self.processes)]
        for name, shape, padding in zip(self.shapes[i], self.shapes[i].values(), self._paddings(i)):
            pieces = []
            for start, part in zip(starts, parts):
                low, high = max(at, start), min(at + math.prod(shape), start + part.size)
                if low < high:
                    pieces.append(Elements(low - at, high - low, part, low - start))
            found[name] = _flat(name, shape, pieces, what, self.tag)
            at += math.prod(shape) + padding
        return found

    def _paddings(self, i: int) -> list[int]:
        """Elements that follow each parameter, for its alignment."""
        every, count = self.stored[0].get("param_alignment_paddings"), len(self.shapes[i])
        if every is None:
            return [0] * count
        found = every[i] if isinstance(every, (list, tuple)) and i < len(every) else None
        if not isinstance(found, (list, tuple)) or len(found) != count or not all(_is_count(n) for n in found):
            raise CheckpointError(f"{self.tag.name}: param_alignment_paddings does not fit the parameters")
        return list(found)

    def _divided(self, name: str, shape: tuple[int, ...], parts: list[StoredTensor], at: int) -> Tensor:
        """A parameter of which every process has the same number of elements, the last ones padded."""
        size = math.prod(shape)
        each = -(-size // self.processes)
        pieces = []
        for rank, part in enumerate(parts):
            count = min(each, size - rank * each)
            if count > 0 and at + count <= part.size:
                pieces.append(Elements(rank * each, count, part, at))
        return _flat(name, shape, pieces, "a part", self.tag)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**48


def _flat(name: str, shape: tuple[int, ...], pieces: list[Elements], what: str, tag: Path) -> FlatTensor:
    if sum(piece.count for piece in pieces) != math.prod(shape):
        raise CheckpointError(f"{tag.name}: {what} has not all elements of {name}, of shape {shape}")
    kinds = {piece.source.dtype for piece in pieces}
    if len(kinds) > 1:
        raise CheckpointError(f"{tag.name}: {what} has {name} in several types")
    return FlatTensor(kinds.pop() if kinds else "F32", shape, tuple(pieces))


def _shape(value: Any, name: str, tag: Path) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)) or len(value) > 32 or not all(_is_count(n) for n in value):
        raise CheckpointError(f"{tag.name}: the shape of {name[:200]} is none")
    return tuple(value)


def _stored(values: Any, key: Any, tag: Path) -> StoredTensor:
    value = values.get(key) if isinstance(values, dict) else None
    if not isinstance(value, StoredTensor):
        raise CheckpointError(f"{tag.name}: a part has no {str(key)[:200]}")
    return value


def _step(part: dict[str, Any], options: dict[str, Any], tag: Path) -> float | None:
    """The number of updates, which some optimizers keep in the group."""
    value = part.get("step", options.get("step"))
    return None if value is None else float(number(value, f"{tag.name}: the number of steps"))
