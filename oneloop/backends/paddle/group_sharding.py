"""Sharding of gradients (stage 2) and parameters (stage 3), with Paddle's group_sharded_parallel.

It runs on accelerators only; unsupported.py has the error for a CPU. Paddle handles gradients, their norm and the
update itself, so it has its own engine here, and its optimizer state is not saved in checkpoints.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import paddle
from paddle import nn
from paddle.distributed import sharding as paddle_sharding

from ...distributed.collectives import ProcessGroup
from ...distributed.mesh import SHARD, Mesh
from ...distributed.strategy import AS_IT_IS
from ...errors import NoGradientsError, UnsupportedError, a_type
from .adapters import is_adapter
from .engine import Engine
from .fleet_groups import groups_of
from .models import unwrap
from .parallel import DataParallelStrategy

LEVELS = {"stage2": "os_g", "stage3": "p_g_os"}

_NO_STATE = (
    "the optimizer state of Paddle's group_sharded_parallel is not saved in checkpoints, so a run cannot resume from "
    "one. Use save_only_model=True, or sharding='stage1', whose checkpoints are complete."
)


class GroupShardedStrategy(DataParallelStrategy):
    """Every pass is a collective: all processes must run the same number of them."""

    forward_is_collective = True

    def __init__(self, args: Any, processes: ProcessGroup, mesh: Mesh) -> None:
        super().__init__(args, processes, mesh)
        words = args.sharding.split()
        self.level = next(level for stage, level in LEVELS.items() if stage in words)
        self.offload = "offload" in words
        self.sharded: Any = None
        self.optimizer: Any = None
        self.discards_gradients = False

    def engine_class(self, default: Any) -> Any:
        return GroupShardedEngine

    def wrap(self, model: nn.Layer) -> nn.Layer:
        if self.sharded is not None:
            raise UnsupportedError(
                "group_sharded_parallel: a model can be trained only once; create a new Trainer for a second train()."
            )
        if is_adapter(unwrap(model)):
            raise UnsupportedError(
                "an adapter writes its own files from complete weights, but sharding stage2 and stage3 shard them. Use "
                "sharding='stage1', or remove sharding: an adapter's gradients and optimizer state are small."
            )
        self.model = model
        self.broadcast_weights(model)
        return model

    def prepare_optimizer(self, optimizer: Any) -> Any:
        if self.args.max_grad_norm:  # Paddle replaces it with its own, which uses the norm over all processes
            optimizer._grad_clip = nn.ClipGradByGlobalNorm(self.args.max_grad_norm)
        within, across = self._groups()
        self.sharded, self.optimizer, _ = paddle_sharding.group_sharded_parallel(
            self.model,
            optimizer,
            self.level,
            group=within,
            dp_group=across,
            offload=self.offload,
            sync_buffers=self.args.ddp_broadcast_buffers is not False,
        )
        return self.optimizer

    def _groups(self) -> tuple[Any, Any]:
        """The ranks that share one copy, and those with the same shard of other copies; None: all, and one copy."""
        degree = self.mesh.size_of(SHARD)
        if degree == self.replicas.size:
            return None, None
        made = groups_of(self.processes, degree)
        return made.get_sharding_parallel_group(), made.get_data_parallel_group()

    # -- an update

    def begin(self, all_take_part: bool) -> None:
        pass

    def forward_module(self, wrapped: nn.Layer) -> nn.Layer:
        return self.sharded

    def micro_batch(self, last: bool) -> contextlib.AbstractContextManager:
        return AS_IT_IS

    @contextlib.contextmanager
    def discard_gradients(self, wrapped: nn.Layer) -> Iterator[None]:
        self.discards_gradients = True
        try:
            yield
        finally:
            self.discards_gradients = False

    def finish(self, parameters: list[paddle.Tensor]) -> bool:
        return False

    # -- evaluations and checkpoints

    def prepare_eval(self, model: nn.Layer) -> None:
        super().prepare_eval(model)
        self._gather()

    def _gather(self) -> None:
        """Gather the shards of stage 3; the next forward pass shards them again."""
        if self.sharded is not None and self.level == "p_g_os":
            self.sharded.get_all_parameters()

    def model_tensors(self, model: nn.Layer) -> tuple[dict[str, Any], dict[str, str]]:
        self._gather()
        return super().model_tensors(model)

    def optimizer_state(self, optimizer: Any, model: nn.Layer) -> Any:
        raise UnsupportedError(_NO_STATE)

    def load_optimizer(self, *args: Any, **kwargs: Any) -> None:
        raise UnsupportedError(_NO_STATE)


class GroupShardedEngine(Engine):
    """The same interface with Paddle. A loss that is not finite stops the run before the update; gradients are handled
    by Paddle and not checked."""

    strategy: GroupShardedStrategy

    def backward(self, loss: paddle.Tensor, **kwargs: Any) -> None:
        if not isinstance(loss, paddle.Tensor) or loss.stop_gradient:
            raise NoGradientsError(f"the loss cannot be differentiated: it is {a_type(loss)} without a gradient.")
        (loss * 0.0 if self.strategy.discards_gradients else loss).backward(**kwargs)

    def include(self, optimizer: Any) -> None:
        pass

    def clear(self) -> None:
        if self.strategy.optimizer is not None:
            self.strategy.optimizer.clear_grad()

    def prepare_update(self, optimizer: Any, loss: paddle.Tensor | None) -> None:
        self.norm = None
        self._bad = loss is not None and self.nonfinite != "ignore" and not math.isfinite(loss.item())

    def apply_update(self, optimizer: Any, step: int) -> int | None:
        if self._bad:
            return step
        optimizer.step()
        return None
