"""Sharding of optimizer state, gradients and parameters across processes.

| stage | what is sharded | by |
|---|---|---|
| 1 | optimizer state | DDP with ZeroRedundancyOptimizer |
| 2 | gradients too; parameters are unsharded from a forward pass to its backward pass | FSDP2 |
| 3 | parameters too; a layer is unsharded only while it computes | FSDP2 |

Gradients are sharded in every micro-batch: waiting for the last one would keep them unsharded. With `sharding_degree`
the processes form groups of that size, each with a complete copy, and gradients are averaged across the groups.
"""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from ...arguments.sharding import reshards
from ...distributed.collectives import ProcessGroup
from ...distributed.mesh import DATA, SHARD, Mesh, Splits
from ...distributed.strategy import AS_IT_IS
from ...errors import ModelError, UnsupportedError, a_type
from .._common import optimizer_checks as checks
from .._common.helpers import joined_groups
from . import adapters, shards, weights, wrap_policy
from .ddp import DataParallelStrategy
from .divided_state import DividedState
from .models import base_of, is_adapter, unwrap
from .parallel import SingleProcessStrategy, average, from_main

logger = logging.getLogger(__name__)

_meshes: dict[tuple, DeviceMesh] = {}


def strategy_class(args: Any, mesh: Mesh) -> type[SingleProcessStrategy] | None:
    """The strategy for args.sharding or args.deepspeed; None if nothing is sharded."""
    if args.deepspeed:
        from .zero import DeepSpeedStrategy  # which needs its package

        if mesh.size > mesh.num_batches:
            raise UnsupportedError(
                "deepspeed divides the batch over all processes, but axes of the mesh keep it whole in some of them. "
                "Use sharding instead of deepspeed, or only the axes data and shard."
            )
        return DeepSpeedStrategy
    words = args.sharding.split()
    if "stage1" in words:
        return ShardedOptimizerStrategy
    if "stage2" in words or "stage3" in words:
        return FSDPStrategy
    return None


def device_mesh(args: Any, mesh: Mesh) -> DeviceMesh:
    """The mesh as torch's, with the axes data and shard, and others that are in use."""
    axes = [axis for axis in mesh.axes if axis.size > 1 or axis.name in (DATA, SHARD)]
    key = (args.device.type, *axes, id(dist.group.WORLD))
    if key not in _meshes:
        names = tuple(axis.name for axis in axes)
        _meshes[key] = init_device_mesh(args.device.type, tuple(axis.size for axis in axes), mesh_dim_names=names)
    return _meshes[key]


def forget_meshes() -> None:
    """Forget the meshes of a process group that was destroyed."""
    _meshes.clear()


class ShardedOptimizerStrategy(DataParallelStrategy):
    """Stage 1: every process updates some of the parameters, keeps only their state, and broadcasts them to the
    others."""

    is_sharded = True
    parameters_in_buckets = True  # their memory, so that the broadcasts after a step are few

    def build_optimizer(self, cls: Any, groups: list[dict[str, Any]], options: dict[str, Any]) -> Any:
        if callable(getattr(cls, "train", None)) and callable(getattr(cls, "eval", None)):
            raise UnsupportedError(
                f"{cls.__name__} evaluates other weights than it trains, and each process would switch only the "
                "parameters that it updates with sharding='stage1'. Use optim='adamw_torch', or remove sharding."
            )
        groups = joined_groups(groups)
        copies = [dict(group) for group in groups]
        self.backend.optimizers.build(cls, copies, options)  # raises an error message for wrong options
        half_evaluation = self.args.fp16_full_eval or self.args.bf16_full_eval
        return ZeroRedundancyOptimizer(
            groups,
            cls,
            process_group=device_mesh(self.args, self.mesh)[SHARD].get_group(),
            # Evaluation in half precision replaces the memory of the parameters.
            parameters_as_bucket_view=self.parameters_in_buckets and not half_evaluation,
            **options,
        )

    def prepare_optimizer(self, optimizer: Any) -> Any:
        if not isinstance(optimizer, ZeroRedundancyOptimizer):
            raise UnsupportedError(
                f"sharding='stage1' shards the state of an optimizer that it creates itself, but got an existing "
                f"{type(optimizer).__name__}. Pass its class and options as "
                "optimizer_cls_and_kwargs, use stage2 or stage3, or remove sharding."
            )
        return optimizer

    def local_optimizer_state(self, optimizer: Any, model: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
        names = weights.optimizer_names(optimizer, model)
        tensors, data = weights.optimizer_state(optimizer.optim, model, names)
        data["groups"] = weights.group_options(optimizer, names)
        with_state = {names[id(p)] for p, state in optimizer.optim.state.items() if state}
        every = self.processes.all_gather_object((data["values"], with_state))
        data["values"] = {name: values for of_rank, _ in every for name, values in of_rank.items()}
        data = checks.with_stateless_parameters(data, {name for _, names_of_rank in every for name in names_of_rank})
        return (tensors if self.mesh.holds_first_copy(Splits.OPTIMIZER) else {}), data

    def local_model_tensors(self, model: nn.Module) -> tuple[dict[str, Any], dict[str, str]]:
        tensors, tied = self.backend.weights.model_tensors(model)
        return (tensors if self.processes.is_main else {}), tied

    def optimizer_state(self, optimizer: Any, model: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
        tensors, data = self.local_optimizer_state(optimizer, model)
        return shards.broadcast_tensors(self.processes, tensors, self.args.device, self.args.should_save), data

    def load_optimizer(self, optimizer: Any, model: nn.Module, tensors: dict[str, Any], data: Any, source: str) -> None:
        names = weights.optimizer_names(optimizer, model)
        own = {names[id(p)] for group in optimizer.optim.param_groups for p in group["params"]}
        # All processes check all of it, so that they fail together.
        weights.load_optimizer(optimizer, model, tensors, data, source, type(optimizer.optim), own)
        optimizer.optim.state.clear()
        optimizer.optim.state.update(optimizer.state)
        optimizer.state.clear()
        optimizer._sync_param_groups(optimizer.param_groups, optimizer.optim.param_groups)


class _DropGradient(torch.autograd.Function):
    """Identity in the forward pass, without a gradient in the backward pass."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return torch.zeros_like(gradients[0])


class FSDPStrategy(DividedState, DataParallelStrategy):
    """Stages 2 and 3: FSDP2 shards every parameter by rows, with its gradient and its optimizer state.

    The model stays sharded when training ends: its parameters are DTensors, and save_model gathers them.
    """

    forward_is_collective = True

    def __init__(self, args: Any, processes: ProcessGroup, mesh: Mesh) -> None:
        super().__init__(args, processes, mesh)
        self.stage3 = reshards(args)
        self.root: Any = None
        self.units: list[Any] = []
        self.plain: list[nn.Parameter] = []  # scalars, which cannot be sharded, and prompt encoders
        self._swapped: dict[int, nn.Parameter] = {}  # id of an original parameter -> the one that replaced it
        self._kept: list[nn.Parameter] = []  # the original ones: keeps their ids from being reused

    # -- the model and its optimizer

    def broadcast_weights(self, model: nn.Module) -> None:
        if not is_sharded_model(model):
            super().broadcast_weights(model)

    def wrap(self, model: nn.Module) -> nn.Module:
        self.model = model
        if is_sharded_model(model):  # by an earlier train()
            self._remember(model)
            return model
        _check(model)
        super().broadcast_weights(model)
        before = dict(model.named_parameters())
        for p in before.values():
            p.data = p.data.contiguous()
        config = self.args.fsdp_config or {}
        ignored = {p for p in before.values() if p.dim() == 0} | _parameters_used_outside_forward(model)
        ignored |= wrap_policy.ignored(unwrap(model), config)
        options = {
            "mesh": self._mesh(),
            "ignored_params": ignored or None,
            "offload_policy": CPUOffloadPolicy() if "offload" in self.args.sharding.split() else OffloadPolicy(),
        }
        half = self._half()
        units = wrap_policy.units(unwrap(model), config)
        wrap_policy.check_types(unwrap(model), units, ignored)
        for unit in units:
            policy = MixedPrecisionPolicy(half, torch.float32 if half else None)
            fully_shard(unit, reshard_after_forward=self.stage3, mp_policy=policy, **options)
        # Half precision would round labels that are floats, so the inputs of the whole model are not converted.
        policy = MixedPrecisionPolicy(half, torch.float32 if half else None, cast_forward_inputs=False)
        fully_shard(model, reshard_after_forward=None if self.stage3 else False, mp_policy=policy, **options)
        if config.get("forward_prefetch"):
            _prefetch_forward(model, units)
        after = dict(model.named_parameters())
        self._swapped = {id(p): after[name] for name, p in before.items()}
        self._kept = list(before.values())
        self._remember(model)
        return model

    def _mesh(self) -> DeviceMesh:
        mesh = device_mesh(self.args, self.mesh)
        if self.mesh.size_of(DATA) == 1:
            return mesh[SHARD]
        return mesh if mesh.ndim == 2 else mesh[DATA, SHARD]

    def _half(self) -> torch.dtype | None:
        args = self.args
        if args.fp16_opt_level in ("O0", "O3"):  # off, and weights that are already in half precision
            return None
        return torch.float16 if args.fp16 else torch.bfloat16 if args.bf16 else None

    def _remember(self, model: nn.Module) -> None:
        self.root = model
        self.units = [m for m in model.modules() if isinstance(m, FSDPModule)]
        self.plain = [p for p in model.parameters() if not isinstance(p, DTensor)]

    def prepare_optimizer(self, optimizer: Any) -> Any:
        """An optimizer of the user has the unsharded parameters."""
        for group in optimizer.param_groups:
            if any(id(p) in self._swapped and p in optimizer.state for p in group["params"]):
                raise UnsupportedError(
                    "the given optimizer has already made steps on the unsharded model. With sharding stage2 and "
                    "stage3 pass a new one, or resume from a checkpoint."
                )
            group["params"] = [self._swapped.get(id(p), p) for p in group["params"]]
        self._swapped, self._kept = {}, []  # frees the unsharded parameters
        return optimizer

    def build_optimizer(self, cls: Any, groups: list[dict[str, Any]], options: dict[str, Any]) -> Any:
        if cls.__name__ == "Adafactor":
            raise UnsupportedError(
                "adafactor keeps means over whole rows and columns of a parameter, but sharding stage2 and stage3 "
                "shard them. Use optim='adamw_torch', or sharding='stage1'."
            )
        return super().build_optimizer(cls, groups, options)

    def class_of(self, model: nn.Module) -> type:
        return type(model).__mro__[2] if isinstance(model, FSDPModule) else type(model)

    # -- an update

    @property
    def skips_presync(self) -> bool:
        return True

    def begin(self, all_take_part: bool) -> None:
        if self.args.ddp_broadcast_buffers is not False and self.root is not None:
            from_main(list(self.root.buffers()), self.equals)

    def forward_module(self, wrapped: nn.Module) -> nn.Module:
        return wrapped

    def micro_batch(self, last: bool) -> contextlib.AbstractContextManager:
        if not self.stage3:  # parameters stay unsharded until the last micro-batch
            self.root.set_reshard_after_backward(last)
        return AS_IT_IS

    def discard_gradients(self, wrapped: nn.Module) -> contextlib.AbstractContextManager:
        return discard_gradients(wrapped, self.plain)

    def finish(self, parameters: list[nn.Parameter]) -> bool:
        outside = [p for p in parameters if not isinstance(p, DTensor)]
        if outside:  # those of a criterion, and scalars
            average(outside, self.replicas)
            self.plain = outside
        return False

    def norm(self, gradients: list[torch.Tensor], spread_to: torch.device | None = None) -> torch.Tensor:
        """`gradients` are local shards; each row of a sharded one is in exactly one process of a copy."""
        whole = {id(p.grad) for p in self.plain if p.grad is not None}
        mine = [g for g in gradients if id(g) not in whole and g.numel()]
        alike = [g for g in gradients if id(g) in whole]
        device = self.args.device
        total = torch.zeros((), device=device)
        if mine:
            total = super().norm(mine, spread_to).float() ** 2
        dist.all_reduce(total, group=device_mesh(self.args, self.mesh)[SHARD].get_group())
        if alike:
            total = total + super().norm(alike, spread_to).float() ** 2
        return total.sqrt()

    # -- evaluations

    @property
    def _unshard_for_evaluation(self) -> bool:
        """Unshard the weights for evaluation, since the number of forward passes differs between processes, for example
        with generated texts of different lengths. In stage 2 there is memory for it."""
        return not self.stage3 or getattr(self.args, "predict_with_generate", False)

    def prepare_eval(self, model: nn.Module) -> None:
        super().prepare_eval(model)
        self.forward_is_collective = is_sharded_model(model) and not self._unshard_for_evaluation
        if is_sharded_model(model) and self._unshard_for_evaluation:
            for unit in self.units:
                unit.set_reshard_after_forward(False, recurse=False)
                unit.unshard()

    def generation_options(self) -> dict[str, Any]:
        # For a sharded model, generate() makes all processes go on for as long as the longest text. Weights are
        # unsharded here, and processes have different numbers of batches: they would wait forever.
        return {"synced_gpus": False}

    def finish_eval(self, model: nn.Module) -> None:
        self.forward_is_collective = True
        if not is_sharded_model(model):
            return
        for unit in self.units:
            if self.stage3:
                unit.set_reshard_after_forward(unit is not self.root, recurse=False)
            unit.reshard()

    def is_divided(self, model: nn.Module) -> bool:
        return is_sharded_model(model)


def is_sharded_model(model: nn.Module) -> bool:
    return isinstance(model, FSDPModule)


def _prefetch_forward(model: nn.Module, units: list[nn.Module]) -> None:
    """Unshard the next layer while one computes, in the order in which the model lists them."""
    wanted = {id(unit) for unit in units}
    ordered: list[Any] = [module for module in model.modules() if id(module) in wanted]
    for layer, following in zip(ordered, ordered[1:]):
        layer.set_modules_to_forward_prefetch([following])


@contextlib.contextmanager
def discard_gradients(wrapped: nn.Module, outside: list[nn.Parameter]) -> Iterator[None]:
    """A context in which a backward pass has no effect: the model gets no gradients, and those outside it are
    restored."""
    held = [p.grad for p in outside]
    for p in outside:
        p.grad = None
    hook = wrapped.register_forward_hook(lambda module, inputs, output: _drop_gradient(output))
    try:
        yield
    finally:
        hook.remove()
        for p, gradient in zip(outside, held):
            p.grad = gradient


def _drop_gradient(output: Any) -> Any:
    def muted(tensor: torch.Tensor) -> torch.Tensor:
        return _DropGradient.apply(tensor) if tensor.requires_grad else tensor

    return tree_map_only(torch.Tensor, muted, output)


def _check(model: nn.Module) -> None:
    """Raise an error for what FSDP2 cannot shard, before it changes anything."""
    if is_adapter(unwrap(model)):
        _check_adapter(unwrap(model))
    sparse = [name for name, m in model.named_modules() if getattr(m, "sparse", False)]
    if sparse:
        raise UnsupportedError(
            f"{', '.join(sparse)}: sparse gradients cannot be sharded (sharding stage2, stage3). Create "
            "the embedding with sparse=False, or use sharding='stage1' or none."
        )
    if isinstance(model, (nn.ModuleList, nn.ModuleDict)):
        raise ModelError(f"the model is {a_type(model)}, which has no forward; pass a module with one")


def _check_adapter(model: nn.Module) -> None:
    if getattr(base_of(model), "is_quantized", False):
        raise UnsupportedError(
            "the base model is quantized, and sharding stage2 and stage3 cannot shard packed weights. Use "
            "sharding='stage1', or remove sharding: an adapter's gradients and optimizer state are small."
        )
    adapters.check_computed(model)


def _parameters_used_outside_forward(model: nn.Module) -> set[nn.Parameter]:
    """Parameters that stay complete in every process: they are also used outside of the model's forward pass."""
    base = unwrap(model)
    return adapters.encoder_parameters(base) if is_adapter(base) else set()
