"""Token classification: a tag for each word, such as the names in a sentence."""

from typing import Any

import numpy as np

from .base import FINE_TUNING, Form, Task


def encode(rows: list[Any], tokenizer: Any, labels: list[str], max_length: int) -> list[dict[str, Any]]:
    """The tokens of each sentence, and the number of the tag at the first token of each word."""
    samples = []
    for row in rows:
        encoded = tokenizer(row["words"], is_split_into_words=True, truncation=True, max_length=max_length)
        sample, word_ids = dict(encoded), encoded.word_ids()
        if "tags" in row:
            firsts = [word if word != before else None for before, word in zip([None, *word_ids], word_ids)]
            sample["labels"] = [-100 if word is None else labels.index(row["tags"][word]) for word in firsts]
        samples.append(sample)
    return samples


def compute_metrics(output: Any, labels: list[str]) -> dict[str, float]:
    """Accuracy of the tags, and the F1 score of entities if the tags are B-..., I-... and O."""
    names = np.array(labels)
    pairs = [
        (names[predicted[expected != -100]], names[expected[expected != -100]])
        for predicted, expected in zip(output.predictions.argmax(-1), output.label_ids)
    ]
    found, wanted, hits = 0, 0, 0
    for predicted, expected in pairs:
        both = []
        for tags in (predicted, expected):
            entities, start = set(), 0
            for place in range(1, len(tags) + 1):
                goes_on = place < len(tags) and tags[place] == "I-" + tags[start][2:]
                if not goes_on:
                    entities.add((start, place, tags[start][2:])) if tags[start] != "O" else None
                    start = place
            both.append(entities)
        found, wanted, hits = found + len(both[0]), wanted + len(both[1]), hits + len(both[0] & both[1])
    right = sum(int((predicted == expected).sum()) for predicted, expected in pairs)
    metrics = {"accuracy": right / max(1, sum(len(expected) for _, expected in pairs))}
    if all(label == "O" or label[:2] in ("B-", "I-") for label in labels):
        metrics["f1"] = 2 * hits / (found + wanted) if found + wanted else 1.0
    return metrics


def decode(outputs: Any, rows: list[Any], labels: list[str], word_ids: list[Any]) -> list[dict[str, Any]]:
    """The tag of each word; None for words beyond max_length."""
    predictions = []
    for scores, row, words in zip(outputs, rows, word_ids):
        tags: list[str | None] = [None] * len(row["words"])
        for place in reversed(range(len(words))):  # the first token of a word comes last and stays
            if words[place] is not None:
                tags[words[place]] = labels[int(scores[place].argmax())]
        predictions.append({"prediction": tags})
    return predictions


TASK = Task(
    "token-classification",
    "a tag for each word, such as the names in a sentence",
    "AutoModelForTokenClassification",
    (
        Form(
            ("words",),
            encode,
            "tags",
            compute_metrics=compute_metrics,
            decode=decode,
            metric="accuracy",
            needs_word_ids=True,
        ),
    ),
    "DataCollatorForTokenClassification",
    "token-classification",
    "TOKEN_CLS",
    FINE_TUNING,
)
