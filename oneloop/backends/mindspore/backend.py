"""The modules of this backend: see base.Backend."""

from . import bootstrap  # noqa: I001  before everything else: it looks at what MindSpore needs around it

from . import (
    chunked_loss,
    framework_layout,
    nan_hooks,
    devices,
    engine,
    export,
    external_checkpoint,
    loaders,
    memory,
    models,
    optimizers,
    parallel,
    planning,
    profiling,
    randomness,
    tensors,
    tracing,
    weights,
)

NAME = "mindspore"

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
    "bootstrap",
    "tensors",
    "tracing",
    "weights",
]
