"""Classification: one label or several for a text or a pair of texts."""

from typing import Any

import numpy as np

from .base import FINE_TUNING, Form, Task


def encode_label(rows: list[Any], tokenizer: Any, labels: list[str], max_length: int) -> list[dict[str, Any]]:
    """The tokens of each text, or pair of texts, and the number of its label."""
    samples = []
    for row in rows:
        texts = [row["text"], row["text_pair"]] if "text_pair" in row else [row["text"]]
        sample = dict(tokenizer(*texts, truncation=True, max_length=max_length))
        if "label" in row:
            sample["labels"] = labels.index(row["label"])
        samples.append(sample)
    return samples


def encode_labels(rows: list[Any], tokenizer: Any, labels: list[str], max_length: int) -> list[dict[str, Any]]:
    """The tokens of each text, or pair of texts, and 1.0 for each of its labels."""
    samples = []
    for row in rows:
        texts = [row["text"], row["text_pair"]] if "text_pair" in row else [row["text"]]
        sample = dict(tokenizer(*texts, truncation=True, max_length=max_length))
        if "labels" in row:
            sample["labels"] = [float(label in row["labels"]) for label in labels]
        samples.append(sample)
    return samples


def label_metrics(output: Any, labels: list[str]) -> dict[str, float]:
    """Accuracy, and the mean F1 score of the labels that occur."""
    predicted, expected = output.predictions.argmax(-1), output.label_ids
    scores = []
    for label in range(len(labels)):
        hits = np.sum((predicted == label) & (expected == label))
        counted = np.sum(predicted == label) + np.sum(expected == label)
        if counted:
            scores.append(2 * hits / counted)
    return {"accuracy": float(np.mean(predicted == expected)), "f1": float(np.mean(scores))}


def labels_metrics(output: Any) -> dict[str, float]:
    """The F1 score of all labels together, and the share of rows whose labels are all right."""
    predicted, expected = output.predictions > 0, output.label_ids > 0.5
    counted = np.sum(predicted) + np.sum(expected)
    f1 = 2 * np.sum(predicted & expected) / counted if counted else 1.0
    return {"f1": float(f1), "exact_match": float(np.mean(np.all(predicted == expected, axis=-1)))}


def decode_label(outputs: Any, rows: list[Any], labels: list[str]) -> list[dict[str, Any]]:
    shifted = np.exp(outputs - outputs.max(-1, keepdims=True))
    scores = shifted / shifted.sum(-1, keepdims=True)
    return [{"prediction": labels[row.argmax()], "score": round(float(row.max()), 6)} for row in scores]


def decode_labels(outputs: Any, rows: list[Any], labels: list[str]) -> list[dict[str, Any]]:
    scores = 1 / (1 + np.exp(-np.clip(outputs, -80, 80)))
    return [
        {
            "prediction": [label for label, value in zip(labels, row) if value > 0.5],
            "scores": {label: round(float(value), 6) for label, value in zip(labels, row)},
        }
        for row in scores
    ]


TASK = Task(
    "classification",
    "a label, or several, for a text or a pair of texts",
    "AutoModelForSequenceClassification",
    (
        Form(
            ("text",),
            encode_label,
            "label",
            optional=("text_pair",),
            compute_metrics=label_metrics,
            decode=decode_label,
            metric="accuracy",
        ),
        Form(
            ("text",),
            encode_labels,
            "labels",
            optional=("text_pair",),
            compute_metrics=labels_metrics,
            decode=decode_labels,
            metric="f1",
            model_options={"problem_type": "multi_label_classification"},
        ),
    ),
    "DataCollatorWithPadding",
    "text-classification",
    "SEQ_CLS",
    FINE_TUNING,
)
