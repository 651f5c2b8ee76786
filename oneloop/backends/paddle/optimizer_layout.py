"""The layout of Paddle's optimizer state in checkpoints: powers of the betas instead of a count. Does not import
Paddle."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..registry import OptimizerLayout


def _step(stored: Mapping[str, Any], name: str, updates: int) -> int:
    return updates  # the powers underflow in a long run, so they cannot be used


def _counts(steps: Mapping[str, tuple[int | None, bool]], own: Mapping[str, Any]) -> dict[str, Any]:
    betas = {
        name: (group.get("beta1", 0.9), group.get("beta2", 0.999)) for group in own["groups"] for name in group["names"]
    }
    return {
        f"{name}:beta{i}_pow_acc": np.array([beta ** ((step or 0) + 1)], dtype=np.float32)
        for name, (step, is_adam) in steps.items()
        if is_adam
        for i, beta in enumerate(betas[name], start=1)
    }


LAYOUT = OptimizerLayout(
    words={"moment1": "exp_avg", "moment2": "exp_avg_sq", "velocity": "momentum_buffer"},
    counters=("beta1_pow_acc", "beta2_pow_acc"),
    step=_step,
    counts=_counts,
)
