"""world_invariant=True: gradients are added up over micro-batches and processes in the order of a tree (see
distributed/sum_tree.py), so that an update has the same bits on any number of processes.

Each micro-batch computes gradients of its own, which are added to those before it when the tree says so. Then each
process is given a piece of the roots of all (all-to-all), adds them up in order, and the sums go to all (all-gather).
An all-reduce would add in an order that depends on the number of processes.

There is nothing of DDP here: it adds the gradients of all micro-batches of a process into one sum.
"""

import math
import os
import platform
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ...distributed import sum_tree
from ...distributed.collectives import ProcessGroup
from ...distributed.mesh import SINGLE, Mesh
from ...distributed.strategy import AS_IT_IS
from ...distributed.sum_tree import BlockSum, Node
from ...errors import UnsupportedError
from .._common.helpers import preview
from . import parallel
from .ddp import DataParallelStrategy
from .sharding import ShardedOptimizerStrategy

Gradients = list[torch.Tensor | None] | None  # of all parameters; None: of a micro-batch that was left out


class OrderedSums(DataParallelStrategy):
    """Every process has the whole model; also on one process."""

    sums_gradients = True
    can_piggyback = False

    def __init__(self, args: Any, processes: ProcessGroup, mesh: Mesh = SINGLE) -> None:
        super().__init__(args, processes, mesh)
        self._parameters: list[nn.Parameter] = []
        self._sums: BlockSum[Gradients] | None = None
        self._losses: list[Any] = []  # of the micro-batches of this process; None for one that was left out
        self._ordered: list[float] = []  # those of all processes
        self._buffers: list[tuple[str, torch.Tensor]] = []
        self._versions: list[int] = []

    # -- what bits depend on

    def fix_threads(self, threads: int | None) -> int:
        if threads is None:  # torchrun sets one, where plain Python would take all cores
            given = os.environ.get("OMP_NUM_THREADS", "")
            threads = int(given) if given.isdigit() and int(given) > 0 else 1
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        return threads

    def processor(self) -> str:
        kind, device = _cpu(), self.args.device
        if device.type != "cpu":
            kind += f", {self.backend.devices.title(device)}"
        return f"{kind}, PyTorch {torch.__version__}"

    # -- the model

    def wrap(self, model: nn.Module) -> nn.Module:
        self.model = model
        self.broadcast_weights(model)
        return model

    def local_buffers(self, model: nn.Module) -> list[torch.Tensor]:
        return []

    def prepare_eval(self, model: nn.Module) -> None:
        """The buffers of all processes are equal: those that training changes are refused."""

    # -- an update

    @property
    def skips_presync(self) -> bool:
        return True

    def begin(self, all_take_part: bool) -> None:
        pass

    def forward_module(self, wrapped: nn.Module) -> nn.Module:
        return wrapped

    def micro_batch(self, last: bool) -> Any:
        return AS_IT_IS

    def attach_loss_to_last_backward(self, so_far: Any, counts: bool) -> None:
        pass

    def send(self, loss: torch.Tensor) -> None:
        pass

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        loss.backward(**kwargs)

    def contribute_zero_grads(self) -> None:
        pass

    def begin_sums(self, model: nn.Module, parameters: list[nn.Parameter], micro_batches: int) -> None:
        size = self.mesh.num_batches
        self.model, self._parameters = model, parameters
        self._sums = BlockSum(micro_batches * size, self.mesh.batch_index, size, _add)
        self._losses, self._ordered = [None] * micro_batches, []
        self._buffers = list(model.named_buffers())
        self._versions = [buffer._version for _, buffer in self._buffers]

    def take_micro_batch(self, index: int, loss: Any) -> None:
        assert self._sums is not None
        gradients: list[torch.Tensor | None] = [p.grad for p in self._parameters]
        for p, gradient in zip(self._parameters, gradients):
            if gradient is not None:
                if gradient.is_sparse:
                    raise _sparse(self.model, p)
                p.grad = None
        self._sums.put(index, gradients, None)
        self._losses[index] = loss

    def finish(self, parameters: list[nn.Parameter]) -> bool:
        assert self._sums is not None
        self._refuse_changed_buffers()
        roots, self._sums = self._sums.finish(None), None
        has = [any(root is not None and root[i] is not None for root in roots) for i in range(len(parameters))]
        if self.mesh.num_batches == 1:
            self._ordered = [float(loss) for loss in self._losses if loss is not None]
            for p, gradient in zip(parameters, roots[0] or [None] * len(parameters)):
                p.grad = gradient
            return False
        self.processes.count_collective()
        has = self._tell(has)
        given = [(p, [None if root is None else root[i] for root in roots]) for i, p in enumerate(parameters) if has[i]]
        for bucket in parallel.in_bucket_sizes(given, lambda pair: pair[0]):
            self._exchange(bucket)
        return False

    def _tell(self, has: list[bool]) -> list[bool]:
        """The losses of all micro-batches, and which parameters have a gradient in any process. One short message,
        unless processes have gradients of different parameters."""
        own = [math.nan if loss is None else float(loss) for loss in self._losses]
        digest = zlib.crc32(bytes(has))
        told = self.batches.all_gather([float(digest), *(float(loss is not None) for loss in self._losses), *own])
        count = len(own)
        for _, *row in told:
            self._ordered += [loss for was_computed, loss in zip(row[:count], row[count:]) if was_computed]
        if any(row[0] != told[0][0] for row in told):
            every = self.batches.all_gather_object(has)
            has = [any(each) for each in zip(*every)]
        return has

    def _exchange(self, bucket: Sequence[tuple[nn.Parameter, list[torch.Tensor | None]]]) -> None:
        """Add up the roots of all processes for some parameters, and set their gradients."""
        size, group = self.mesh.num_batches, self.replicas.handle
        nodes = sum_tree.roots(len(self._losses) * size, size)
        mine = len(nodes[self.mesh.batch_index])
        parameters = [p for p, _ in bucket]
        counts = [p.numel() for p in parameters]
        total, like = sum(counts), parameters[0]
        piece = -(-total // size)
        sent = like.new_empty((size, mine, piece), requires_grad=False)
        for place in range(mine):
            flat = sent.view(-1) if mine == 1 else sent.new_empty(size * piece)
            values = [roots[place] for _, roots in bucket]
            pieces = [
                torch.zeros_like(p).reshape(-1) if value is None else value.reshape(-1)
                for p, value in zip(parameters, values)
            ]
            torch.cat(pieces, out=flat[:total])
            flat[total:] = 0.0
            if mine > 1:
                sent[:, place].copy_(flat.view(size, piece))
        each = [len(of_process) * piece for of_process in nodes]
        received = sent.new_empty(sum(each))
        dist.all_to_all_single(received, sent.view(-1), each, [mine * piece] * size, group=group)
        every = [node for of_process in nodes for node in of_process]
        parts: dict[Node, torch.Tensor] = dict(zip(every, received.view(-1, piece)))
        whole = sent.new_empty(size * piece)
        parallel._all_gather(whole, sum_tree.add_up((0, every[-1][1]), parts, torch.Tensor.add_), group=group)
        for p, value in zip(parameters, whole[:total].split(counts)):
            value = value.view(p.shape)
            # The norm of a tensor depends on its strides: they are those of the parameter, as autograd's are.
            p.grad = value if p.is_contiguous() else torch.empty_like(p, requires_grad=False).copy_(value)

    def mean(self, loss: Any) -> Any:
        """The sum over all micro-batches, which weigh as much as their items: the loss of the update."""
        losses, self._ordered = self._ordered, []
        if not losses:
            return None
        total = losses[0]
        for each in losses[1:]:
            total += each
        return torch.tensor(total, dtype=torch.float32, device=self.args.device)

    def _refuse_changed_buffers(self) -> None:
        changed = [name for (name, buffer), version in zip(self._buffers, self._versions) if buffer._version != version]
        if changed:
            layers = list(dict.fromkeys(name.rpartition(".")[0] for name in changed))
            raise UnsupportedError(
                f"world_invariant=True: the forward pass changes {changed[0]}, and other buffers of the layers "
                f"{preview(layers)}, as BatchNorm's running means: they would depend on which process computes which "
                "micro-batch. Use layers without running statistics (LayerNorm, GroupNorm), put these into evaluation "
                "mode, or remove world_invariant."
            )


class OrderedShardedOptimizer(OrderedSums, ShardedOptimizerStrategy):
    """The same with sharding="stage1"."""

    # A matrix-vector product depends on where in memory its matrix begins: parameters stay where they are.
    parameters_in_buckets = False


def _add(left: Gradients, right: Gradients) -> Gradients:
    """Into the left ones. Where one has none it is as if it were zero, as it is in another process: 0 + -0 is 0."""
    if left is None or right is None:
        left, right = (right, None) if left is None else (left, None)
        if left is not None:
            _without_negative_zeros([gradient for gradient in left if gradient is not None])
        return left
    pairs = [(one, other) for one, other in zip(left, right) if one is not None and other is not None]
    if pairs:
        torch._foreach_add_([one for one, _ in pairs], [other for _, other in pairs])
    if len(pairs) == len(left):
        return left
    alone = [one if other is None else other for one, other in zip(left, right) if (one is None) != (other is None)]
    _without_negative_zeros([gradient for gradient in alone if gradient is not None])
    return [other if one is None else one for one, other in zip(left, right)]


def _without_negative_zeros(gradients: list[torch.Tensor]) -> None:
    if gradients:
        torch._foreach_add_(gradients, 0.0)


def _sparse(model: nn.Module | None, parameter: nn.Parameter) -> UnsupportedError:
    names = {} if model is None else {id(p): name for name, p in model.named_parameters()}
    return UnsupportedError(
        f"world_invariant=True: {names.get(id(parameter), 'a parameter')} has a sparse gradient, whose sum depends on "
        "the number of processes. Create the embedding with sparse=False, or remove world_invariant."
    )


def _cpu() -> str:
    """The model of the processor, and which instructions PyTorch uses of it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "CPU implementer")))
    name = next(named, "") or platform.processor() or platform.machine()
    return f"{name} ({torch.backends.cpu.get_cpu_capability()})"
