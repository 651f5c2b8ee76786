"""The model that `oneloop accept` trains, in MindSpore."""

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops


class Classifier(nn.Cell):
    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        super().__init__()
        for name, weight in weights.items():
            layer = nn.Dense(*weight.shape, weight_init=ms.Tensor(weight.T.copy()), bias_init="zeros")
            setattr(self, name, layer)

    def construct(self, x: Any, labels: Any = None) -> Any:
        logits = self.last(ops.relu(self.second(ops.relu(self.first(x)))))
        if labels is None:
            return logits
        return ops.cross_entropy(ops.cast(logits, ms.float32), labels), logits
