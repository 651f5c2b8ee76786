"""MindNLP's torch: `import mindnlp` puts mindtorch, PyTorch's API on MindSpore, in the place of torch.

What works there as it does on PyTorch is taken from the torch folder; the rest is written here. docs/mindnlp.md lists
the differences.
"""

from ..torch import crossing, debugging, memory
from . import devices, engine, foreign, loaders, models, optimizers, randomness, standins, tensors, weights

NAME = "mindtorch"

standins.install()

__all__ = [
    "NAME",
    "crossing",
    "debugging",
    "devices",
    "engine",
    "foreign",
    "loaders",
    "memory",
    "models",
    "optimizers",
    "randomness",
    "tensors",
    "weights",
]
