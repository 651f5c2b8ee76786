"""PaddlePaddle. The same files and names stand in the folders of the other frameworks."""

from . import importing  # isort: skip  # first: it imports Paddle itself

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

NAME = "paddle"

__all__ = [
    "NAME",
    "crossing",
    "debugging",
    "devices",
    "engine",
    "export",
    "foreign",
    "importing",
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
