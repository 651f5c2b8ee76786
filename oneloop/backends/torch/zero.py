"""DeepSpeed: its ZeRO stages with the Trainer's loop.

DeepSpeed handles gradients, their norm and the update itself, so it has its own engine here. Its optimizer state is
not saved in checkpoints, so a run cannot resume from one; refusals.py has the error message.
"""

import contextlib
import json
import math
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...distributed.collectives import ProcessGroup
from ...distributed.strategy import AS_IT_IS
from ...errors import ArgumentError, MissingPackageError, ModelError, RefusedError
from .._common.helpers import joined_groups
from .ddp import DataParallel
from .engine import Engine
from .models import unwrap
from .sharding import muted

_NO_STATE = (
    "the optimizer state of DeepSpeed is not saved in checkpoints, so a run cannot resume from one. Use "
    "save_only_model=True, or sharding='stage1', 'stage2' or 'stage3', whose checkpoints are complete."
)


def package(args: Any) -> Any:
    """The deepspeed module, imported late because it initialises its device on import."""
    if args.device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    try:
        import deepspeed
    except ImportError as error:
        raise MissingPackageError("deepspeed= needs the package deepspeed: pip install deepspeed") from error
    return deepspeed


# -- its configuration


def read(value: Any) -> dict[str, Any]:
    """The dict, or the contents of the JSON file."""
    if isinstance(value, dict):
        return json.loads(json.dumps(value))
    try:
        return json.loads(Path(value).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArgumentError(f"deepspeed={value!r} cannot be read as a JSON file: {error}") from error


def filled(config: dict[str, Any], args: Any) -> dict[str, Any]:
    """The configuration with "auto" filled in from the arguments; one error lists contradictions."""
    accumulation = args.gradient_accumulation_steps
    known = {
        "train_micro_batch_size_per_gpu": args.train_batch_size,
        "gradient_accumulation_steps": accumulation,
        "train_batch_size": args.train_batch_size * accumulation * args.world_size,
        "gradient_clipping": args.max_grad_norm or 0.0,
    }
    wrong = [
        f"{name} is {config[name]} there and {value} here"
        for name, value in known.items()
        if config.get(name, "auto") not in ("auto", value)
    ]
    if wrong:
        raise ArgumentError(
            f'the configuration in deepspeed= contradicts the arguments: {"; ".join(wrong)}. Set these to "auto" there.'
        )
    _refuse_sections(config, args)
    config = {name: value for name, value in config.items() if name not in ("optimizer", "scheduler", "fp16", "bf16")}
    config = {"steps_per_print": 2**31, "zero_allow_untested_optimizer": True} | _without_auto(config) | known
    return config


def _refuse_sections(config: dict[str, Any], args: Any) -> None:
    for name, instead in (
        ("optimizer", "optim, learning_rate and their like"),
        ("scheduler", "lr_scheduler_type and warmup_steps"),
    ):
        given = [key for key, value in config.get(name, {}).get("params", {}).items() if value != "auto"]
        if given:
            raise RefusedError(
                f"deepspeed: its section {name} sets {', '.join(given)}; the arguments do that here ({instead}). "
                'Set it to "auto" there, or remove the section.'
            )
    for name in ("fp16", "bf16"):
        if config.get(name, {}).get("enabled", "auto") not in ("auto", False):
            raise RefusedError(
                f'deepspeed: weights in half precision (section {name}) are not supported. Set enabled to "auto"; '
                "bf16=True computes in bfloat16 with float32 weights."
            )
    zero = config.get("zero_optimization", {})
    offloaded = [key for key in zero if key.startswith("offload_") and zero[key].get("device", "none") != "none"]
    if offloaded and args.device.type == "cpu":
        raise RefusedError(
            f"deepspeed: {', '.join(offloaded)} moves state from an accelerator to the host; on a CPU it is there "
            "already. Remove it."
        )


def _without_auto(value: Any) -> Any:
    """Where nothing here decides "auto", DeepSpeed's default is used."""
    if isinstance(value, dict):
        return {key: _without_auto(inner) for key, inner in value.items() if inner != "auto"}
    return value


# -- the strategy and its engine


class DeepSpeed(DataParallel):
    """Every pass is a collective: processes must run the same number of them, as in FullyShared."""

    lockstep = True

    def __init__(self, args: Any, processes: ProcessGroup) -> None:
        super().__init__(args, processes)
        self.package = package(args)
        self.config = filled(read(args.deepspeed), args)
        self.stage3 = self.config.get("zero_optimization", {}).get("stage", 0) == 3
        self.engine: Any = None
        self._boundary = True

    def engine_class(self, default: Any) -> Any:
        return ZeroEngine

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.engine is not None:
            raise RefusedError(
                "deepspeed: a model can be trained only once; create a new Trainer for a second train()."
            )
        self.model = model
        self.agree(model)
        return model

    def build_optimizer(self, cls: Any, groups: list[dict[str, Any]], options: dict[str, Any]) -> Any:
        return super().build_optimizer(cls, joined_groups(groups), options)  # DeepSpeed has no empty groups

    def take_optimizer(self, optimizer: Any) -> Any:
        assert self.model is not None
        self.engine, wrapped, _, _ = self.package.initialize(
            model=unwrap(self.model), optimizer=optimizer, config=self.config, dist_init_required=False
        )
        return wrapped

    def begin(self, all_take_part: bool) -> None:
        pass

    def called(self, wrapped: nn.Module) -> nn.Module:
        return self.engine

    def micro_batch(self, last: bool) -> contextlib.AbstractContextManager:
        self._boundary = last
        return AS_IT_IS

    def muted(self, wrapped: nn.Module) -> contextlib.AbstractContextManager:
        return muted(wrapped, [])

    def backward(self, loss: torch.Tensor) -> None:
        """The loss is already weighted: disable DeepSpeed's own division by the micro-batches."""
        self.engine.set_gradient_accumulation_boundary(self._boundary)
        self.engine.backward(loss, scale_wrt_gas=False)

    def finish(self, parameters: list[nn.Parameter]) -> bool:
        return False

    def settle(self, model: nn.Module) -> None:
        super().settle(model)
        self.lockstep = self.stage3 and self.engine is not None

    def unsettle(self, model: nn.Module) -> None:
        self.lockstep = True

    # -- checkpoints: weights only

    def _gathered(self, model: nn.Module, modifier: int | None = None) -> contextlib.AbstractContextManager:
        if not self.stage3 or self.engine is None:
            return AS_IT_IS
        return self.package.zero.GatheredParameters(list(model.parameters()), modifier_rank=modifier)

    def model_tensors(self, model: nn.Module) -> tuple[dict[str, Any], dict[str, str]]:
        with self._gathered(model):
            tensors, tied = super().model_tensors(model)
            return {name: t.detach().cpu().clone() for name, t in tensors.items() if self.args.should_save}, tied

    def load_model(self, model: nn.Module, tensors: dict[str, Any], tied: dict[str, str], source: str) -> None:
        with self._gathered(model, 0):
            super().load_model(model, tensors, tied, source)

    def optimizer_state(self, optimizer: Any, model: nn.Module) -> Any:
        raise RefusedError(_NO_STATE)

    def load_optimizer(self, *args: Any, **kwargs: Any) -> None:
        raise RefusedError(_NO_STATE)


class ZeroEngine(Engine):
    """The same interface with DeepSpeed. A loss that is not finite stops the run before the update; gradients are
    handled by DeepSpeed and not checked."""

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
            raise ModelError(f"the loss cannot be differentiated: it is a {type(loss).__name__} without a gradient.")
        self.strategy.backward(loss)

    def include(self, optimizer: Any) -> None:
        pass

    def clear(self) -> None:
        pass

    def prepare_update(self, optimizer: Any, loss: torch.Tensor | None) -> None:
        self._bad = loss is not None and self.nonfinite != "ignore" and not math.isfinite(loss)

    def apply_update(self, optimizer: Any, step: int) -> int | None:
        if self._bad:
            return step
        self.strategy.engine.step()
        self.norm = self.strategy.engine.get_global_grad_norm()
        return None
