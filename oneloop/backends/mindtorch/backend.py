"""The modules of this backend: see base.Backend."""

from ..torch import framework_layout, memory, nan_hooks
from . import (
    devices,
    engine,
    external_checkpoint,
    loaders,
    models,
    optimizers,
    patches,
    randomness,
    tensors,
    weights,
)

NAME = "mindtorch"
parallel = export = profiling = planning = tracing = chunked_loss = None  # one process; see docs/mindnlp.md

patches.install()

__all__ = [
    "NAME",
    "framework_layout",
    "nan_hooks",
    "chunked_loss",
    "devices",
    "engine",
    "export",
    "external_checkpoint",
    "loaders",
    "memory",
    "models",
    "optimizers",
    "parallel",
    "planning",
    "profiling",
    "randomness",
    "tensors",
    "tracing",
    "weights",
]
