"""Find losses that broadcast: predictions of shape [n, 1] minus labels of shape [n] are n x n differences, and the mean
of them trains the model towards the mean label, without an error from any framework."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DataError
from .loss import logits_of, split_labels

if TYPE_CHECKING:
    from .core import Core

# Losses of regression, from the difference of predictions and labels.
_LOSSES = (np.square, np.abs, lambda d: np.where(np.abs(d) < 1, d * d / 2, np.abs(d) - 0.5))


class BroadcastCheck:
    """Compares the loss of micro-batches with that of shapes that do not match, until one can tell."""

    def __init__(self) -> None:
        self.is_done = False

    def check(self, core: "Core", outputs: Any, inputs: Any, loss: Any) -> None:
        """Raise DataError if the loss, a mean, is one of n x n differences. Values are read for shapes [n, 1] and [n]
        only."""
        tensors = core.backend.tensors
        predictions, labels = logits_of(outputs), split_labels(inputs, core.trainer.label_names)[1]
        if not tensors.is_tensor(predictions) or not tensors.is_tensor(labels):
            self.is_done = True
            return
        shapes = {tuple(predictions.shape), tuple(labels.shape)}
        rows = max(shapes, key=len)[0] if shapes else 0
        if shapes != {(rows, 1), (rows,)} or rows < 2 or "float" not in str(labels.dtype).lower():
            self.is_done = True
            return
        found = _is_broadcast(*(np.asarray(tensors.to_numpy(each), np.float64) for each in (predictions, labels, loss)))
        self.is_done = found is not None
        if found:
            raise DataError(
                f"the predictions have the shape {tuple(predictions.shape)} and the labels {tuple(labels.shape)}, so "
                f"that the loss compares each of the {rows} predictions with all {rows} labels (broadcasting). Give "
                "both the same shape: for example predictions.squeeze(-1) in the model, or labels of the shape [n, 1]."
            )


def _is_broadcast(predictions: np.ndarray, labels: np.ndarray, loss: np.ndarray) -> bool | None:
    """Whether the loss is that of all pairs; None if this batch cannot tell, as where all labels are equal."""
    one, other = predictions.reshape(-1), labels.reshape(-1)
    told = False
    for function in _LOSSES:
        matched, crossed = function(one - other).mean(), function(one[:, None] - other[None, :]).mean()
        if np.isclose(matched, crossed, rtol=1e-3):
            continue
        told = True
        if np.isclose(loss, crossed, rtol=1e-5) and not np.isclose(loss, matched, rtol=1e-4):
            return True
    return False if told else None
