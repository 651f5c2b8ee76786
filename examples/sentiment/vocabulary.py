"""From text to numbers: ids of characters, and of the n-grams a review contains. NumPy only, for every framework."""

import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

PADDING, UNKNOWN = 0, 1
FILE = "vocabulary.json"


class Vocabulary:
    """Characters and 1-3-grams with their ids; 0 is padding in both."""

    def __init__(self, chars: Sequence[str], grams: Sequence[str], max_length: int = 256):
        self.chars = {char: index for index, char in enumerate(chars, start=2)}
        self.grams = {gram: index for index, gram in enumerate(grams, start=1)}
        self.num_chars, self.num_grams = len(self.chars) + 2, len(self.grams) + 1
        self.max_length = max_length

    @classmethod
    def build(cls, texts: Iterable[str], min_count: int = 2, max_length: int = 256) -> "Vocabulary":
        """Everything that at least `min_count` of these texts contain: pass the training split alone."""
        counts: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        for text in map(clean, texts):
            counts[0].update(set(text))
            counts[1].update(grams_of(text))
        chars, grams = (sorted(item for item, count in c.items() if count >= min_count) for c in counts)
        return cls(chars, grams, max_length)

    def encode(self, text: str) -> dict[str, Any]:
        """`input_ids` in the order of the text; `gram_ids` without order or repeats."""
        text = self.shorten(clean(text))
        known = self.grams
        return {
            "input_ids": [self.chars.get(char, UNKNOWN) for char in text] or [UNKNOWN],
            # Sorted, since the order of a set of strings differs from process to process.
            "gram_ids": sorted(known[gram] for gram in grams_of(text) if gram in known),
        }

    def shorten(self, text: str) -> str:
        """The first and the last part of a long review: people praise or complain at both ends."""
        half = self.max_length // 2
        return text if len(text) <= self.max_length else text[:half] + text[-half:]

    def save_pretrained(self, folder: str | Path) -> None:
        content = {"chars": list(self.chars), "grams": list(self.grams), "max_length": self.max_length}
        Path(folder, FILE).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> "Vocabulary":
        return cls(**json.loads(Path(folder, FILE).read_text(encoding="utf-8")))


def collate(examples: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    """A batch: each kind of ids filled up with padding to the longest of the batch."""
    batch = {}
    for name in ("input_ids", "gram_ids"):
        rows = [example[name] for example in examples]
        batch[name] = np.full((len(rows), max(map(len, rows), default=0) or 1), PADDING, dtype=np.int64)
        for row, ids in zip(batch[name], rows):
            row[: len(ids)] = ids
    if "labels" in examples[0]:
        batch["labels"] = np.array([example["labels"] for example in examples], dtype=np.int64)
    return batch


def clean(text: str) -> str:
    return unicodedata.normalize("NFKC", text).lower()


def grams_of(text: str) -> set[str]:
    """The distinct characters, pairs and triples of neighbouring characters."""
    return {text[i : i + n] for n in (1, 2, 3) for i in range(len(text) - n + 1)}
