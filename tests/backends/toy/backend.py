"""The modules of the toy's backend."""

from . import (
    devices,
    engine,
    framework_layout,
    loaders,
    memory,
    models,
    nan_hooks,
    optimizers,
    randomness,
    tensors,
    transformers_checkpoint,
    weights,
)

NAME = "toy"
parallel = export = profiling = planning = None

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
    "profiling",
    "randomness",
    "tensors",
    "transformers_checkpoint",
    "weights",
]
