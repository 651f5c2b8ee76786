"""The sizes of axes that a model can be divided by, found without dividing it."""

from typing import Any

from ...distributed.mesh import EXPERT, SEQUENCE, TENSOR
from ...errors import OneloopError
from .expert_parallel import is_experts
from .models import base_of
from .tensor_division import styles_of


def fits(core: Any, axis: str, size: int) -> bool:
    """Whether the model can be divided by so many processes along an axis."""
    return _FITS[axis](core, size)


def _tensor(core: Any, size: int) -> bool:
    try:
        styles_of(core.trainer.model, core.trainer.args.tensor_parallel_plan, size)
    except OneloopError:
        return False
    return True


def _sequence(core: Any, size: int) -> bool:
    """By the heads; what else a model needs for it shows when a step is simulated."""
    heads = getattr(getattr(base_of(core.trainer.model), "config", None), "num_attention_heads", None)
    return isinstance(heads, int) and heads % size == 0


def _expert(core: Any, size: int) -> bool:
    found: list[Any] = [module for module in base_of(core.trainer.model).modules() if is_experts(module)]
    return bool(found) and all(module.num_experts % size == 0 for module in found)


_FITS = {TENSOR: _tensor, SEQUENCE: _sequence, EXPERT: _expert}
