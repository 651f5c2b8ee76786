"""Several processes: the process group, its collectives, and the distributed strategies.

A `ProcessGroup` (distributed/collectives.py) exchanges plain values; a strategy (distributed/strategy.py) exchanges
gradients and weights.
`strategy(args, processes, mesh)` selects one: `SingleProcessStrategy` for one batch, `DataParallel` of ddp.py for
several; those that also shard the state of the model are in sharding.py.
"""

import atexit
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from ...distributed.collectives import SINGLE_PROCESS, ProcessGroup
from ...distributed.heartbeat import Heartbeat, ranks_on_this_machine
from ...distributed.mesh import EXPERT, SEQUENCE, SINGLE, TENSOR, Mesh, derive_strategy
from ...distributed.strategy import Strategy
from ...distributed.world import world
from ...errors import ArgumentError, ProcessLostError
from ..loading import load

BUCKET_BYTES = 25 * 2**20  # bucket size where DDP is not used

Item = TypeVar("Item")

_processes: "FrameworkProcesses | None" = None


# -- the group


def init_process_group(args: Any) -> ProcessGroup:
    """The processes of this run. The group is created at the first call, from the launcher's variables, and destroyed
    at exit; a group that the script has created itself is used and not destroyed."""
    global _processes
    if world().size == 1:
        return SINGLE_PROCESS
    if _processes is None:
        own = not dist.is_initialized()
        if own:
            _start_group(args)
            atexit.register(destroy_process_group)
        _processes = FrameworkProcesses(args.ddp_timeout_delta, own)
    return _processes


def _start_group(args: Any) -> None:
    kind, asked = args.device.type, args.ddp_backend
    if asked is not None and not dist.is_backend_available(asked):
        known = [name for name in dist.Backend.backend_list if dist.is_backend_available(name) and name != "fake"]
        raise ArgumentError(
            f"ddp_backend (xpu_backend) {asked!r} is not in this build of PyTorch {torch.__version__}; it has "
            f"{', '.join(known)}. Remove it to use the default for the device."
        )
    if kind == "cpu" and asked in ("nccl", "xccl", "hccl"):
        raise ArgumentError(
            f"ddp_backend={asked!r} is for accelerators, but the device is the CPU. Remove it, or use gloo."
        )
    if kind == "cpu":
        backend = asked or "gloo"
    else:  # objects of the host are sent over gloo, which avoids a host sync
        backend = f"cpu:gloo,{kind}:{asked or dist.get_default_backend_for_device(kind)}"
        getattr(torch, kind).set_device(args.device)
    try:
        dist.init_process_group(backend, timeout=args.ddp_timeout_delta)
    except (dist.DistStoreError, dist.DistNetworkError) as error:
        raise ProcessLostError(
            f"the {world().size} processes that the launcher started did not all join the group within ddp_timeout "
            f"({args.ddp_timeout} s): {str(error).splitlines()[0]}. Look for one that failed to start, for a "
            "firewall between the machines, or increase ddp_timeout."
        ) from error


def destroy_process_group() -> None:
    """Destroy the group that join() created. Without this, its threads can abort the process at exit."""
    global _processes
    processes, _processes = _processes, None
    if processes is not None:
        processes.close()


# all_gather_into_tensor is deprecated since torch 2.13, and says so in every run.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class FrameworkProcesses(ProcessGroup):
    """The processes over torch.distributed: short messages between hosts, with gloo."""

    is_async = True

    def __init__(self, timeout: Any, own: bool) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.first = 0  # the rank of its first process among all
        self.own = own  # whether we created the group and must destroy it
        config = dist.get_backend_config()
        self.host = None if "cpu" in str(config) or dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
        self.heartbeat = Heartbeat(
            self.rank,
            self.size,
            timeout.total_seconds(),
            *_store_accessors(),
            local_ranks=ranks_on_this_machine(world()),
        )
        self._open: deque[Any] = deque(maxlen=8)  # the last messages in flight
        self._subgroups: dict[tuple[tuple[int, ...], ...], ProcessGroup] = {}

    def subgroup(self, groups: tuple[tuple[int, ...], ...]) -> ProcessGroup:
        if groups not in self._subgroups:
            self._subgroups[groups] = Subgroup(self, groups)
        return self._subgroups[groups]

    def name_places(self, mesh: Mesh) -> None:
        self.heartbeat.place_of = mesh.place

    def close(self) -> None:
        self.heartbeat.stop()
        deadline = time.monotonic() + 2.0
        for message in self._open:
            with contextlib.suppress(RuntimeError):  # a process is gone, or stopped
                message.wait(timedelta(seconds=max(0.01, deadline - time.monotonic())))
        if self.own and dist.is_initialized():
            dist.destroy_process_group()
        _await_rest("pt_gloo_runloop")

    def _collective(self) -> contextlib.AbstractContextManager:
        self.count_collective()
        return self.translate_lost_peer_errors()

    def explain_lost_peer(self, error: BaseException) -> ProcessLostError | None:
        if isinstance(error, ProcessLostError) or not _is_communication_error(error):
            return None
        return ProcessLostError(self.heartbeat.describe_lost_rank(str(error).splitlines()[0][:300]))

    def all_gather(self, numbers: Sequence[float]) -> list[list[float]]:
        own = torch.tensor(numbers, dtype=torch.float64)
        every = torch.empty(self.size * len(numbers), dtype=torch.float64)  # one tensor, for any number of processes
        with self._collective():
            _all_gather(every, own, group=self.host)
        return every.view(self.size, -1).tolist()

    def count_collective(self) -> None:
        self.heartbeat.collective_count += 1

    def all_gather_async(self, numbers: Sequence[float]) -> Callable[[], list[list[float]]]:
        own = torch.tensor(numbers, dtype=torch.float64)
        every = torch.empty(self.size * len(numbers), dtype=torch.float64)
        with self._collective():
            message = _all_gather(every, own, group=self.host, async_op=True)
        self._open.append(message)
        rows: list[list[float]] = []

        def told() -> list[list[float]]:
            if not rows:
                with self.translate_lost_peer_errors():
                    message.wait()
                with contextlib.suppress(ValueError):
                    self._open.remove(message)
                rows.extend(every.view(self.size, -1).tolist())
            return rows

        return told

    def all_gather_object(self, value: Any) -> list[Any]:
        every: list[Any] = [None] * self.size
        with self._collective():
            dist.all_gather_object(every, value, group=self.host)
        return every

    def gather_object(self, value: Any) -> list[Any] | None:
        every: list[Any] | None = [None] * self.size if self.is_main else None
        with self._collective():
            dist.gather_object(value, every, dst=self.first, group=self.host)
        return every

    def broadcast_object(self, value: Any) -> Any:
        box = [value]
        with self._collective():
            dist.broadcast_object_list(box, src=self.first, group=self.host)
        return box[0]

    def barrier(self) -> None:
        self.all_gather([0.0])


class Subgroup(FrameworkProcesses):
    """The processes of one group of ranks, which has the heartbeat of all."""

    def __init__(self, every: FrameworkProcesses, groups: tuple[tuple[int, ...], ...]) -> None:
        own = next(ranks for ranks in groups if every.rank in ranks)
        self.rank, self.size, self.first = own.index(every.rank), len(own), own[0]
        made = [dist.new_group(list(ranks)) for ranks in groups]  # each process creates all of them
        self.handle = self.host = made[groups.index(own)]
        if every.host is not None:
            made = [dist.new_group(list(ranks), backend="gloo") for ranks in groups]
            self.host = made[groups.index(own)]
        self.heartbeat, self._open, self._subgroups = every.heartbeat, every._open, {}


def _await_rest(name: str, seconds: float = 2.0) -> None:
    """Wait until the threads of that name are idle. After a message they release its tensors, for which they need the
    interpreter: if it is already shutting down, the process aborts."""
    deadline, before = time.monotonic() + seconds, None
    while time.monotonic() < deadline:
        time.sleep(0.005)
        now = []
        for folder in Path("/proc/self/task").glob("*"):
            with contextlib.suppress(OSError):  # it has ended
                _, _, rest = (folder / "stat").read_text().partition(f"({name})")
                if rest:
                    now.append((folder.name, rest.split()[0], (folder / "schedstat").read_text()))
        if now == before and all(state == "S" for _, state, _ in now):
            return
        before = now


def _store_accessors() -> tuple[Callable[[str, str], None], Callable[[str], str | None]]:
    """write and read on the launcher's store, over a separate connection, since the group's may be blocked."""
    store = dist.PrefixStore("oneloop", dist.distributed_c10d._get_default_store().clone())

    def read(key: str) -> str | None:
        return store.get(key).decode() if store.check([key]) else None

    return store.set, read


def _is_communication_error(error: BaseException) -> bool:
    """Gloo raises plain RuntimeErrors, which can only be recognised by file names or a phrase in their message."""
    is_of_gloo = any(sign in str(error) for sign in ("gloo/", "pair closure"))
    return isinstance(error, dist.DistError) or (type(error) is RuntimeError and is_of_gloo)


# -- strategies


class SingleProcessStrategy(Strategy):
    """One batch at a time; and what the engine needs from every strategy on torch."""

    def __init__(self, args: Any, processes: ProcessGroup, mesh: Mesh = SINGLE) -> None:
        super().__init__(args, processes, load("torch"), mesh)

    def divide(self, model: nn.Module) -> None:
        if any(getattr(module, "_is_expert_parallel", False) for module in model.modules()):
            from .expert_parallel import divided_elsewhere  # it imports this module

            raise divided_elsewhere()

    def broadcast_weights(self, model: nn.Module) -> None:
        if self.equals.size > 1:
            from_main([*model.parameters(), *model.buffers()], self.equals)

    def send(self, loss: torch.Tensor) -> None:
        """Called before a backward pass with its loss, before that is scaled."""

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """The backward pass."""
        loss.backward(**kwargs)

    def local(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        """The local shards of the gradients: plain tensors that can be changed in place."""
        return gradients

    def unscale(self, scaler: Any, optimizer: Any) -> None:
        """Unscale the gradients, and tell the scaler whether they are finite in all processes (a collective)."""
        scaler.unscale_(optimizer)

    def norm(self, gradients: list[torch.Tensor], spread_to: torch.device | None = None) -> torch.Tensor:
        """The norm of all gradients, on the device. `spread_to`: they are on several devices, and are moved to this
        one."""
        norms = torch._foreach_norm(gradients)
        if spread_to is not None:
            norms = [n.to(spread_to) for n in norms]
        return torch.linalg.vector_norm(norms[0] if len(norms) == 1 else torch.stack(norms))


# What this framework adds to a strategy for an axis: the module of this folder, with `derive(strategy)`.
AXIS_MODULES: dict[str, str] = {EXPERT: "expert_parallel", SEQUENCE: "sequence_parallel", TENSOR: "tensor_parallel"}


def _derivation(module: str) -> Callable[[type], type]:
    return lambda strategy: import_module(f".{module}", __package__).derive(strategy)


def strategy(args: Any, processes: ProcessGroup, mesh: Mesh) -> SingleProcessStrategy:
    """The distributed strategy for these arguments."""
    kind = SingleProcessStrategy
    if args.world_invariant:
        from . import ordered_sums, sharding  # they import this module

        is_divided = mesh.num_batches > 1 and sharding.strategy_class(args, mesh) is not None
        kind = ordered_sums.OrderedShardedOptimizer if is_divided else ordered_sums.OrderedSums
    elif mesh.num_batches > 1:
        from . import ddp, sharding  # they import this module

        kind = sharding.strategy_class(args, mesh) or ddp.DataParallelStrategy
    own = {axis: _derivation(module) for axis, module in AXIS_MODULES.items()}
    return derive_strategy(kind, mesh, "torch", own)(args, processes, mesh)


# -- tensors between processes


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The local part of a tensor that is divided, as a plain tensor on the same memory; others as they are."""
    to_local: Any = getattr(tensor, "to_local", None)  # DTensors have it; importing them takes a while
    return tensor if to_local is None else to_local()


def in_bucket_sizes(items: Iterable[Item], tensor_of: Callable[[Item], torch.Tensor]) -> Iterator[list[Item]]:
    """Items whose tensors are of one type in buckets, since small messages are inefficient."""
    open_buckets: dict[torch.dtype, list[Item]] = {}
    sizes: dict[torch.dtype, int] = {}
    for item in items:
        tensor = tensor_of(item)
        open_buckets.setdefault(tensor.dtype, []).append(item)
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.numel() * tensor.element_size()
        if sizes[tensor.dtype] >= BUCKET_BYTES:
            yield open_buckets.pop(tensor.dtype)
            del sizes[tensor.dtype]
    yield from open_buckets.values()


def in_buckets(tensors: Iterable[torch.Tensor], exchange: Callable[[torch.Tensor], None]) -> None:
    """Apply a collective to the tensors in place, several at a time as one flat tensor."""
    for bucket in in_bucket_sizes(tensors, lambda tensor: tensor):
        flat = torch.cat([t.detach().reshape(-1) for t in bucket])
        exchange(flat)
        for target, value in zip(bucket, flat.split([t.numel() for t in bucket])):
            target.detach().copy_(value.view_as(target))


def from_main(values: list[torch.Tensor], group: ProcessGroup) -> None:
    """Broadcast the values of the first process of a group."""
    source = getattr(group, "first", 0)
    parts = [local(v) for v in values]
    with torch.no_grad():
        in_buckets((v for v in parts if v.numel()), lambda flat: dist.broadcast(flat, src=source, group=group.handle))


NO_GRADIENT, DENSE, SPARSE = 0, 1, 2


def average(parameters: list[nn.Parameter], group: ProcessGroup) -> None:
    """The mean of the gradients of a group of processes, some of which may have none. Where none has one, it stays
    None."""
    if not parameters:
        return
    kinds = [NO_GRADIENT if p.grad is None else SPARSE if p.grad.is_sparse else DENSE for p in parameters]
    found = torch.tensor(kinds, device=parameters[0].device)
    dist.all_reduce(found, op=dist.ReduceOp.MAX, group=group.handle)
    dense = []
    for p, kind in zip(parameters, found.tolist()):
        if kind == NO_GRADIENT:
            continue
        if kind == SPARSE:
            if p.grad is None:
                p.grad = torch.sparse_coo_tensor(size=p.shape, dtype=p.dtype, device=p.device)
            dist.all_reduce(p.grad, group=group.handle)
            p.grad = p.grad / group.size
            continue
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dense.append(local(p.grad))

    def exchange(flat: torch.Tensor) -> None:
        dist.all_reduce(flat.mul_(1.0 / group.size), group=group.handle)  # in this order, as in DDP, for equal bits

    in_buckets(dense, exchange)


def add_up(gradients: list[torch.Tensor], group: ProcessGroup) -> None:
    """The sum of gradients, of which each process of a group has a part, in place."""
    in_buckets([local(g) for g in gradients], lambda flat: dist.all_reduce(flat, group=group.handle))


def gather(value: Any, processes: ProcessGroup) -> Any:
    """Concatenate the tensors of all processes along the first axis; scalars become a vector. Sizes of the other axes
    must be equal."""
    if processes.size == 1 or not isinstance(value, torch.Tensor):
        return value
    own = value.detach().contiguous()
    own = own.reshape(1) if own.ndim == 0 else own
    counts = [int(row[0]) for row in processes.all_gather([own.shape[0]])]
    longest = max(counts)
    if own.shape[0] < longest:
        own = torch.cat([own, own.new_zeros(longest - own.shape[0], *own.shape[1:])])
    every = [torch.empty_like(own) for _ in counts]
    dist.all_gather(every, own, group=processes.handle)
    return torch.cat([part[:count] for part, count in zip(every, counts)])


def pad(value: Any, processes: ProcessGroup, axis: int, filler: float) -> Any:
    """A tensor padded along an axis to the longest of all processes."""
    if processes.size == 1 or not isinstance(value, torch.Tensor) or axis >= value.ndim:
        return value
    longest = int(max(row[0] for row in processes.all_gather([value.shape[axis]])))
    shape = list(value.shape)
    shape[axis] = longest - shape[axis]
    return torch.cat([value, value.new_full(shape, filler)], axis) if shape[axis] else value


def reduce(value: Any, processes: ProcessGroup, how: str) -> Any:
    """The sum or mean of a tensor over the processes."""
    if processes.size == 1 or not isinstance(value, torch.Tensor):
        return value
    total = value.detach().clone()
    dist.all_reduce(total, group=processes.handle)
    return total / processes.size if how == "mean" else total
