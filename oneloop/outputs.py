"""Return values of training, evaluation and prediction."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

Arrays = Any  # an array, or a tuple, list or dict of arrays


class EvalPrediction:
    """Predictions and labels of one evaluation; unpacks as (predictions, label_ids[, inputs[, losses]])."""

    def __init__(self, predictions: Arrays, label_ids: Arrays, inputs: Arrays = None, losses: Arrays = None) -> None:
        self.predictions = predictions
        self.label_ids = label_ids
        self.inputs = inputs
        self.losses = losses
        more = (value for value in (inputs, losses) if value is not None)
        self.elements: tuple[Arrays, ...] = (predictions, label_ids, *more)

    def __iter__(self) -> Iterator[Arrays]:
        return iter(self.elements)

    def __getitem__(self, index: int) -> Arrays:
        if not isinstance(index, int) or not -len(self.elements) <= index < len(self.elements):
            raise IndexError(f"EvalPrediction has {len(self.elements)} elements; index {index!r} is out of range")
        return self.elements[index]

    def __len__(self) -> int:
        return len(self.elements)


class EvalLoopOutput(NamedTuple):
    predictions: Arrays
    label_ids: Arrays | None
    metrics: dict[str, float] | None
    num_samples: int | None


class PredictionOutput(NamedTuple):
    predictions: Arrays
    label_ids: Arrays | None
    metrics: dict[str, float]


class TrainOutput(NamedTuple):
    global_step: int
    training_loss: float
    metrics: dict[str, float]


class BestRun(NamedTuple):
    """The best trial of a hyperparameter search."""

    run_id: str
    objective: float | list[float]
    hyperparameters: dict[str, Any]
    run_summary: Any = None


def plain_metrics(metrics: Any) -> Any:
    """Metrics as plain Python numbers: NumPy and framework scalars become float or int."""
    if isinstance(metrics, dict):
        return {key: plain_metrics(value) for key, value in metrics.items()}
    if isinstance(metrics, (list, tuple)):
        return type(metrics)(plain_metrics(value) for value in metrics)
    if isinstance(metrics, np.generic):
        return metrics.item()
    if hasattr(metrics, "item") and hasattr(metrics, "shape") and not isinstance(metrics, np.ndarray):
        return metrics.item() if all(size == 1 for size in metrics.shape) else metrics  # a framework's tensor
    return metrics
