"""Several processes: the process group, its collectives, and the distributed strategies.

A `ProcessGroup` (distributed/collectives.py) exchanges plain values; a strategy (distributed/strategy.py) exchanges
gradients and weights.
`strategy(args, processes, mesh)` selects one: `SingleProcessStrategy` for one batch, `DataParallel` for several.
"""

import atexit
import os
from collections.abc import Iterable, Iterator
from typing import Any

import mindspore as ms
import mindspore.communication as communication
import numpy as np
from mindspore import nn, ops

from ...distributed.collectives import SINGLE_PROCESS, ProcessGroup
from ...distributed.mesh import SINGLE, Mesh, derive_strategy
from ...distributed.strategy import Strategy
from ...distributed.world import world
from ...errors import ArgumentError, ProcessLostError, UnsupportedError
from .._common.object_collectives import ObjectCollectives
from ..loading import load
from . import devices, weights
from .models import unwrap
from .peer_watch import PeerWatch

_BACKENDS = {"cpu": "mccl", "cuda": "nccl", "npu": "hccl"}
_processes: "FrameworkProcesses | None" = None


# -- the group


def init_process_group(args: Any) -> ProcessGroup:
    """The processes of this run. The group is created at the first call, from msrun's variables, and destroyed at exit;
    a group that the script has created itself is used and not destroyed.

    The process that msrun starts as the scheduler never returns from it.
    """
    global _processes
    if world().size == 1:
        return SINGLE_PROCESS
    if _processes is None:
        own = not communication.GlobalComm.INITED
        if own:
            _start_group(args)
        atexit.register(destroy_process_group)
        _processes = FrameworkProcesses(own)
    return _processes


def _start_group(args: Any) -> None:
    if os.environ.get("MS_ROLE") == "MS_SCHED" and os.environ.get("MS_WORKER_NUM") == "1":
        raise SystemExit(0)  # its single worker does not need it
    asked, known = args.ddp_backend, _BACKENDS[args.device.type]
    if asked not in (None, known):
        raise ArgumentError(
            f"ddp_backend (xpu_backend) {asked!r} does not connect processes on the device {args.device} in MindSpore; "
            f"expected {known}. Remove it to use the default for the device."
        )
    if world().launcher != "mindspore":
        raise ArgumentError(
            f"the model is a MindSpore model, but the {world().size} processes were started by the launcher of "
            f"{world().launcher}. Start them with msrun."
        )
    devices.move_model(None, args.device)
    try:
        communication.init(known)
    except RuntimeError as error:
        if os.environ.get("MS_ROLE") == "MS_SCHED":  # which stays in this call as long as the workers run
            raise ProcessLostError(f"msrun's scheduler has lost a worker: {_first_line(error)}") from error
        raise ProcessLostError(
            f"the {world().size} processes that msrun started did not all join the group: {_first_line(error)}. Look "
            "for one that failed at its start, or increase msrun's --cluster_time_out."
        ) from error


def destroy_process_group() -> None:
    """Destroy the group that join() created, before the interpreter shuts down its threads."""
    global _processes
    processes, _processes = _processes, None
    if processes is not None:
        processes.peers.close()
        if processes.own and communication.GlobalComm.INITED:
            communication.release()


class FrameworkProcesses(ObjectCollectives):
    """The processes over MindSpore's collectives. Each is an operation on the device, with a host sync."""

    def __init__(self, own: bool) -> None:
        self.rank, self.size = communication.get_rank(), communication.get_group_size()
        self.own = own  # whether we created the group and must destroy it
        self._gather, self._broadcast = ops.AllGather(), ops.Broadcast(0)
        self.peers = PeerWatch(self.rank, self.size)

    def subgroup(self, groups: tuple[tuple[int, ...], ...]) -> ProcessGroup:
        raise UnsupportedError(
            f"processes in groups of {len(groups[0])}, of {self.size}, are not supported on MindSpore: its collectives "
            "connect all processes only (on CPUs, AllGather and AllReduce have no other group). Use only axes of the "
            "mesh that split the batch, or only others."
        )

    def name_places(self, mesh: Mesh) -> None:
        self.peers.heartbeat.place_of = mesh.place

    def explain_lost_peer(self, error: BaseException) -> ProcessLostError | None:
        if isinstance(error, ProcessLostError) or not _is_communication_error(error):
            return None
        name = self.peers.heartbeat.find_lost_rank() or "Another process of the run has ended or does not respond"
        return ProcessLostError(
            f"{name}. This process ({self.rank} of {self.size}) cannot continue alone and exits. Saved checkpoints are "
            "complete: start all processes again with resume_from_checkpoint=True. msrun's logs (worker_*.log) show "
            f"which one failed first. ({_first_line(error)})"
        )

    def all_gather_array(self, array: np.ndarray) -> list[np.ndarray]:
        with self.translate_lost_peer_errors():
            every = self._gather(ms.Tensor(array)).asnumpy()
        return list(every.reshape(self.size, -1))

    def broadcast_array(self, array: np.ndarray) -> np.ndarray:
        with self.translate_lost_peer_errors():
            return self._broadcast((ms.Tensor(array),))[0].asnumpy()


_LOST_PEER_MARKERS = (
    "mccl",
    "hccl",
    "nccl",
    "allgather",
    "allreduce",
    "collective",
    "connection",
    "timed out",
    "cluster",
)


def _is_communication_error(error: BaseException) -> bool:
    """MindSpore raises plain RuntimeErrors, which can only be recognised by their messages."""
    text = str(error).lower()
    return type(error) is RuntimeError and any(sign in text for sign in _LOST_PEER_MARKERS)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" -")]
    return (lines or ["no reason given"])[0][:300]


# -- strategies


class SingleProcessStrategy(Strategy):
    """One batch at a time: no gradient is averaged."""

    def __init__(self, args: Any, processes: ProcessGroup, mesh: Mesh = SINGLE) -> None:
        super().__init__(args, processes, load("mindspore"), mesh)

    def broadcast_weights(self, model: Any) -> None:
        self._from_main([value for _, value in weights._every_name(unwrap(model))])

    def _from_main(self, values: list[Any]) -> None:
        group = self.equals
        if not values or group.size == 1:
            return
        arrays = group.broadcast_object([v.asnumpy() for v in values] if group.is_main else None)
        if not group.is_main:
            for target, array in zip(values, arrays, strict=True):
                weights.put(target, array)


class DataParallelStrategy(SingleProcessStrategy):
    """Every replica has the whole model. Gradients are averaged once per update, after its last micro-batch, as a few
    flat tensors: MindSpore's own averaging would run a collective in every micro-batch."""

    def __init__(self, args: Any, processes: ProcessGroup, mesh: Mesh) -> None:
        super().__init__(args, processes, mesh)
        self._sum = ops.AllReduce()
        self._bucket_bytes = (args.ddp_bucket_cap_mb or 25) * 2**20
        self._model: nn.Cell | None = None

    def wrap(self, model: Any) -> Any:
        self._model = unwrap(model)
        self.broadcast_weights(model)
        return model

    def begin(self, all_take_part: bool) -> None:
        if self._model is not None:
            self.prepare_eval(self._model)

    def finish(self, parameters: list[ms.Parameter]) -> bool:
        """The mean of the gradients of all processes. All have the same ones: unused parameters have a gradient of
        zeros here; a process that had nothing to compute has none at all."""
        trained = [p for p in parameters if p.requires_grad]
        none = [float(getattr(p, "grad", None) is None) for p in trained]
        every = self.replicas.all_gather([float(bool(none) and all(none))])
        if all(of_rank[0] for of_rank in every):
            return False
        for bucket in _buckets(trained, self._bucket_bytes):
            held = [getattr(p, "grad", None) for p in bucket]
            arrays = [np.zeros(p.shape, np.float32) if g is None else g.asnumpy() for p, g in zip(bucket, held)]
            flat = np.concatenate([array.reshape(-1).astype(np.float32, copy=False) for array in arrays])
            flat = self._sum(ms.Tensor(flat / np.float32(self.replicas.size))).asnumpy()
            for p, part in zip(bucket, np.split(flat, np.cumsum([p.size for p in bucket])[:-1])):
                p.grad = ms.Tensor(part.reshape(p.shape), p.dtype)
        return False

    def mean(self, loss: Any) -> Any:
        value = np.zeros(1, np.float32) if loss is None else loss.asnumpy().astype(np.float32).reshape(1)
        return (self._sum(ms.Tensor(value)) / self.replicas.size).reshape(())

    def local_buffers(self, model: Any) -> list[Any]:
        apart = self.args.ddp_broadcast_buffers is False and self.mesh.batch_index > 0
        return _buffers(unwrap(model)) if apart else []

    def load_buffer(self, target: Any, array: Any) -> None:
        weights.put(target, array)

    def prepare_eval(self, model: Any) -> None:
        if self.args.ddp_broadcast_buffers is not False:
            self._from_main(_buffers(unwrap(model)))


def strategy(args: Any, processes: ProcessGroup, mesh: Mesh) -> SingleProcessStrategy:
    """The distributed strategy for these arguments."""
    kind = SingleProcessStrategy if mesh.num_batches == 1 else DataParallelStrategy
    return derive_strategy(kind, mesh, "mindspore")(args, processes, mesh)


def _buffers(cell: nn.Cell) -> list[Any]:
    """Buffers. MindSpore keeps the running means of its norms as parameters."""
    return [
        value
        for name, value in weights._every_name(cell)
        if not isinstance(value, ms.Parameter) or name.endswith(("moving_mean", "moving_variance"))
    ]


def _buckets(parameters: Iterable[ms.Parameter], size: int) -> Iterator[list[ms.Parameter]]:
    """Parameters in buckets, since small messages are inefficient."""
    bucket: list[ms.Parameter] = []
    held = 0
    for p in parameters:
        bucket.append(p)
        held += p.nbytes
        if held >= size:
            yield bucket
            bucket, held = [], 0
    if bucket:
        yield bucket
