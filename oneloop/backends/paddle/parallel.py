"""Several processes: the process group, its collectives, and the distributed strategies.

A `ProcessGroup` (distributed/collectives.py) exchanges plain values; a strategy (distributed/strategy.py) exchanges
gradients and weights.
`strategy(args, processes)` selects one: `Alone` for one process, `DataParallel` for several, or one of sharding.py.
"""

import atexit
import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import nn

from ...arguments.sharding import divides
from ...distributed.collectives import SINGLE_PROCESS, ProcessGroup
from ...distributed.heartbeat import LOST, Heartbeat, near
from ...distributed.strategy import AS_IT_IS, Strategy
from ...distributed.world import world
from ...errors import ArgumentError, ProcessLostError, RefusedError
from .._common.object_collectives import ObjectCollectives

GLOO_SECONDS = 30  # gloo's own default, which cannot be set in Paddle
BUCKET_BYTES = 25 * 2**20  # bucket size where DataParallel is not used

_BACKENDS = {"cpu": ("gloo",), "gpu": ("nccl", "flagcx"), "xpu": ("bkcl", "flagcx"), "npu": ("xccl", "flagcx")}
_processes: "FrameworkProcesses | None" = None


# -- the group


def join(args: Any) -> ProcessGroup:
    """The processes of this run. The group is created at the first call, from the launcher's variables, and destroyed
    at exit; a group that the script has created itself is used and not destroyed."""
    global _processes
    if world().size == 1:
        return SINGLE_PROCESS
    if _processes is None:
        own = not dist.is_initialized()
        if own:
            _start_group(args)
            atexit.register(leave)
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


def leave() -> None:
    """Destroy the group that join() created, before the interpreter shuts down its threads."""
    global _processes
    processes, _processes = _processes, None
    if processes is not None:
        processes.close()


class FrameworkProcesses(ObjectCollectives):
    """The processes over paddle.distributed: short messages between hosts, with gloo."""

    def __init__(self, timeout: float, own: bool) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.own = own  # whether we created the group and must destroy it
        self.host = None if dist.get_backend().lower() == "gloo" else dist.new_group(backend="gloo")
        write, read = _board(self.size)
        if self.is_main:
            write(LOST, "")
        self.signs = Heartbeat(self.rank, self.size, timeout, write, read, near(world()))
        self.barrier()  # all notes are written after it; reading a missing one would block

    def close(self) -> None:
        self.signs.stop()
        if self.own and dist.is_initialized():
            dist.destroy_process_group()

    def _speaking(self) -> contextlib.AbstractContextManager:
        self.signs.meetings += 1
        return self.explaining_lost_peers()

    def explain_lost_peer(self, error: BaseException) -> ProcessLostError | None:
        if isinstance(error, ProcessLostError) or not _is_of_communication(error):
            return None
        words = self.signs.who_is_lost(_first_line(error))
        if "TIMEOUT" in str(error):
            words += f" Paddle's gloo waits {GLOO_SECONDS} seconds for a process, which ddp_timeout cannot change."
        return ProcessLostError(words)

    def gather(self, array: np.ndarray) -> list[np.ndarray]:
        every: list[paddle.Tensor] = []
        with self._speaking():
            dist.all_gather(every, paddle.to_tensor(array, place="cpu"), group=self.host)
            return [of_rank.numpy() for of_rank in every]

    def spread(self, array: np.ndarray) -> np.ndarray:
        tensor = paddle.to_tensor(array, place="cpu")
        with self._speaking():
            dist.broadcast(tensor, src=0, group=self.host)
            return tensor.numpy()


def rendezvous() -> tuple[str, int]:
    """Host and port of the launcher's store, which is in the main process."""
    host, port = (os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT"))
    if not (host and port):
        address = os.environ.get("PADDLE_MASTER") or os.environ["PADDLE_TRAINER_ENDPOINTS"].split(",")[0]
        host, port = address.split(":")
    return host, int(port)


def _board(size: int) -> tuple[Callable[[str, str], None], Callable[[str], str | None]]:
    """write and read on the launcher's store, over a separate connection, since the group's may be blocked."""
    host, port = rendezvous()
    store = paddle.base.core.TCPStore(host, port, False, size, 30)

    def write(key: str, text: str) -> None:
        store.set(f"oneloop/{key}", text)

    def read(key: str) -> str | None:
        return store.get(f"oneloop/{key}").decode() or None

    return write, read


_SIGNS_OF_LOSS = ("gloo", "connection", "timed out", "timeout", "nccl", "socket", "peer", "broken pipe", "tcp")


def _is_of_communication(error: BaseException) -> bool:
    """Communication errors have no types of their own; they can only be recognised by their messages."""
    text = str(error).lower()
    return isinstance(error, (RuntimeError, OSError)) and any(sign in text for sign in _SIGNS_OF_LOSS)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (next((line for line in lines if "Error" in line), None) or (lines or ["no reason given"])[0])[:300]


# -- strategies


class Alone(Strategy):
    """One process, without communication."""

    def __init__(self, args: Any, processes: ProcessGroup) -> None:
        from . import backend  # it imports this module

        super().__init__(args, processes, backend)


class DataParallel(Alone):
    """Every process has the whole model; paddle.DataParallel averages gradients during the backward pass.

    An update in which a process has nothing to compute (fewer samples than processes are left) uses the model without
    DataParallel, and gradients are averaged afterwards: DataParallel would wait for that process forever. So does the
    first update unless ddp_find_unused_parameters is set: it shows whether the model has unused parameters.
    """

    def __init__(self, args: Any, processes: ProcessGroup) -> None:
        super().__init__(args, processes)
        self.ddp: paddle.DataParallel | None = None
        self.model: nn.Layer | None = None
        self.unused: bool | None = None
        self._direct = False
        self._trained: list[bool] = []

    def agree(self, model: nn.Layer) -> None:
        _from_main([*model.parameters(), *model.buffers()])

    def wrap(self, model: nn.Layer) -> nn.Layer:
        if self.ddp is not None and self.model is model:  # by an earlier train(); it cannot be created again
            self.known_unused(None)
            self.agree(model)
            return self.ddp
        self.model, self.ddp = model, None
        self.unused = self.known_unused(self.args.ddp_find_unused_parameters)
        if self.unused is None and self.args.torch_compile:
            self.unused = False  # the compiler inspects the wrapped model only once
        self.agree(model)
        return model if self.unused is None else self._wrapped()

    def _wrapped(self) -> nn.Layer:
        assert self.model is not None
        self._trained = self._now_trained()
        self.ddp = paddle.DataParallel(
            self.model,
            comm_buffer_size=self.args.ddp_bucket_cap_mb or 25,
            find_unused_parameters=bool(self.unused),
        )
        _keep_reducer(self.ddp)
        return self.ddp

    def begin(self, all_take_part: bool) -> None:
        self._direct = self.ddp is None or not all_take_part
        if self.model is not None:
            self.settle(self.model)

    def called(self, wrapped: nn.Layer) -> nn.Layer:
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
            average(parameters, self.processes.size)
        elif len(parameters) > len(own):  # those of a criterion, which DataParallel does not have
            known = {id(p) for p in own}
            average([p for p in parameters if id(p) not in known], self.processes.size)
        if self.ddp is None:
            self.unused = any(not p.stop_gradient and p.grad is None for p in own)
            return True
        return False

    def rewrap(self) -> nn.Layer:
        return self._wrapped()

    def mean(self, loss: Any) -> Any:
        value = paddle.zeros([1]) if loss is None else loss.detach().astype("float32").reshape([1]).clone()
        dist.all_reduce(value)
        return (value / self.processes.size).reshape([])

    def own_buffers(self, model: nn.Layer) -> list[paddle.Tensor]:
        apart = self.args.ddp_broadcast_buffers is False and not self.processes.is_main
        return _buffers(model) if apart else []

    def put_buffer(self, target: paddle.Tensor, array: Any) -> None:
        target.set_value(array)

    def settle(self, model: nn.Layer) -> None:
        if self.args.ddp_broadcast_buffers is not False:
            _from_main(_buffers(model))


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


def strategy(args: Any, processes: ProcessGroup) -> Alone:
    """The distributed strategy for these arguments."""
    if processes.size == 1:
        return Alone(args, processes)
    if "stage1" in args.sharding.split():
        from .sharding import SharedOptimizer

        return SharedOptimizer(args, processes)
    if {"stage2", "offload"} & set(args.sharding.split()) == {"stage2"}:
        from .shared_gradients import SharedGradients

        return SharedGradients(args, processes)
    if divides(args):
        from .group_sharding import GroupSharded

        return GroupSharded(args, processes)
    return DataParallel(args, processes)


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


def _from_main(values: list[paddle.Tensor]) -> None:
    _send((v for v in values if v.size), lambda flat: dist.broadcast(flat, src=0))


NO_GRADIENT, DENSE, SPARSE = 0, 1, 2


def are_there(parameters: list[paddle.Tensor]) -> list[bool]:
    """Whether any process has a gradient for each parameter. A collective."""
    held = [p.grad for p in parameters]
    kinds = [NO_GRADIENT if g is None else SPARSE if g.is_selected_rows() else DENSE for g in held]
    found = paddle.to_tensor(kinds, dtype="int64")
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    if SPARSE in found.tolist():
        raise RefusedError(
            "an embedding with sparse=True has gradients that are not averaged over processes on Paddle. Use an "
            "embedding without sparse=True, or one process."
        )
    return [bool(kind) for kind in found.tolist()]


def average(parameters: list[paddle.Tensor], size: int) -> None:
    """The mean of the gradients of all processes, some of which may have none. Where no process has one, it stays
    None."""
    if not parameters:
        return
    dense = []
    for p, is_there in zip(parameters, are_there(parameters), strict=True):
        if is_there:
            gradient = p.grad
            if gradient is None:
                p.grad = paddle.zeros_like(p)
                gradient = p.grad
            dense.append(gradient)

    def exchange(flat: paddle.Tensor) -> None:
        dist.all_reduce(flat.scale_(1.0 / size))

    _send(dense, exchange)
