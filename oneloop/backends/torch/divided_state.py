"""Strategies whose processes have parts of tensors (DTensors): gradients, and what checkpoints store and load."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ...distributed.mesh import Splits
from . import adapters, shards, weights
from .models import unwrap
from .parallel import SingleProcessStrategy


class DividedState(SingleProcessStrategy):
    """To derive from, before the class of a strategy for whole tensors."""

    is_sharded = True
    loads_sharded = True
    model: nn.Module | None = None

    def is_divided(self, model: nn.Module) -> bool:
        """Whether its parameters are divided already."""
        raise NotImplementedError

    # -- gradients

    def local(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        return [shards.local(g) for g in gradients]

    def unscale(self, scaler: Any, optimizer: Any) -> None:
        scaler._unscale_grads_ = self._unscale_local
        scaler.unscale_(optimizer)

    def _unscale_local(self, optimizer: Any, inverse: torch.Tensor, found: torch.Tensor, allow_fp16: bool) -> Any:
        """Unscale local gradients as GradScaler does: its kernel does not accept a mixture of divided and other
        tensors."""
        of_type: dict[torch.dtype, list[torch.Tensor]] = {}
        for gradient in self.local([p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]):
            of_type.setdefault(gradient.dtype, []).append(gradient)
        for gradients in of_type.values():
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return {found.device: found}

    # -- checkpoints

    def model_tensors(self, model: nn.Module) -> tuple[dict[str, Any], dict[str, str]]:
        if not self.is_divided(model):
            return super().model_tensors(model)
        tensors, tied = shards.model_tensors(model)
        return shards.gather_full(tensors, self.args.should_save), tied

    def local_model_tensors(self, model: nn.Module) -> tuple[dict[str, Any], dict[str, str]]:
        tensors, tied = shards.model_tensors(model)
        return shards.gather_to_owner(tensors, model, self._writers()), tied

    def load_tensors(self, path: Path) -> dict[str, Any]:
        is_divided = self.model is not None and self.is_divided(self.model)
        return shards.stored(path) if is_divided else super().load_tensors(path)

    def load_model(self, model: nn.Module, tensors: dict[str, Any], tied: dict[str, str], source: str) -> None:
        if self.is_divided(model):
            shards.load_model(model, tensors, tied, source)
        else:
            super().load_model(model, tensors, tied, source)

    def gather_named(self, tensors: dict[str, Any]) -> dict[str, Any]:
        return shards.gather_full(tensors, self.args.should_save)

    def part_of(self, parameter: Any, value: Any) -> Any:
        return shards.shard_like(parameter, value)

    def adapter_tensors(self, model: nn.Module) -> dict[str, Any] | None:
        if not self.is_divided(model):
            return super().adapter_tensors(model)
        base = unwrap(model)
        names, own = {*adapters.names_in_files(base), *adapters.names_of_rest(base)}, base.state_dict()
        return shards.gather_full({name: own[name] for name in own if name in names}, self.args.should_save)

    def load_adapter(self, model: nn.Module, directory: Path) -> None:
        weights.load_adapter(model, directory, shards.shard_like if self.is_divided(model) else None)

    def optimizer_state(self, optimizer: Any, model: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
        tensors, data = weights.optimizer_state(optimizer, model)
        return shards.gather_full(tensors, self.args.should_save), data

    def local_optimizer_state(self, optimizer: Any, model: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
        tensors, data = weights.optimizer_state(optimizer, model)
        return shards.gather_to_owner(tensors, model, self._writers()), data

    def load_optimizer(self, optimizer: Any, model: nn.Module, tensors: dict[str, Any], data: Any, source: str) -> None:
        names = weights.optimizer_names(optimizer, model)
        own = {names[id(p)]: p for group in optimizer.param_groups for p in group["params"]}
        parts = {key: shards.shard_like(own.get(key.rsplit(":", 1)[0]), value) for key, value in tensors.items()}
        weights.load_optimizer(optimizer, model, parts, data, source)

    def _writers(self) -> Sequence[int]:
        """The ranks of the first copy, which write it."""
        return self.mesh.first_copy(Splits.WEIGHTS)
