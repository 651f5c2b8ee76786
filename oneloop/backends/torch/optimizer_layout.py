"""The layout of torch.optim's state in checkpoints: a count and the moments of each parameter. Does not import
torch."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..registry import OptimizerLayout


def _step(stored: Mapping[str, Any], name: str, updates: int) -> int:
    found = stored.get(f"{name}:step")
    return updates if found is None else int(found.array())


def _counts(steps: Mapping[str, tuple[int | None, bool]], own: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}:step": np.array(step, dtype=np.float32) for name, (step, is_adam) in steps.items() if is_adam}


LAYOUT = OptimizerLayout(
    words={"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq", "momentum_buffer": "momentum_buffer"},
    counters=("step",),
    step=_step,
    counts=_counts,
)
