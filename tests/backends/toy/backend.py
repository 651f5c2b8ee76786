"""The modules of the toy's backend."""

from . import (
    devices,
    engine,
    external_checkpoint,
    framework_layout,
    loaders,
    memory,
    models,
    nan_hooks,
    optimizers,
    randomness,
    tensors,
    weights,
)

NAME = "toy"
parallel = export = profiling = planning = tracing = chunked_loss = None

__all__ = [
    "NAME",
    "chunked_loss",
    "devices",
    "engine",
    "export",
    "framework_layout",
    "loaders",
    "memory",
    "models",
    "nan_hooks",
    "optimizers",
    "parallel",
    "planning",
    "tracing",
    "profiling",
    "randomness",
    "tensors",
    "external_checkpoint",
    "weights",
]
