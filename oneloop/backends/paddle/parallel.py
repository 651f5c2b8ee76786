"""Several processes: the process group, its collectives, and the distributed strategies.

A `ProcessGroup` (distributed/collectives.py) exchanges plain values; a strategy (distributed/strategy.py) exchanges
gradients and weights.
`strategy(args, processes, mesh)` selects one: `SingleProcessStrategy` for one batch, `DataParallel` for several, or one
of sharding.py.
"""

import atexit
import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import nn

from ...arguments.sharding import divides
from ...distributed.collectives import SINGLE_PROCESS, ProcessGroup
from ...distributed.heartbeat import LOST, STACKS, Heartbeat, ranks_on_this_machine
from ...distributed.mesh import SINGLE, TENSOR, Mesh, derive_strategy
from ...distributed.strategy import AS_IT_IS, Strategy
from ...distributed.world import world
from ...errors import ArgumentError, ProcessLostError, UnsupportedError
from .._common.object_collectives import ObjectCollectives
from ..loading import load

GLOO_SECONDS = 30  # gloo's own default, which cannot be set in Paddle
BUCKET_BYTES = 25 * 2**20  # bucket size where DataParallel is not used

_BACKENDS = {"cpu": ("gloo",), "gpu": ("nccl", "flagcx"), "xpu": ("bkcl", "flagcx"), "npu": ("xccl", "flagcx")}
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
        _processes = FrameworkProcesses(args.ddp_timeout, own)
    return _processes


def _start_group(args: Any) -> None:
    kind, asked = args.device.type, args.ddp_backend
    if asked is not None and asked not in _BACKENDS[kind]:
        raise ArgumentError(
            f"ddp_backend (xpu_backend) {asked!r} does not connect processes on the device {args.device} in Paddle; "
            f"expected {' or '.join(_BACKENDS[kind])}. Remove it to use the default for the device."
        )
    if world().launcher != "paddle":
        raise ArgumentError(
            f"the model is a Paddle model, but the {world().size} processes were started by the launcher of "
            f"{world().launcher}. Start them with python -m paddle.distributed.launch."
        )
    if asked or kind == "cpu":
        os.environ["PADDLE_DISTRI_BACKEND"] = asked or "gloo"
    os.environ.setdefault("PADDLE_PG_TIMEOUT", str(args.ddp_timeout * 1000))  # milliseconds; gloo has its own
    paddle.set_device(args.device)
    try:
        dist.init_parallel_env()
    except (RuntimeError, OSError, ValueError) as error:
        raise ProcessLostError(
            f"the {world().size} processes that the launcher started did not all join the group: "
            f"{_first_line(error)}. Look for one that failed to start, or for a firewall between the machines."
        ) from error


def destroy_process_group() -> None:
    """Destroy the group that join() created, before the interpreter shuts down its threads."""
    global _processes
    processes, _processes = _processes, None
    if processes is not None:
        processes.close()


class FrameworkProcesses(ObjectCollectives):
    """The processes over paddle.distributed: short messages between hosts, with gloo."""

    def __init__(self, timeout: float, own: bool) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.first = 0  # the rank of its first process among all
        self.own = own  # whether we created the group and must destroy it
        self._subgroups: dict[tuple[tuple[int, ...], ...], ProcessGroup] = {}
        self.host = None if dist.get_backend().lower() == "gloo" else dist.new_group(backend="gloo")
        write, read = _store_accessors(self.size)
        if self.is_main:
            for name in (LOST, STACKS):
                write(name, "")
        self.heartbeat = Heartbeat(self.rank, self.size, timeout, write, read, ranks_on_this_machine(world()))
        self.barrier()  # all notes are written after it; reading a missing one would block

    def close(self) -> None:
        self.heartbeat.stop()
        if self.own and dist.is_initialized():
            dist.destroy_process_group()

    def subgroup(self, groups: tuple[tuple[int, ...], ...]) -> ProcessGroup:
        if groups not in self._subgroups:
            self._subgroups[groups] = Subgroup(self, groups)
        return self._subgroups[groups]

    def name_places(self, mesh: Mesh) -> None:
        self.heartbeat.place_of = mesh.place

    def _collective(self) -> contextlib.AbstractContextManager:
        self.heartbeat.collective_count += 1
        return self.translate_lost_peer_errors()

    def explain_lost_peer(self, error: BaseException) -> ProcessLostError | None:
        if isinstance(error, ProcessLostError) or not _is_communication_error(error):
            return None
        words = self.heartbeat.describe_lost_rank(_first_line(error))
        if "TIMEOUT" in str(error):
            words += f" Paddle's gloo waits {GLOO_SECONDS} seconds for a process, which ddp_timeout cannot change."
        return ProcessLostError(words)

    def all_gather_array(self, array: np.ndarray) -> list[np.ndarray]:
        every: list[paddle.Tensor] = []
        with self._collective():
            dist.all_gather(every, paddle.to_tensor(array, place="cpu"), group=self.host)
            return [of_rank.numpy() for of_rank in every]

    def broadcast_array(self, array: np.ndarray) -> np.ndarray:
        tensor = paddle.to_tensor(array, place="cpu")
        with self._collective():
            dist.broadcast(tensor, src=self.first, group=self.host)
            return tensor.numpy()


class Subgroup(FrameworkProcesses):
    """The processes of one group of ranks, which has the heartbeat of all."""

    def __init__(self, every: FrameworkProcesses, groups: tuple[tuple[int, ...], ...]) -> None:
        from .fleet_groups import stores_of_groups  # it imports this module

        if every.host is not None:
            raise UnsupportedError(
                "axes of the mesh along which processes have the same batch are supported by Paddle on CPUs only: "
                "groups of processes on accelerators have no messages between hosts there."
            )
        own = next(ranks for ranks in groups if every.rank in ranks)
        self.rank, self.size, self.first = own.index(every.rank), len(own), own[0]
        with stores_of_groups(every):
            made = [dist.new_group(list(ranks)) for ranks in groups]  # each process creates all of them
        self.handle = self.host = made[groups.index(own)]
        self.heartbeat, self._subgroups = every.heartbeat, {}


def rendezvous() -> tuple[str, int]:
    """Host and port of the launcher's store, which is in the main process."""
    host, port = (os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT"))
    if not (host and port):
        address = os.environ.get("PADDLE_MASTER") or os.environ["PADDLE_TRAINER_ENDPOINTS"].split(",")[0]
        host, port = address.split(":")
    return host, int(port)


def _store_accessors(size: int) -> tuple[Callable[[str, str], None], Callable[[str], str | None]]:
    """write and read on the launcher's store, over a separate connection, since the group's may be blocked."""
    host, port = rendezvous()
    store = paddle.base.core.TCPStore(host, port, False, size, 30)

    def write(key: str, text: str) -> None:
        store.set(f"oneloop/{key}", text)

    def read(key: str) -> str | None:
        return store.get(f"oneloop/{key}").decode() or None

    return write, read


_LOST_PEER_MARKERS = ("gloo", "connection", "timed out", "timeout", "nccl", "socket", "peer", "broken pipe", "tcp")


def _is_communication_error(error: BaseException) -> bool:
    """Communication errors have no types of their own; they can only be recognised by their messages."""
    text = str(error).lower()
    return isinstance(error, (RuntimeError, OSError)) and any(sign in text for sign in _LOST_PEER_MARKERS)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (next((line for line in lines if "Error" in line), None) or (lines or ["no reason given"])[0])[:300]


# -- strategies


class SingleProcessStrategy(Strategy):
    """One batch at a time: no gradient is averaged."""

    def __init__(self, args: Any, processes: ProcessGroup, mesh: Mesh = SINGLE) -> None:
        super().__init__(args, processes, load("paddle"), mesh)

    def broadcast_weights(self, model: nn.Layer) -> None:
        if self.equals.size > 1:
            from_main([*model.parameters(), *model.buffers()], self.equals)


class DataParallelStrategy(SingleProcessStrategy):
    """Every replica has the whole model; paddle.DataParallel averages gradients during the backward pass.

    An update in which a process has nothing to compute (fewer samples than processes are left) uses the model without
    DataParallel, and gradients are averaged afterwards: DataParallel would wait for that process forever. So does the
    first update unless ddp_find_unused_parameters is set: it shows whether the model has unused parameters.
    """

    def __init__(self, args: Any, processes: ProcessGroup, mesh: Mesh) -> None:
        super().__init__(args, processes, mesh)
        self.ddp: paddle.DataParallel | None = None
        self.model: nn.Layer | None = None
        self.has_unused_parameters: bool | None = None
        self._direct = False
        self._trained: list[bool] = []

    def wrap(self, model: nn.Layer) -> nn.Layer:
        if self.ddp is not None and self.model is model:  # by an earlier train(); it cannot be created again
            self.expects_unused_parameters(None)
            self.broadcast_weights(model)
            return self.ddp
        self.model, self.ddp = model, None
        self.has_unused_parameters = self.expects_unused_parameters(self.args.ddp_find_unused_parameters)
        if self.has_unused_parameters is None and self.args.torch_compile:
            self.has_unused_parameters = False  # the compiler inspects the wrapped model only once
        self.broadcast_weights(model)
        return model if self.has_unused_parameters is None else self._wrapped()

    def _wrapped(self) -> nn.Layer:
        assert self.model is not None
        self._trained = self._now_trained()
        self.ddp = paddle.DataParallel(
            self.model,
            comm_buffer_size=self.args.ddp_bucket_cap_mb or 25,
            find_unused_parameters=bool(self.has_unused_parameters),
            group=self.replicas.handle,
        )
        _keep_reducer(self.ddp)
        return self.ddp

    def begin(self, all_take_part: bool) -> None:
        self._direct = self.ddp is None or not all_take_part
        if self.model is not None:
            self.prepare_eval(self.model)

    def forward_module(self, wrapped: nn.Layer) -> nn.Layer:
        assert self.model is not None
        # A callback may freeze or unfreeze layers during a run: DataParallel would wait for them. It cannot be created
        # again, since the hooks of the old one would remain and fail.
        self._direct = self._direct or self._trained != self._now_trained()
        return self.model if self._direct else wrapped

    def _now_trained(self) -> list[bool]:
        assert self.model is not None
        return [not p.stop_gradient for p in self.model.parameters()]

    def micro_batch(self, last: bool) -> contextlib.AbstractContextManager:
        if last or self._direct:
            return AS_IT_IS
        assert self.ddp is not None
        return self.ddp.no_sync()

    def finish(self, parameters: list[paddle.Tensor]) -> bool:
        assert self.model is not None
        own = list(self.model.parameters())
        if self._direct:
            average(parameters, self.replicas)
        elif len(parameters) > len(own):  # those of a criterion, which DataParallel does not have
            known = {id(p) for p in own}
            average([p for p in parameters if id(p) not in known], self.replicas)
        if self.ddp is None:
            self.has_unused_parameters = any(not p.stop_gradient and p.grad is None for p in own)
            return True
        return False

    def rewrap(self) -> nn.Layer:
        return self._wrapped()

    def mean(self, loss: Any) -> Any:
        value = paddle.zeros([1]) if loss is None else loss.detach().astype("float32").reshape([1]).clone()
        dist.all_reduce(value, group=self.replicas.handle)
        return (value / self.replicas.size).reshape([])

    def local_buffers(self, model: nn.Layer) -> list[paddle.Tensor]:
        apart = self.args.ddp_broadcast_buffers is False and self.mesh.batch_index > 0
        return _buffers(model) if apart else []

    def load_buffer(self, target: paddle.Tensor, array: Any) -> None:
        target.set_value(array)

    def prepare_eval(self, model: nn.Layer) -> None:
        if self.args.ddp_broadcast_buffers is not False:
            from_main(_buffers(model), self.equals)


def _keep_reducer(ddp: paddle.DataParallel) -> None:
    """Keep what averages the gradients in memory as long as any of the parameters.

    Its hooks stay on them when DataParallel is deleted: when another model is trained, or with the Trainer. They would
    crash the process in the next backward pass. Hooks of one that is kept, but not in use, do nothing.
    """
    reducer = getattr(ddp, "_reducer", None)
    for p in ddp.parameters():
        weakref.finalize(p, _forget, reducer).atexit = False


def _forget(reducer: Any) -> None:
    """Called when a parameter is freed, which was a reference to this object."""


# What this framework adds to a strategy for an axis: the module of this folder, with `derive(strategy)`.
AXIS_MODULES: dict[str, str] = {TENSOR: "tensor_parallel"}


def _derivation(module: str) -> Callable[[type], type]:
    return lambda strategy: import_module(f".{module}", __package__).derive(strategy)


def strategy(args: Any, processes: ProcessGroup, mesh: Mesh) -> SingleProcessStrategy:
    """The distributed strategy for these arguments."""
    kind = SingleProcessStrategy if mesh.num_batches == 1 else _sharding_class(args, mesh) or DataParallelStrategy
    own = {axis: _derivation(module) for axis, module in AXIS_MODULES.items()}
    return derive_strategy(kind, mesh, "paddle", own)(args, processes, mesh)


def _sharding_class(args: Any, mesh: Mesh) -> type[DataParallelStrategy] | None:
    """The strategy for args.sharding; None if nothing is sharded."""
    if not args.sharding:
        return None
    if mesh.size > mesh.num_batches:  # fleet's groups are made of all processes
        raise UnsupportedError(
            "sharding on Paddle divides the batch over all processes, but axes of the mesh keep it whole in some of "
            "them. Remove sharding, or use only the axes data and shard."
        )
    from . import group_sharding, sharded_gradients, sharding  # they import this module

    if "stage1" in args.sharding.split():
        return sharding.ShardedOptimizerStrategy
    if {"stage2", "offload"} & set(args.sharding.split()) == {"stage2"}:
        return sharded_gradients.ShardedGradientsStrategy
    if divides(args):
        return group_sharding.GroupShardedStrategy
    return None


# -- tensors between processes


def _buffers(model: nn.Layer) -> list[paddle.Tensor]:
    """Buffers. Paddle keeps the running means of its norms as parameters."""
    means = [p for name, p in model.named_parameters() if name.rpartition(".")[2] in ("_mean", "_variance")]
    return [*model.buffers(), *means]


def buckets(tensors: Iterable[paddle.Tensor]) -> Iterator[list[paddle.Tensor]]:
    """Tensors of one type in buckets, since small messages are inefficient."""
    open_buckets: dict[Any, tuple[list[paddle.Tensor], int]] = {}
    for tensor in tensors:
        bucket, size = open_buckets.get(tensor.dtype, ([], 0))
        bucket.append(tensor)
        size += tensor.size * tensor.element_size()
        open_buckets[tensor.dtype] = (bucket, size)
        if size >= BUCKET_BYTES:
            yield open_buckets.pop(tensor.dtype)[0]
    yield from (bucket for bucket, _ in open_buckets.values())


@paddle.no_grad()
def _send(tensors: Iterable[paddle.Tensor], exchange: Callable[[paddle.Tensor], None]) -> None:
    """Apply a collective to the tensors in place, several at a time as one flat tensor."""
    for bucket in buckets(tensors):
        flat = paddle.concat([t.detach().reshape([-1]) for t in bucket])
        exchange(flat)
        for target, value in zip(bucket, paddle.split(flat, [t.size for t in bucket])):
            target.set_value(value.reshape(target.shape))


def from_main(values: list[paddle.Tensor], group: ProcessGroup) -> None:
    """Broadcast the values of the first process of a group."""
    source = getattr(group, "first", 0)
    _send((v for v in values if v.size), lambda flat: dist.broadcast(flat, src=source, group=group.handle))


NO_GRADIENT, DENSE, SPARSE = 0, 1, 2


def are_there(parameters: list[paddle.Tensor], group: ProcessGroup) -> list[bool]:
    """Whether any process of a group has a gradient for each parameter. A collective."""
    held = [p.grad for p in parameters]
    kinds = [NO_GRADIENT if g is None else SPARSE if g.is_selected_rows() else DENSE for g in held]
    found = paddle.to_tensor(kinds, dtype="int64")
    dist.all_reduce(found, op=dist.ReduceOp.MAX, group=group.handle)
    if SPARSE in found.tolist():
        raise UnsupportedError(
            "an embedding with sparse=True has gradients that are not averaged over processes on Paddle. Use an "
            "embedding without sparse=True, or one process."
        )
    return [bool(kind) for kind in found.tolist()]


def average(parameters: list[paddle.Tensor], group: ProcessGroup) -> None:
    """The mean of the gradients of a group of processes, some of which may have none. Where none has one, it stays
    None."""
    if not parameters:
        return
    dense = []
    for p, is_there in zip(parameters, are_there(parameters, group), strict=True):
        if is_there:
            gradient = p.grad
            if gradient is None:
                p.grad = paddle.zeros_like(p)
                gradient = p.grad
            dense.append(gradient)

    def exchange(flat: paddle.Tensor) -> None:
        dist.all_reduce(flat.scale_(1.0 / group.size), group=group.handle)

    _send(dense, exchange)
