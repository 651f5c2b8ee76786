"""MindNLP's torch: `import mindnlp` puts mindtorch, PyTorch's API on MindSpore, in the place of torch.

What works there as it does on PyTorch is taken from the torch folder; the rest is written here. docs/mindnlp.md lists
the differences.
"""

from ..torch import framework_layout, memory, nan_hooks
from . import (
    devices,
    engine,
    loaders,
    models,
    optimizers,
    patches,
    randomness,
    tensors,
    transformers_checkpoint,
    weights,
)

NAME = "mindtorch"

patches.install()

__all__ = [
    "NAME",
    "framework_layout",
    "nan_hooks",
    "devices",
    "engine",
    "transformers_checkpoint",
    "loaders",
    "memory",
    "models",
    "optimizers",
    "randomness",
    "tensors",
    "weights",
]
