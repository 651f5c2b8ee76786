"""The layout of MindSpore's optimizer state in checkpoints: a count and the moments of each parameter, also for SGD;
its own AdamW has one count for all. Does not import MindSpore."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..registry import OptimizerLayout


def _step(stored: Mapping[str, Any], name: str, updates: int) -> int:
    found = stored.get(f"{name}:step", stored.get(":state_step"))
    return updates if found is None else int(found.array().reshape(-1)[0])


def _counts(steps: Mapping[str, tuple[int | None, bool]], own: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}:step": np.array(step or 0, np.float32) for name, (step, _) in steps.items()}


LAYOUT = OptimizerLayout(
    words={"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq", "momentum_buffer": "momentum_buffer"},
    counters=("step", "state_step"),
    step=_step,
    counts=_counts,
)
