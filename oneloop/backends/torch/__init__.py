"""PyTorch. The same files and names stand in the folders of the other frameworks."""

from . import (
    crossing,
    debugging,
    devices,
    engine,
    export,
    foreign,
    loaders,
    memory,
    models,
    optimizers,
    parallel,
    profiling,
    randomness,
    tensors,
    weights,
)

NAME = "torch"

__all__ = [
    "NAME",
    "crossing",
    "debugging",
    "devices",
    "engine",
    "export",
    "foreign",
    "loaders",
    "memory",
    "models",
    "optimizers",
    "parallel",
    "profiling",
    "randomness",
    "tensors",
    "weights",
]
