"""The small model that the checks train. Its first weights are NumPy's, so they are the same on every device, and in
every framework."""

from typing import Any

import numpy as np

from ..backends import registry

INPUTS, CLASSES = 32, 8


def arrays(width: int) -> dict[str, np.ndarray]:
    """The first weights: [inputs, outputs] for each layer, and biases of zero."""
    random = np.random.default_rng(7)
    sizes = {"first": (INPUTS, width), "second": (width, width), "last": (width, CLASSES)}
    return {name: (random.normal(size=size) / np.sqrt(size[0])).astype("float32") for name, size in sizes.items()}


def rows(count: int = 256) -> list[dict[str, Any]]:
    """Samples that a linear map separates."""
    random = np.random.default_rng(11)
    x = random.normal(size=(count, INPUTS)).astype("float32")
    labels = (x @ random.normal(size=(INPUTS, CLASSES))).argmax(1)
    return [{"x": row, "labels": int(label)} for row, label in zip(x, labels)]


def model(framework: str, width: int = 64) -> Any:
    return registry.resolve(registry.get(framework).acceptance_model)(arrays(width))
