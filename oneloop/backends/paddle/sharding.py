"""Sharding of the optimizer's state (stage 1), with Paddle's fleet.

Gradients are averaged by DataParallel as without sharding, so that all processes clip by the same norm; each then
updates the parameters whose state it has, and broadcasts them to the others of its group.
"""

from typing import Any

import numpy as np
import paddle
from paddle import distributed as dist
from paddle import nn
from paddle.distributed.fleet.meta_optimizers.dygraph_optimizer.dygraph_sharding_optimizer import (
    DygraphShardingOptimizer,
)

from ...distributed.mesh import SHARD
from ...errors import UnsupportedError
from .._common import optimizer_checks as checks
from . import weights
from .fleet_groups import groups_of
from .models import unwrap
from .parallel import DataParallelStrategy


class GroupedShardingOptimizer(DygraphShardingOptimizer):
    """Paddle's sharding of an optimizer, also of one with parameter groups, which it does not support by itself: the
    optimizer of each process has all groups, with its own parameters of each."""

    def __init__(self, optimizer: Any, groups: Any) -> None:
        of_all = optimizer._param_groups
        if isinstance(of_all[0], dict):
            optimizer._parameter_list = [p for group in of_all for p in group["params"]]
        super().__init__(optimizer, groups)
        if isinstance(of_all[0], dict):
            own = {id(p) for p in self._rank2params[self._sharding_rank]}
            parts = [group | {"params": [p for p in group["params"] if id(p) in own]} for group in of_all]
            optimizer._param_groups = optimizer._parameter_list = [part for part in parts if part["params"]]
        self._param_groups = of_all

    def step(self) -> None:
        """Paddle's own passes the parameters on without the options of their groups."""
        if self._inner_opt._param_groups:
            self._inner_opt.step()
        self._sharding_sync_parameters()

    def _sharding_sync_parameters(self) -> None:
        """Paddle's own sends those parameters that have a gradient here, which may have been freed."""
        group = self._hcg.get_sharding_parallel_group()
        with paddle.no_grad():
            tasks = [
                dist.broadcast(p, src=group.ranks[rank], group=group, sync_op=False)
                for rank, parameters in self._rank2params.items()
                for p in parameters
                if not p.stop_gradient
            ]
            for task in tasks:
                task.wait()


class ShardedOptimizerStrategy(DataParallelStrategy):
    """Stage 1: every process updates some of the parameters, keeps only their state, and broadcasts them to the
    others."""

    def build_optimizer(self, cls: Any, groups: list[dict[str, Any]], options: dict[str, Any]) -> Any:
        optimizer = super().build_optimizer(cls, groups, options)
        made = groups_of(self.processes, self.mesh.size_of(SHARD))
        return self.sharded(optimizer, made)

    def sharded(self, optimizer: Any, groups: Any) -> Any:
        """The optimizer that updates and keeps the state of some of the parameters."""
        if isinstance(optimizer._param_groups[0], dict):
            return GroupedShardingOptimizer(optimizer, groups)
        shared = DygraphShardingOptimizer(optimizer, groups)
        shared._param_groups = shared._origin_parameter_list  # its groups have all parameters; it steps only a shard
        return shared

    def prepare_optimizer(self, optimizer: Any) -> Any:
        if not isinstance(optimizer, DygraphShardingOptimizer):
            raise UnsupportedError(
                f"sharding='{self.args.sharding}' shards the state of an optimizer that it creates itself, but got an "
                f"existing {type(optimizer).__name__}. Pass its class and options as optimizer_cls_and_kwargs, or "
                "remove sharding."
            )
        return optimizer

    def optimizer_state(self, optimizer: Any, model: nn.Layer) -> tuple[dict[str, Any], dict[str, Any]]:
        """Gather the shards of all processes in those that write. A collective."""
        part, data = weights.optimizer_state(optimizer, model)
        own = {name: value.numpy() for name, value in part.items()}
        every = (
            self.processes.all_gather_object(own) if self.args.save_on_each_node else self.processes.gather_object(own)
        )
        whole: dict[str, np.ndarray] = {}
        for of_rank in every or ():
            whole |= of_rank
        tensors = {name: paddle.to_tensor(array, place="cpu") for name, array in whole.items()}
        data = checks.with_stateless_parameters(data, {key.rsplit(":", 1)[0] for key in whole})
        return tensors, data | {"class": type(optimizer._inner_opt).__name__}

    def load_optimizer(self, optimizer: Any, model: nn.Layer, tensors: dict[str, Any], data: Any, source: str) -> None:
        """Load the complete state, of which each process takes its shard."""
        inner, names = optimizer._inner_opt, {id(p): name for name, p in unwrap(model).named_parameters()}
        of = {name: group for group in data["groups"] for name in group["names"]}
        checks.check_class(data, type(inner), source)
        everything = [names[id(p)] for p in optimizer._origin_parameter_list]
        checks.check_names(data["groups"], everything, source)
        checks.check_complete(data, checks.by_parameter(tensors, everything, source), source)
        own = {names[id(p)] for p in optimizer._rank2params[optimizer._sharding_rank]}
        groups = [group | {"names": [name for name in group["names"] if name in own]} for group in data["groups"]]
        part = {key: value for key, value in tensors.items() if key.rsplit(":", 1)[0] in own}
        weights.load_optimizer(inner, model, part, data | {"groups": groups}, source)
        if isinstance(optimizer._param_groups[0], dict):
            weights.load_options(optimizer, model, data["groups"])
        if hasattr(inner, "_apply_decay_param_fun"):  # of all parameters again, not only of the shard
            decayed = {p.name for p in optimizer._origin_parameter_list if of[names[id(p)]]["weight_decay"]}
            inner._apply_decay_param_fun = frozenset(decayed).__contains__
