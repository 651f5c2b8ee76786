"""Optimizers by name. On a CPU they are our own; on other devices those of mindtorch."""

from typing import Any

import torch

from ...errors import ArgumentError
from ...optim.catalog import ADAMW_NAMES
from ...optim.scheduler import scheduler_class
from .._common.helpers import optimizer_options
from ..torch.optimizers import (
    attach,
    attached_schedule,
    build,
    group_of,
    groups,
    is_optimizer,
    learning_rates,
    make_standalone_schedule,
    set_learning_rates,
)
from .adamw import SGD, AdamW

__all__ = [
    "TWO_GROUPS",
    "attach",
    "build",
    "class_and_options",
    "group_of",
    "groups",
    "is_optimizer",
    "learning_rates",
    "attached_schedule",
    "make_standalone_schedule",
    "scheduler_class",
    "set_learning_rates",
]

TWO_GROUPS = False


def class_and_options(args: Any, model: torch.nn.Module | None = None) -> tuple[Any, dict[str, Any]]:
    """The optimizer class for args.optim, and its keyword arguments."""
    name = str(getattr(args.optim, "value", args.optim))
    options = {"lr": args.learning_rate}
    extra = optimizer_options(args.optim_args)
    on_host = model is None or all(p.device.type == "cpu" for p in model.parameters())
    if name in ADAMW_NAMES:
        adam = {"betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}
        return (AdamW if on_host else torch.optim.AdamW), options | adam | extra
    if name == "sgd":
        return (SGD if on_host else torch.optim.SGD), options | extra
    raise ArgumentError(f"optim={name!r} is not supported under mindnlp; use adamw_torch or sgd")
