"""Sharding of gradients and of the optimizer's state (stage 2), with Paddle's collectives.

After each backward pass, every gradient is reduced to the process that updates its parameter, and the others free it:
between passes, and in the optimizer's step, a process has the gradients and the state of its own parameters only. The
weights are whole everywhere, so evaluations and checkpoints are those of stage 1.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import paddle
from paddle import distributed as dist
from paddle import nn

from ...distributed.collectives import ProcessGroup
from ...distributed.mesh import Mesh
from .engine import Engine, squared_norm
from .parallel import are_there, average, buckets
from .sharding import GroupedShardingOptimizer, ShardedOptimizerStrategy


class ShardedGradientsStrategy(ShardedOptimizerStrategy):
    """Stage 2. paddle.DataParallel has no part in it: it averages all gradients in all processes.

    Every pass ends with a collective: all processes must run the same number of them.
    """

    forward_is_collective = True

    def __init__(self, args: Any, processes: ProcessGroup, mesh: Mesh) -> None:
        super().__init__(args, processes, mesh)
        self.optimizer: GroupedShardingOptimizer | None = None
        self._kept: dict[int, paddle.Tensor] = {}  # gradients of the own parameters, from earlier passes of an update

    def engine_class(self, default: Any) -> Any:
        return ShardEngine

    def wrap(self, model: nn.Layer) -> nn.Layer:
        self.model = model
        self.broadcast_weights(model)
        return model

    def sharded(self, optimizer: Any, groups: Any) -> Any:
        self.optimizer = GroupedShardingOptimizer(optimizer, groups)
        return self.optimizer

    def prepare_optimizer(self, optimizer: Any) -> Any:
        self.optimizer = super().prepare_optimizer(optimizer)
        return self.optimizer

    # -- an update

    def begin(self, all_take_part: bool) -> None:
        super().begin(all_take_part)
        self._kept = {}

    @contextlib.contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        yield
        self._reduce()

    @contextlib.contextmanager
    def discard_gradients(self, wrapped: nn.Layer) -> Iterator[None]:
        yield
        for p in self._all:  # not multiplied by zero: they may be NaN
            p.clear_gradient(False)

    def finish(self, parameters: list[paddle.Tensor]) -> bool:
        for p in self._own:
            if id(p) in self._kept:
                p.grad = self._kept[id(p)]
        self._kept = {}
        known = {id(p) for p in self._all}
        average([p for p in parameters if id(p) not in known], self.replicas)
        return False

    @property
    def _all(self) -> list[paddle.Tensor]:
        assert self.optimizer is not None
        return self.optimizer._origin_parameter_list

    @property
    def _own(self) -> list[paddle.Tensor]:
        assert self.optimizer is not None
        return self.optimizer._rank2params[self.optimizer._sharding_rank]

    @paddle.no_grad()
    def _reduce(self) -> None:
        """Add the mean of the gradients of this pass to those that their owner keeps, and free them. A collective."""
        assert self.optimizer is not None
        group = self.optimizer._hcg.get_sharding_parallel_group()
        copies = self.optimizer._hcg.get_data_parallel_group() if group.nranks < self.replicas.size else None
        kinds = dict(zip(map(id, self._all), are_there(self._all, self.replicas), strict=True))
        for rank, parameters in self.optimizer._rank2params.items():
            of_rank = [p for p in parameters if kinds[id(p)]]
            for bucket in buckets(of_rank):
                held = [paddle.zeros_like(p) if p.grad is None else p.grad for p in bucket]
                flat = paddle.concat([g.reshape([-1]) for g in held]).scale_(1.0 / self.replicas.size)
                dist.reduce(flat, dst=group.ranks[rank], group=group)
                if rank == self.optimizer._sharding_rank:
                    if copies is not None:
                        dist.all_reduce(flat, group=copies)
                    self._keep(bucket, flat)
                for p in bucket:
                    p.clear_gradient(False)

    def _keep(self, bucket: list[paddle.Tensor], flat: paddle.Tensor) -> None:
        for p, part in zip(bucket, paddle.split(flat, [p.size for p in bucket]), strict=True):
            part = part.reshape(p.shape)
            self._kept[id(p)] = self._kept[id(p)] + part if id(p) in self._kept else part

    def whole_square(self, square: paddle.Tensor) -> paddle.Tensor:
        """The squared norm of the gradients of all processes, from that of the own ones. A collective."""
        assert self.optimizer is not None
        flat = square.reshape([1]).clone()
        dist.all_reduce(flat, group=self.optimizer._hcg.get_sharding_parallel_group())
        return flat.reshape([])

    def in_any(self, flag: paddle.Tensor) -> paddle.Tensor:
        """Whether this flag is set in any process. A collective."""
        assert self.optimizer is not None
        number = flag.astype("int32")
        dist.all_reduce(number, op=dist.ReduceOp.MAX, group=self.optimizer._hcg.get_sharding_parallel_group())
        return number.astype("bool")

    def rewrap(self) -> nn.Layer:
        assert self.model is not None
        return self.model


class ShardEngine(Engine):
    """The gradients of a process are a part of them: what is decided about an update is decided by all."""

    strategy: ShardedGradientsStrategy
    is_part = True

    def unscale(self, optimizer: Any) -> None:
        super().unscale(optimizer)
        assert self.scaler is not None
        # The scaler has looked at the own gradients only. With its flag, all processes skip the update or none, and
        # change the loss scale alike.
        self.scaler._found_inf = self.strategy.in_any(self.scaler._found_inf)

    def square(self, gradients: list[paddle.Tensor]) -> paddle.Tensor:
        own = squared_norm(gradients) if gradients else paddle.zeros([1])
        return self.strategy.whole_square(own)
