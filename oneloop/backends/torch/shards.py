"""Tensors that are divided over processes: gathered, divided, and read from files.

Each process has a *box* of a tensor: a range of every dim. FSDP2 divides by rows, tensor parallelism by rows or
columns: of n processes each has ceil(size / n) of them, the last ones fewer or none. Where both divide the rows, FSDP2
divides those that tensor parallelism has left; its placement is then a _StridedShard.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from ...distributed.collectives import ProcessGroup
from ...errors import CheckpointError, ModelError
from ...formats.safetensors_io import read_header
from .._common.helpers import check_names_and_shapes
from .models import unwrap
from .parallel import local

AT_ONCE = 64 * 2**20  # bytes in flight before waiting


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


# -- boxes

Box = tuple[slice, ...]


def box_of(tensor: DTensor, rank: int | None = None) -> Box:
    """The box of this process, or of another one that is in the mesh of the tensor."""
    mesh = tensor.device_mesh
    place = mesh.get_coordinate() if rank is None else (mesh.mesh == rank).nonzero()[0].tolist()
    box = [slice(0, size) for size in tensor.shape]
    placements: list[Any] = list(enumerate(tensor.placements))
    for axis, placement in sorted(placements, key=lambda each: _is_strided(each[1])):
        if isinstance(placement, Shard) or _is_strided(placement):
            dim = placement.dim % len(box)
            box[dim] = _part(box[dim], mesh.size(axis), place[axis])
        elif not isinstance(placement, Replicate):
            raise ModelError(f"a tensor of shape {tuple(tensor.shape)} is divided as {placement}, which is not stored")
    return tuple(box)


def _is_strided(placement: Any) -> bool:
    """Whether it divides what a later axis of the mesh has divided before."""
    return isinstance(placement, _StridedShard)


def _part(whole: slice, parts: int, index: int) -> slice:
    count = whole.stop - whole.start
    step = -(-count // parts)
    return slice(whole.start + min(index * step, count), whole.start + min((index + 1) * step, count))


def _is_empty(box: Box) -> bool:
    return any(part.start >= part.stop for part in box)


def copy_of(tensor: DTensor) -> list[int]:
    """The ranks that have the copy of this process together, the first of its boxes first."""
    mesh, place = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    assert place is not None
    ranks = mesh.mesh
    for axis in reversed(range(mesh.ndim)):
        if isinstance(tensor.placements[axis], Replicate):
            ranks = ranks.select(axis, place[axis])
    return ranks.reshape(-1).tolist()


# -- each tensor gathered in one process


class Exchange:
    """Messages with other processes, which are under way together. All processes list those of a pair in one order."""

    def __init__(self) -> None:
        self._messages: list[dist.P2POp] = []
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    def send(self, value: torch.Tensor, rank: int) -> None:
        self._messages.append(dist.P2POp(dist.isend, value.contiguous(), rank))

    def receive(self, target: torch.Tensor, rank: int) -> None:
        """Into a tensor, which may be a view of another one."""
        value = target
        if not target.is_contiguous():
            value = torch.empty_like(target, memory_format=torch.contiguous_format)
            self._copies.append((target, value))
        self._messages.append(dist.P2POp(dist.irecv, value, rank))

    def wait(self) -> None:
        for message in dist.batch_isend_irecv(self._messages) if self._messages else ():
            message.wait()
        for target, value in self._copies:
            target.copy_(value)


def gather_to(
    owner: int, mine: torch.Tensor, like: DTensor, ranks: Sequence[int], exchange: Exchange
) -> torch.Tensor | None:
    """The whole of a tensor that is divided like a parameter: in its owner, after the exchange. Others get None."""
    me = dist.get_rank()
    if me != owner:
        if not _is_empty(box_of(like)):
            exchange.send(mine, owner)
        return None
    whole = torch.empty(like.shape, dtype=mine.dtype, device=mine.device)
    for rank in ranks:
        box = box_of(like, rank)
        if rank == me:
            whole[box] = mine
        elif not _is_empty(box):
            exchange.receive(whole[box], rank)
    return whole


def scatter_from(
    owner: int, whole: torch.Tensor | None, like: DTensor, ranks: Sequence[int], exchange: Exchange
) -> torch.Tensor:
    """The box of this process, after the exchange, of a tensor that its owner has whole."""
    if whole is None:
        part = torch.empty(local(like).shape, dtype=like.dtype, device=local(like).device)
        if not _is_empty(box_of(like)):
            exchange.receive(part, owner)
        return part
    for rank in ranks:
        box = box_of(like, rank)
        if rank != owner and not _is_empty(box):
            exchange.send(whole[box], rank)
    return whole[box_of(like)]


def assign_writers(sizes: dict[str, int], writers: Sequence[int]) -> dict[str, int]:
    """The rank that writes each name, by the bytes of all."""
    return {name: _writer_at(place, writers) for name, place in _places(sizes).items()}


def _places(sizes: dict[str, int]) -> dict[str, float]:
    """Where each name is among the bytes of all, from 0 to 1."""
    total, start, found = sum(sizes.values()) or 1, 0, {}
    for name, size in sizes.items():
        found[name] = (start + size / 2) / total
        start += size
    return found


def _writer_at(place: float, writers: Sequence[int]) -> int:
    return writers[min(len(writers) - 1, int(place * len(writers)))]


def gather_to_owner(
    tensors: dict[str, torch.Tensor], model: nn.Module, writers: Sequence[int]
) -> dict[str, torch.Tensor]:
    """The tensors that this process writes, gathered from the boxes of the others. Of the writers, which have the first
    copy of the model, each writes consecutive parameters and their state, and about the same bytes.

    A name may have a suffix after that of its parameter: `encoder.weight:exp_avg`. What belongs to no parameter is
    written by the main process. A collective of the first copy; further copies have nothing to send.
    """
    places = _places({name: p.numel() * p.element_size() for name, p in unwrap(model).named_parameters()})
    me = dist.get_rank()
    found: dict[str, torch.Tensor] = {}
    for bunch in _chunks_of_tensors(tensors):
        exchange = Exchange()
        for name, tensor in bunch:
            place = places.get(name, places.get(name.rsplit(":", 1)[0], 0.0))
            if not isinstance(tensor, DTensor):
                if me == _writer_at(place, writers):
                    found[name] = tensor
                continue
            ranks = copy_of(tensor)
            if ranks[0] == 0:
                whole = gather_to(_writer_at(place, ranks), local(tensor), tensor, ranks, exchange)
                found |= {} if whole is None else {name: whole}
        exchange.wait()
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


# -- from files: of each tensor only the box of this process


class Stored:
    """A tensor in a safetensors file, read lazily."""

    def __init__(self, file: Any, name: str) -> None:
        self._file, self._name = file, name
        part = file.get_slice(name)
        self.shape, self.dtype = torch.Size(part.get_shape()), part.get_dtype()

    def dim(self) -> int:
        return len(self.shape)

    def box(self, box: Box) -> torch.Tensor:
        return self._file.get_slice(self._name)[box]

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


def _read(value: Any, box: Box | None = None) -> torch.Tensor:
    """A box, or all, of a tensor in a file or in memory."""
    if isinstance(value, Stored):
        return value.full_tensor() if box is None or not box else value.box(box)
    return value if box is None else value[box]


def shard_like(owner: Any, value: Any) -> torch.Tensor:
    """The part of a complete tensor that this process has of its parameter; others are returned completely."""
    if not isinstance(owner, DTensor) or value.shape != owner.shape or value.dim() == 0:
        return _read(value)
    return DTensor.from_local(
        _read(value, box_of(owner)).to(owner.device, copy=True).contiguous(),
        owner.device_mesh,
        owner.placements,
        run_check=False,
        shape=owner.shape,
        stride=owner.stride(),
    )


def load_model(model: nn.Module, tensors: dict[str, Any], tied: dict[str, str], source: str) -> None:
    """Copy the part of this process of each weight; one error lists names and shapes that do not match."""
    own, own_tied = model_tensors(model)
    values = tensors | {name: tensors[first] for name, first in tied.items() if first in tensors}
    values |= {name: values[first] for name, first in own_tied.items() if first in values and name not in values}
    check_names_and_shapes(values, {**own, **{name: own[first] for name, first in own_tied.items()}}, source)
    with torch.no_grad():
        for name, target in own.items():
            value = values[name]
            local(target).copy_(_read(value, box_of(target) if isinstance(target, DTensor) else None))
