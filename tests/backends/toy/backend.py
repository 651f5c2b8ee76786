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
parallel = export = profiling = planning = tracing = None

__all__ = [
    "NAME",
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
