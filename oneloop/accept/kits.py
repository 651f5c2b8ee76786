"""The small model that the checks train. Its first weights are NumPy's, so they are the same on every device, and in
every framework."""

from importlib import import_module
from typing import Any

import numpy as np

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
    return {"torch": _torch, "paddle": _paddle, "mindspore": _mindspore}[framework](width)


def _torch(width: int) -> Any:
    torch = import_module("torch")
    nn: Any = torch.nn

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, weight in arrays(width).items():
                layer = nn.Linear(*weight.shape)
                layer.weight.data = torch.from_numpy(weight.T.copy())
                layer.bias.data.zero_()
                setattr(self, name, layer)

        def forward(self, x: Any, labels: Any = None) -> dict[str, Any]:
            logits = self.last(torch.relu(self.second(torch.relu(self.first(x)))))
            loss = None if labels is None else nn.functional.cross_entropy(logits.float(), labels)
            return {"loss": loss, "logits": logits}

    return Classifier()


def _paddle(width: int) -> Any:
    paddle = import_module("paddle")
    nn: Any = paddle.nn

    class Classifier(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            for name, weight in arrays(width).items():
                layer = nn.Linear(*weight.shape)
                layer.weight.set_value(weight)
                layer.bias.set_value(np.zeros(weight.shape[1], "float32"))
                setattr(self, name, layer)

        def forward(self, x: Any, labels: Any = None) -> dict[str, Any]:
            relu = nn.functional.relu
            logits = self.last(relu(self.second(relu(self.first(x)))))
            loss = None if labels is None else nn.functional.cross_entropy(logits.astype("float32"), labels)
            return {"loss": loss, "logits": logits}

    return Classifier()


def _mindspore(width: int) -> Any:
    ms = import_module("mindspore")
    nn: Any = import_module("mindspore.nn")
    ops = import_module("mindspore.ops")

    class Classifier(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            for name, weight in arrays(width).items():
                layer = nn.Dense(*weight.shape, weight_init=ms.Tensor(weight.T.copy()), bias_init="zeros")
                setattr(self, name, layer)

        def construct(self, x: Any, labels: Any = None) -> Any:
            logits = self.last(ops.relu(self.second(ops.relu(self.first(x)))))
            if labels is None:
                return logits
            return ops.cross_entropy(ops.cast(logits, ms.float32), labels), logits

    return Classifier()
