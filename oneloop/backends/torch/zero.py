"""DeepSpeed: its ZeRO stages with the Trainer's loop.

DeepSpeed handles gradients, their norm, half precision and the update itself, so it has its own engine here.
Checkpoints have the format of every other strategy: whole float32 weights and whole optimizer state by parameter.
"""

import contextlib
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from ...distributed.collectives import ProcessGroup
from ...distributed.mesh import Mesh
from ...distributed.strategy import AS_IT_IS
from ...errors import MissingPackageError, NoGradientsError, UnsupportedError, a_type
from .._common.helpers import check_names_and_shapes, joined_groups
from . import adapters, shards, weights, zero_config, zero_state
from .ddp import DataParallelStrategy
from .engine import Engine
from .models import unwrap
from .sharding import discard_gradients
from .zero_state import ShardedState, is_partitioned, shape_of

_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def package(args: Any) -> Any:
    """The deepspeed module, imported late because it initialises its device on import."""
    if args.device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    try:
        import deepspeed
    except ImportError as error:
        raise MissingPackageError("deepspeed= needs the package deepspeed: pip install deepspeed") from error
    return deepspeed


class DeepSpeedStrategy(DataParallelStrategy):
    """Every pass is a collective: processes must run the same number of them, as in FSDPStrategy."""

    forward_is_collective = True

    def __init__(self, args: Any, processes: ProcessGroup, mesh: Mesh) -> None:
        super().__init__(args, processes, mesh)
        self.package = package(args)
        self.config = zero_config.filled(zero_config.read(args.deepspeed), args)
        self.stage = int(self.config.get("zero_optimization", {}).get("stage", 0))
        self.half = zero_config.half(self.config)
        self.is_sharded = self.stage > 0 or self.half is not None
        self.engine: Any = None
        self.sharded: ShardedState | None = None  # None at stage 0 with float32 weights, which shards nothing
        self._loaded: dict[str, torch.Tensor] = {}  # float32 weights of a checkpoint, until there is an engine
        self._boundary = True

    # -- the model and its optimizer

    def engine_class(self, default: Any) -> Any:
        return ZeroEngine

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.engine is not None:
            raise UnsupportedError(
                "deepspeed: a model can be trained only once; create a new Trainer for a second train()."
            )
        self.model = model
        self.broadcast_weights(model)
        return model

    def build_optimizer(self, cls: Any, groups: list[dict[str, Any]], options: dict[str, Any]) -> Any:
        return super().build_optimizer(cls, joined_groups(groups), options)  # DeepSpeed has no empty groups

    def prepare_optimizer(self, optimizer: Any) -> Any:
        assert self.model is not None
        model = unwrap(self.model)
        names = weights.optimizer_names(optimizer, model)
        groups = [
            [(names[id(p)], p) for p in group["params"] if p.requires_grad]
            for group in optimizer.param_groups
            if group["params"]
        ]
        self.engine, wrapped, _, _ = self.package.initialize(
            model=model,
            optimizer=optimizer,
            config=zero_config.finished(self.config, model),
            dist_init_required=False,
        )
        if self.is_sharded:
            self.sharded = ShardedState(self.package, wrapped, groups)
        if self.half is not None and self.sharded is not None:
            self.sharded.reset_step()
            zero_state.allow_smallest_scale(wrapped)
            model.register_forward_pre_hook(_casting(_DTYPES[self.half]), with_kwargs=True)
            if self._loaded:  # DeepSpeed has rounded the weights
                self.sharded.set_float32(self._loaded)
        self._loaded = {}
        if self.args.torch_compile:
            mode = {"mode": self.args.torch_compile_mode} if self.args.torch_compile_mode else {}
            self.engine.compile(backend=self.args.torch_compile_backend or "inductor", compile_kwargs=mode)
        return wrapped

    def with_optimizer(self, wrapped: nn.Module) -> nn.Module:
        return self.engine

    # -- an update

    def begin(self, all_take_part: bool) -> None:
        pass

    def forward_module(self, wrapped: nn.Module) -> nn.Module:
        return self.engine

    def micro_batch(self, last: bool) -> contextlib.AbstractContextManager:
        self._boundary = last
        return AS_IT_IS

    def discard_gradients(self, wrapped: nn.Module) -> contextlib.AbstractContextManager:
        return discard_gradients(wrapped, [])

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """The loss is already weighted: disable DeepSpeed's own division by the micro-batches."""
        self.engine.set_gradient_accumulation_boundary(self._boundary)
        self.engine.backward(loss * self.missing_scale(), scale_wrt_gas=False, **kwargs)

    def missing_scale(self) -> float:
        """The loss scale, where DeepSpeed divides gradients by it without having multiplied the loss: at stage 0."""
        if self.half != "fp16" or self.sharded is None or hasattr(self.sharded.optimizer, "scale_if_loss"):
            return 1.0
        return float(self.sharded.optimizer.loss_scale)

    def finish(self, parameters: list[nn.Parameter]) -> bool:
        return False

    def prepare_eval(self, model: nn.Module) -> None:
        if self.engine is None and any(is_partitioned(p) for p in model.parameters()):
            raise UnsupportedError(
                "deepspeed: the model was created under zero.Init, and it can be evaluated only after train() has "
                "given it an engine. Create it outside zero.Init to evaluate it before."
            )
        super().prepare_eval(model)
        self.forward_is_collective = self.stage == 3 and self.engine is not None

    def finish_eval(self, model: nn.Module) -> None:
        self.forward_is_collective = True

    # -- checkpoints

    def model_tensors(self, model: nn.Module) -> tuple[dict[str, Any], dict[str, str]]:
        return self._weights(model, lambda name: self.args.should_save)

    def local_model_tensors(self, model: nn.Module) -> tuple[dict[str, Any], dict[str, str]]:
        return self._weights(model, self._written_here(model))

    def _written_here(self, model: nn.Module) -> Callable[[str], bool]:
        """Whether this process writes a parameter, and its state; the main process writes buffers."""
        sizes = {name: shape_of(p).numel() for name, p in unwrap(model).named_parameters()}
        owner_of = shards.assign_writers(sizes, range(self.processes.size))
        return lambda name: owner_of.get(name, 0) == self.processes.rank

    def _weights(self, model: nn.Module, keep: Callable[[str], bool]) -> tuple[dict[str, Any], dict[str, str]]:
        """Whole weights and buffers that this process keeps, on the host. A collective."""
        base = unwrap(model)
        tensors, tied = shards.model_tensors(base)
        return self._whole(base, tensors, keep), tied

    def _whole(self, base: nn.Module, tensors: dict[str, Any], keep: Callable[[str], bool]) -> dict[str, Any]:
        parameters = dict(base.named_parameters(remove_duplicate=False))
        exact = self.sharded.float32(keep) if self.sharded is not None and self.half is not None else {}
        found = {}
        for name, value in tensors.items():
            p = parameters.get(name)
            with self._gathered([p]) if p is not None else AS_IT_IS:
                if keep(name):
                    whole = exact.get(name, value if p is None else p.detach())
                    found[name] = whole.cpu().clone() if p is not None and is_partitioned(p) else whole
        return found

    def _gathered(self, parameters: Iterable[Any], modifier: int | None = None) -> contextlib.AbstractContextManager:
        """A context in which the parameters are whole. With `modifier` that process may change them."""
        partitioned = [p for p in parameters if is_partitioned(p)]
        if not partitioned:
            return AS_IT_IS
        return self.package.zero.GatheredParameters(partitioned, modifier_rank=modifier)

    def load_model(self, model: nn.Module, tensors: dict[str, Any], tied: dict[str, str], source: str) -> None:
        base = unwrap(model)
        parameters = dict(base.named_parameters(remove_duplicate=False))
        if any(is_partitioned(p) for p in parameters.values()):
            self._load_partitioned(base, tensors, tied, source)
        else:
            super().load_model(model, tensors, tied, source)
        self._set_exact({name: tensors[name] for name in parameters if name in tensors})

    def _load_partitioned(self, base: nn.Module, tensors: dict[str, Any], tied: dict[str, str], source: str) -> None:
        own, own_tied = shards.model_tensors(base)
        parameters = dict(base.named_parameters(remove_duplicate=False))
        values = tensors | {name: tensors[first] for name, first in tied.items() if first in tensors}
        values |= {name: values[first] for name, first in own_tied.items() if first in values and name not in values}
        shaped = {name: torch.zeros(()).expand(shape_of(parameters.get(name, value))) for name, value in own.items()}
        check_names_and_shapes(values, {**shaped, **{name: shaped[first] for name, first in own_tied.items()}}, source)
        for name, target in own.items():
            p = parameters.get(name)
            with self._gathered([] if p is None else [p], 0), torch.no_grad():
                if p is None or not is_partitioned(p) or self.processes.is_main:
                    (target if p is None else p.data).copy_(values[name])

    def _set_exact(self, values: dict[str, torch.Tensor]) -> None:
        """Set the float32 weights of a model in half precision, now or when DeepSpeed has made them."""
        if self.half is None:
            return
        if self.sharded is None:
            self._loaded = values
        else:
            self.sharded.set_float32(values)

    def adapter_tensors(self, model: nn.Module) -> dict[str, Any] | None:
        if self.engine is None or (self.stage < 3 and self.half is None):
            return super().adapter_tensors(model)
        base: Any = unwrap(model)
        names, own = {*adapters.names_in_files(base), *adapters.names_of_rest(base)}, base.state_dict()
        return self._whole(base, {n: own[n] for n in own if n in names}, lambda name: self.args.should_save)

    def load_adapter(self, model: nn.Module, directory: Path) -> None:
        trained = {name: p for name, p in unwrap(model).named_parameters() if p.requires_grad}
        with self._gathered(trained.values(), 0):
            super().load_adapter(model, directory)
            if self.half is not None:
                self._loaded = {name: p.detach().clone() for name, p in trained.items()}
        if self.sharded is not None:
            self._set_exact(self._loaded)

    def optimizer_state(self, optimizer: Any, model: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
        if self.sharded is None:
            return super().optimizer_state(optimizer, model)
        return self.sharded.state(lambda name: self.args.should_save)

    def local_optimizer_state(self, optimizer: Any, model: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
        assert self.sharded is not None
        return self.sharded.state(self._written_here(model))

    def load_optimizer(self, optimizer: Any, model: nn.Module, tensors: dict[str, Any], data: Any, source: str) -> None:
        if self.sharded is None:
            super().load_optimizer(optimizer, model, tensors, data, source)
        else:
            self.sharded.load(tensors, data, source)


def _casting(dtype: torch.dtype) -> Callable[[Any, tuple, dict[str, Any]], tuple[tuple, dict[str, Any]]]:
    """A hook that gives a model in half precision its inputs in it; labels keep their precision."""

    def cast(value: Any) -> Any:
        return tree_map_only(torch.Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, value)

    def hook(module: Any, given: tuple, named: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        return cast(given), {key: value if key.startswith("label") else cast(value) for key, value in named.items()}

    return hook


def _is_lost(norm: Any) -> bool:
    """Whether the host knows that a norm is not finite, for which DeepSpeed also writes -1. A tensor on an accelerator
    is not read: that would be a host sync, and the next loss shows it."""
    if norm is None or (isinstance(norm, torch.Tensor) and norm.device.type != "cpu"):
        return False
    return not 0.0 <= float(norm) < math.inf


class ZeroEngine(Engine):
    """The same interface with DeepSpeed, which computes in half precision, scales and clips. A loss or a norm that is
    not finite stops the run: before weights change, except in bf16, where DeepSpeed does not look at the norm."""

    strategy: Any

    def __init__(self, model: nn.Module, device: torch.device, *, half: str | None = None, **options: Any) -> None:
        super().__init__(model, device, half=None, **options)

    def autocast(self, cache_enabled: bool | None = True) -> contextlib.AbstractContextManager:
        """DeepSpeed converts weights, or enters autocast itself: outside it has an effect on evaluations only."""
        kind = zero_config.autocast(self.strategy.config)
        if kind is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=_DTYPES[kind], cache_enabled=cache_enabled)

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
            raise NoGradientsError(f"the loss cannot be differentiated: it is {a_type(loss)} without a gradient.")
        self.strategy.backward(loss, **kwargs)

    def include(self, optimizer: Any) -> None:
        pass

    def clear(self) -> None:
        pass

    def prepare_update(self, optimizer: Any, loss: torch.Tensor | None) -> None:
        self._bad = loss is not None and self.nonfinite != "ignore" and not math.isfinite(loss)
        if self.strategy.sharded is None:  # DeepSpeed has averaged the gradients, and does not keep their norm
            gradients = [p.grad for p in self.parameters if p.grad is not None]
            self.norm = self.strategy.norm(gradients).item() if gradients else None
            self._bad = self._bad or (self.nonfinite != "ignore" and not math.isfinite(self.norm or 0.0))

    def apply_update(self, optimizer: Any, step: int) -> int | None:
        if self._bad:
            return step
        engine, scale, missing = self.strategy.engine, self.loss_scale(), self.strategy.missing_scale()
        engine.step()
        if self.strategy.sharded is not None:
            self.norm = engine.get_global_grad_norm()
            self.norm = self.norm / missing if self.norm is not None else None
        if engine.was_step_applied():
            return step if self.nonfinite != "ignore" and _is_lost(self.norm) else None
        self.skipped += 1
        # An overflow of fp16 is expected: the scale is found by it, as long as it can get smaller.
        overflowed = scale is not None and scale > zero_state.smallest_scale(self.strategy.sharded.optimizer)
        return None if overflowed or self.nonfinite == "ignore" else step

    # -- for logs and checkpoints

    def loss_scale(self) -> float | None:
        sharded = self.strategy.sharded
        if self.strategy.half != "fp16" or sharded is None:
            return None
        return float(sharded.optimizer.loss_scale)

    def state(self) -> dict[str, Any]:
        scaled = self.loss_scale() is not None
        scaler = zero_state.scaler_state(self.strategy.sharded.optimizer) if scaled else None
        return {"skipped": self.skipped, "scaler": scaler}

    def load_state(self, state: dict[str, Any]) -> None:
        self.skipped = int(state.get("skipped", 0))
        if state.get("scaler") and self.loss_scale() is not None:
            zero_state.load_scaler(self.strategy.sharded.optimizer, state["scaler"])
