"""Clipping by methods of a subclass: overrides of _clip_grad_norm and _get_grad_norm."""

from functools import lru_cache
from typing import TYPE_CHECKING

from ..introspect import class_overrides

if TYPE_CHECKING:
    from .core import Core

# With what to override instead where they cannot be called.
CLIPPING = dict.fromkeys(("_clip_grad_norm", "_get_grad_norm"), "a callback's on_pre_optimizer_step")


def can_clip(core: "Core") -> bool:
    """Whether gradients are attributes of the parameters, and whole: not on MindSpore, nor with sharding or tensor
    parallelism."""
    strategy = core.strategy
    return not (core.backend.engine.RECORDS_TRAINING_STEP or strategy.is_sharded or strategy.divides_gradients)


@lru_cache(maxsize=64)  # asked at each update
def clips_itself(trainer_class: type) -> bool:
    """Whether a subclass has a clipping or a gradient norm of its own."""
    return any(class_overrides(trainer_class, name) for name in CLIPPING)


def clip(core: "Core") -> None:
    """Clip the gradients by the methods of the subclass, then ask for the norm to log."""
    trainer = core.trainer
    model, norm = trainer.model_wrapped, None
    if trainer.args.max_grad_norm:
        norm = trainer._clip_grad_norm(model)
    core.engine.norm = trainer._get_grad_norm(model, grad_norm=norm)
