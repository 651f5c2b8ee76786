"""debug="underflow_overflow": report the layer in which the first non-finite value appears."""

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np

from .._common import nan_hooks
from .models import unwrap
from .tensors import is_floating, to_numpy


def _is_floating(value: Any) -> bool:
    return isinstance(value, ms.Tensor) and is_floating(value)


def _count(value: ms.Tensor) -> tuple[int, int]:
    finite = np.isfinite(to_numpy(value))
    return int((~finite).sum()), finite.size


def watch(model: Any, step: Callable[[], int]) -> Callable[[], None]:
    """Check every layer in each forward pass; the returned function removes the hooks."""
    return nan_hooks.watch_layers(
        unwrap(model).cells_and_names(),
        step,
        listen=lambda cell, function: cell.register_forward_hook(function),
        weights_of=lambda cell: [p for _, p in cell.parameters_and_names(expand=False)],
        is_floating=_is_floating,
        count=_count,
    )
