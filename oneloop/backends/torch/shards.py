"""Tensors that are sharded by rows: gathered, sharded, and read from files.

FSDP2 shards by rows: with n processes each has ceil(rows / n) of them, the last ones fewer or none.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import nn
from torch.distributed.tensor import DTensor, Shard

from ...distributed.collectives import ProcessGroup
from ...errors import CheckpointError
from ...formats.safetensors_io import read_header
from .._common.helpers import check_names_and_shapes
from .models import unwrap

AT_ONCE = 64 * 2**20  # bytes in flight before waiting


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The local rows, as a plain tensor on the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def model_tensors(model: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Weights and buffers by name, still sharded, and which names are tied.

    Tied tensors are found by identity: comparing memory fails if a process has no row of a tensor.
    """
    base = unwrap(model)
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    owners = {**dict(base.named_parameters(remove_duplicate=False)), **dict(base.named_buffers(remove_duplicate=False))}
    tensors = {}
    for name, value in base.state_dict().items():
        if not isinstance(value, torch.Tensor):
            continue
        twin = first.setdefault(id(owners.get(name, name)), name)
        if twin == name:
            tensors[name] = value.detach()
        else:
            tied[name] = twin
    return tensors, tied


def gather_full(tensors: dict[str, torch.Tensor], keep: bool) -> dict[str, torch.Tensor]:
    """Gather every tensor, one after the other; {} in processes that do not keep them. A collective."""
    found = {}
    for name, tensor in tensors.items():
        value = tensor.full_tensor().cpu() if isinstance(tensor, DTensor) else tensor
        if keep:
            found[name] = value
    return found


# -- each tensor gathered in one process


def owners(model: nn.Module, writers: Sequence[int]) -> dict[str, int]:
    """Which of these ranks writes a parameter and its state: consecutive ones, and about the same bytes for each."""
    return assign_writers({name: p.numel() * p.element_size() for name, p in unwrap(model).named_parameters()}, writers)


def assign_writers(sizes: dict[str, int], writers: Sequence[int]) -> dict[str, int]:
    """The rank that writes each name, by the bytes of all."""
    total, start, found = sum(sizes.values()) or 1, 0, {}
    for name, size in sizes.items():
        found[name] = writers[min(len(writers) - 1, int((start + size / 2) * len(writers) / total))]
        start += size
    return found


def gather_to_owner(tensors: dict[str, torch.Tensor], owner_of: dict[str, int]) -> dict[str, torch.Tensor]:
    """The tensors that this process writes, gathered from the rows of the others.

    A name may have a suffix after that of its parameter: `encoder.weight:exp_avg`. What belongs to no parameter is
    written by the main process. A collective of the first copy; further copies have nothing to send.
    """
    me = dist.get_rank()
    found: dict[str, torch.Tensor] = {}
    for bunch in _chunks_of_tensors(tensors):
        waiting = []
        for name, tensor in bunch:
            owner = owner_of.get(name, owner_of.get(name.rsplit(":", 1)[0], 0))
            if not isinstance(tensor, DTensor):
                if me == owner:
                    found[name] = tensor
                continue
            ranks = _copy_of(tensor)
            if ranks[0] != 0:
                continue
            mine = local(tensor).contiguous()
            if me != owner:
                if mine.numel():
                    waiting.append(dist.isend(mine, owner))
                continue
            target = found[name] = torch.empty(tensor.shape, dtype=mine.dtype, device=mine.device)
            for rank, rows in zip(ranks, _rows(tensor.shape[0], len(ranks))):
                if rank == me:
                    target[rows] = mine
                elif rows.start < rows.stop:
                    waiting.append(dist.irecv(target[rows], rank))
        for each in waiting:
            each.wait()
    return found


def _chunks_of_tensors(tensors: dict[str, torch.Tensor]) -> Iterator[list[tuple[str, torch.Tensor]]]:
    bunch: list[tuple[str, torch.Tensor]] = []
    size = 0
    for name, tensor in tensors.items():
        bunch.append((name, tensor))
        size += tensor.numel() * tensor.element_size()
        if size >= AT_ONCE:
            yield bunch
            bunch, size = [], 0
    yield bunch


def _copy_of(tensor: DTensor) -> list[int]:
    """The ranks that have the rows of the copy of this process, in the order of the rows."""
    mesh = tensor.device_mesh
    ranks = mesh.mesh.reshape(-1, mesh.mesh.shape[-1]).tolist()
    return next(copy for copy in ranks if dist.get_rank() in copy)


def _rows(count: int, parts: int) -> list[slice]:
    step = -(-count // parts)
    return [slice(min(i * step, count), min((i + 1) * step, count)) for i in range(parts)]


def broadcast_tensors(
    processes: ProcessGroup, tensors: dict[str, torch.Tensor], device: Any, keep: bool
) -> dict[str, torch.Tensor]:
    """Send tensors that only one process has to all that keep them."""
    known = {name: (tuple(t.shape), t.dtype, t.device.type) for name, t in tensors.items()}
    found: dict[str, torch.Tensor] = {}
    for rank, of_rank in enumerate(processes.all_gather_object(known)):
        for name, (shape, dtype, kind) in of_rank.items():
            value = tensors[name] if rank == processes.rank else torch.empty(shape, dtype=dtype, device=device)
            value = value.to(device)  # counters may be on the host
            dist.broadcast(value.contiguous(), src=rank)
            if keep:
                found[name] = value.to("cpu") if kind == "cpu" else value
    return found


# -- from files: of each tensor only the rows of this process


class Stored:
    """A tensor in a safetensors file, read lazily."""

    def __init__(self, file: Any, name: str) -> None:
        self._file, self._name = file, name
        part = file.get_slice(name)
        self.shape, self.dtype = torch.Size(part.get_shape()), part.get_dtype()

    def dim(self) -> int:
        return len(self.shape)

    def rows(self, rows: slice) -> torch.Tensor:
        return self._file.get_slice(self._name)[rows]

    def full_tensor(self) -> torch.Tensor:
        return self._file.get_tensor(self._name)


def stored(path: Path) -> dict[str, Stored]:
    """All tensors of a file, without reading them."""
    read_header(path)  # a regular file with offsets that fit
    try:
        file = safe_open(str(path), framework="pt")
        return {name: Stored(file, name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:
        raise CheckpointError(f"{path} cannot be read as safetensors: {error}") from error


def _read(value: Any, rows: slice | None = None) -> torch.Tensor:
    """Some rows, or all, of a tensor in a file or in memory."""
    if isinstance(value, Stored):
        return value.full_tensor() if rows is None else value.rows(rows)
    return value if rows is None else value[rows]


def shard_like(owner: Any, value: Any) -> torch.Tensor:
    """The shard of a complete tensor that this process has of its parameter; others are returned completely."""
    if not isinstance(owner, DTensor) or value.shape != owner.shape or value.dim() == 0:
        return _read(value)
    rows = _own_rows(owner)
    return DTensor.from_local(
        _read(value, rows).to(owner.device, copy=True),
        owner.device_mesh,
        owner.placements,
        run_check=False,
        shape=owner.shape,
        stride=owner.stride(),
    )


def _own_rows(tensor: DTensor) -> slice:
    assert isinstance(tensor.placements[-1], Shard) and tensor.placements[-1].dim == 0
    copy = _copy_of(tensor)
    return _rows(tensor.shape[0], len(copy))[copy.index(dist.get_rank())]


def load_model(model: nn.Module, tensors: dict[str, Any], tied: dict[str, str], source: str) -> None:
    """Copy the shard of this process of each weight; one error lists names and shapes that do not match."""
    own, own_tied = model_tensors(model)
    values = tensors | {name: tensors[first] for name, first in tied.items() if first in tensors}
    values |= {name: values[first] for name, first in own_tied.items() if first in values and name not in values}
    check_names_and_shapes(values, {**own, **{name: own[first] for name, first in own_tied.items()}}, source)
    with torch.no_grad():
        for name, target in own.items():
            value = values[name]
            local(target).copy_(_read(value, _own_rows(target) if isinstance(target, DTensor) else None))
