"""Regression: a number for a text or a pair of texts."""

from typing import Any

import numpy as np

from .base import FINE_TUNING, Form, Task


def encode(rows: list[Any], tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
    """The tokens of each text, or pair of texts, and its number."""
    samples = []
    for row in rows:
        texts = [row["text"], row["text_pair"]] if "text_pair" in row else [row["text"]]
        sample = dict(tokenizer(*texts, truncation=True, max_length=max_length))
        if "number" in row:
            sample["labels"] = float(row["number"])
        samples.append(sample)
    return samples


def compute_metrics(output: Any) -> dict[str, float]:
    """Root of the mean squared error, mean absolute error, and Pearson's correlation."""
    predicted, expected = output.predictions.reshape(-1).astype(float), output.label_ids.reshape(-1).astype(float)
    error = predicted - expected
    varies = len(error) > 1 and predicted.std() > 0 and expected.std() > 0
    return {
        "rmse": float(np.sqrt(np.mean(error**2))),
        "mae": float(np.mean(np.abs(error))),
        "pearson": float(np.corrcoef(predicted, expected)[0, 1]) if varies else 0.0,
    }


def decode(outputs: Any, rows: list[Any]) -> list[dict[str, Any]]:
    return [{"prediction": float(value)} for value in outputs.reshape(-1)]


TASK = Task(
    "regression",
    "a number for a text or a pair of texts",
    "AutoModelForSequenceClassification",
    (
        Form(
            ("text",),
            encode,
            "number",
            optional=("text_pair",),
            compute_metrics=compute_metrics,
            decode=decode,
            metric="rmse",
            model_options={"num_labels": 1, "problem_type": "regression"},
        ),
    ),
    "DataCollatorWithPadding",
    "text-classification",
    "SEQ_CLS",
    FINE_TUNING,
)
