"""The modules of this backend: see base.Backend."""

from . import (
    chunked_loss,
    devices,
    engine,
    export,
    external_checkpoint,
    framework_layout,
    loaders,
    memory,
    models,
    nan_hooks,
    optimizers,
    parallel,
    planning,
    profiling,
    randomness,
    tensors,
    tracing,
    weights,
)

NAME = "torch"

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
