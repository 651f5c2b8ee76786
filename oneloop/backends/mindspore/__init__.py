"""MindSpore. The same files and names stand in the folders of the other frameworks."""

from . import ready  # noqa: I001  before everything else: it looks at what MindSpore needs around it

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

NAME = "mindspore"

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
    "ready",
    "tensors",
    "weights",
]
