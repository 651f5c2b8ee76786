"""Tensor parallelism: the weights of a layer are divided over the processes of an axis, which compute the same batch.

`derive` adds it to the strategy for the axes that split the batch: one process, or data parallelism. Parameters,
gradients, optimizer state and averages are plain tensors of this process's part; layers compute with DTensors of them
(tensor_division.py). So everything else works as on one process, except the norm of the gradients and checkpoints,
which have whole tensors: the main process gathers what it writes, and each process reads its part.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import paddle
import paddle.distributed as dist
from paddle import nn

from ...distributed.collectives import ProcessGroup
from ...distributed.mesh import TENSOR, Mesh
from ...errors import UnsupportedError
from .._common.helpers import check_names_and_shapes
from . import shards, tensor_division, weights
from .engine import squared_norm
from .models import unwrap
from .optimizers import groups
from .parallel import DataParallelStrategy, SingleProcessStrategy, from_main
from .parts import part_of, whole_shape

# Optimizers whose step depends on a parameter as a whole.
_WHOLE_STEPS = ("Lamb", "LarsMomentum", "LBFGS", "Muon")


def derive(strategy: type[SingleProcessStrategy]) -> type[SingleProcessStrategy]:
    """A strategy with tensor parallelism added."""
    kind = _TensorParallelDDP if issubclass(strategy, DataParallelStrategy) else _TensorParallel
    return type(f"TensorParallel{strategy.__name__}", (kind, strategy), {})


class _TensorParallel(SingleProcessStrategy):
    loads_sharded = True
    divides_gradients = True

    def __init__(self, args: Any, processes: ProcessGroup, mesh: Mesh) -> None:
        super().__init__(args, processes, mesh)
        self.tensor_group = processes.along(mesh, TENSOR)
        self._divided: nn.Layer | None = None
        self._parts: dict[str, Any] = {}

    # -- the model and its optimizer

    def divide(self, model: nn.Layer) -> None:
        if not tensor_division.is_divided(model):
            from_main([*model.parameters(), *model.buffers()], self.processes)
            tensor_division.divide(model, self._process_mesh(), self.args.tensor_parallel_plan)
        self._divided, self._parts = model, shards.parts_by_name(unwrap(model))

    def _process_mesh(self) -> Any:
        return dist.ProcessMesh(list(self.mesh.ranks_along(TENSOR)), dim_names=[TENSOR])

    def class_of(self, model: nn.Layer) -> type:
        return type(model).__bases__[0] if tensor_division.has_views(model) else type(model)

    def engine_class(self, default: Any) -> Any:
        return type(f"TensorParallel{default.__name__}", (_WholeNorm, default), {})

    def prepare_optimizer(self, optimizer: Any) -> Any:
        kinds = {kind.__name__ for kind in type(optimizer).__mro__}
        if kinds & set(_WHOLE_STEPS):
            raise UnsupportedError(
                f"{type(optimizer).__name__} computes its step from whole parameters, but tensor_parallel_size divides "
                "them. Use optim='adamw_torch'."
            )
        divided = {p.name: p for group in groups(optimizer) for p in group["params"] if part_of(p) is not None}
        for state in getattr(optimizer, "_accumulators", {}).values():
            if any(tuple(state[name].shape) == whole_shape(p) for name, p in divided.items() if name in state):
                raise UnsupportedError(
                    "the given optimizer has already made steps on the undivided model. With tensor_parallel_size pass "
                    "a new one, or resume from a checkpoint."
                )
        return super().prepare_optimizer(optimizer)

    # -- an update

    def whole_square(self, square: paddle.Tensor) -> paddle.Tensor:
        """The squared norm of divided gradients, from that of this process's parts. A collective."""
        total = square.reshape([1]).clone()
        dist.all_reduce(total, group=self.tensor_group.handle)
        return total

    def in_any(self, flag: paddle.Tensor) -> paddle.Tensor:
        """Whether this flag is set in any process of the axis. A collective."""
        number = flag.astype("int32")
        dist.all_reduce(number, op=dist.ReduceOp.MAX, group=self.tensor_group.handle)
        return number.astype("bool")

    # -- checkpoints

    @property
    def _gathers(self) -> bool:
        """Whether this process is one of those that have a copy to write together."""
        return self.mesh.batch_index == 0 or bool(self.args.save_on_each_node)

    def _whole(self, tensors: dict[str, Any]) -> dict[str, Any]:
        if not self._gathers:
            return {}
        return shards.gather_whole(tensors, self._parts, self.tensor_group, self.args.should_save)

    def model_tensors(self, model: nn.Layer) -> tuple[dict[str, Any], dict[str, str]]:
        tensors, tied = super().model_tensors(model)
        return self._whole(tensors), tied

    def optimizer_state(self, optimizer: Any, model: nn.Layer) -> tuple[dict[str, Any], dict[str, Any]]:
        tensors, data = super().optimizer_state(optimizer, model)
        return self._whole(tensors), data

    def gather_named(self, tensors: dict[str, Any]) -> dict[str, Any]:
        return self._whole(tensors)

    def take_parts(self, tensors: dict[str, Any]) -> dict[str, Any]:
        return shards.sliced(tensors, self._parts)

    def weight_shapes(self, model: nn.Layer) -> dict[str, tuple[int, ...]]:
        return {name: whole_shape(value) for name, value in unwrap(model).state_dict().items()}

    def load_tensors(self, path: Path) -> dict[str, Any]:
        return shards.load_parts(path, self._parts)

    def load_model(self, model: nn.Layer, tensors: dict[str, Any], tied: dict[str, str], source: str) -> None:
        own = unwrap(model).state_dict()
        shapes = {name: SimpleNamespace(shape=whole_shape(value), dtype=value.dtype) for name, value in own.items()}
        parts = self.take_parts(tensors)
        found = {name: self._whole_again(name, value) for name, value in parts.items()}
        found |= {name: found[first] for name, first in tied.items() if first in found}
        check_names_and_shapes(found, {**shapes, **{name: shapes[name] for name in found if name in shapes}}, source)
        weights.load_model(model, parts, tied, source)

    def _whole_again(self, name: str, value: Any) -> Any:
        """The shape that the tensor of a part had in its file."""
        part, shape = self._parts.get(name, (None, None))
        whole = part.whole_shape(shape) if part is not None and tuple(value.shape) == shape else tuple(value.shape)
        return SimpleNamespace(shape=whole, dtype=value.dtype)

    def load_optimizer(self, optimizer: Any, model: nn.Layer, tensors: dict[str, Any], data: Any, source: str) -> None:
        super().load_optimizer(optimizer, model, self.take_parts(tensors), data, source)


class _TensorParallelDDP(_TensorParallel, DataParallelStrategy):
    """Gradients are averaged over the replicas after the last backward pass: paddle.DataParallel begins with the
    parameters of the first of all processes, which has other parts."""

    def _wrapped(self) -> nn.Layer:
        assert self.model is not None
        return self.model

    def finish(self, parameters: list[paddle.Tensor]) -> bool:
        super().finish(parameters)
        return False


class _WholeNorm:
    """An engine whose gradients are parts: what is decided about an update is decided by all processes."""

    strategy: _TensorParallel
    parameters: list[Any]
    scaler: Any

    def unscale(self, optimizer: Any) -> None:
        super().unscale(optimizer)  # type: ignore[misc]
        self.scaler._found_inf = self.strategy.in_any(self.scaler._found_inf)

    def square(self, gradients: list[paddle.Tensor]) -> paddle.Tensor:
        held = [(part_of(p), p.grad) for p in self.parameters]
        divided = [g for part, g in held if part is not None and g is not None]
        whole = [g for part, g in held if part is None and g is not None]
        total = self.strategy.whole_square(squared_norm(divided) if divided else paddle.zeros([1]))
        return total + squared_norm(whole).reshape([1]) if whole else total
