"""Permutation language modelling, as used to train XLNet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import ArgumentError
from .base import check_samples
from .language import RandomCollator, special_tokens
from .padding import pad


@dataclass
class DataCollatorForPermutationLanguageModeling(RandomCollator):
    """Predicts spans of 1 to `max_span_length` tokens, about `plm_probability` of all tokens.

    Returns input_ids, perm_mask (1: may not attend), target_mapping and labels. Lengths are padded to even numbers,
    since both halves of a text use the same order.
    """

    tokenizer: Any
    plm_probability: float = 1 / 6
    max_span_length: int = 5
    return_tensors: str | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if getattr(self.tokenizer, "mask_token", None) is None:
            raise ArgumentError(
                f"{type(self.tokenizer).__name__} has no mask token, which permutation language modelling requires. "
                "Add one: tokenizer.add_special_tokens({'mask_token': '<mask>'})."
            )
        if not 0 < self.plm_probability <= 1 or self.max_span_length < 1:
            raise ArgumentError(
                f"Invalid plm_probability={self.plm_probability!r}, max_span_length={self.max_span_length!r}: expected "
                "a number above 0 and at most 1, and a length of at least 1."
            )

    def collate(self, features: Sequence[Any]) -> dict[str, Any]:
        check_samples(features)
        mapping = isinstance(features[0], Mapping)
        samples = [{"input_ids": sample["input_ids"] if mapping else sample} for sample in features]
        ids = pad(self.tokenizer, samples, pad_to_multiple_of=2)["input_ids"]
        rows, width = ids.shape
        special = special_tokens(self.tokenizer, ids)
        predicted = self._spans(rows, width) & ~special

        # A position attends to those earlier in a random order. Ordinary tokens that are not predicted come first
        # (-1), so that all positions see them; special tokens have their own position but are never hidden.
        half = self._generator().random((rows, width // 2)).argsort(axis=1)
        order = np.concatenate([half, half + width // 2], axis=1)
        order[~predicted & ~special] = -1
        hidden = (order[:, :, None] <= order[:, None, :]) & predicted[:, None, :]
        return {
            "input_ids": np.where(predicted, self.tokenizer.mask_token_id, ids),
            "perm_mask": hidden.astype(np.float32),
            "target_mapping": np.repeat(np.eye(width, dtype=np.float32)[None], rows, axis=0),
            "labels": np.where(predicted, ids, -100),
        }

    def _spans(self, rows: int, width: int) -> np.ndarray:
        """Each span is placed at random in a window that is 1 / plm_probability times its length."""
        most = -(-width // max(1, int(1 / self.plm_probability)))
        size, place = self._generator().random((2, rows, most))
        spans = 1 + (size * self.max_span_length).astype(int)
        stretches = np.maximum((spans / self.plm_probability).astype(int), spans)
        begins = np.cumsum(stretches, axis=1) - stretches + (place * (stretches - spans + 1)).astype(int)
        edges = np.zeros((rows, width + 1), int)
        row = np.arange(rows)[:, None]
        np.add.at(edges, (row, np.minimum(begins, width)), 1)
        np.add.at(edges, (row, np.minimum(begins + spans, width)), -1)
        return np.cumsum(edges, axis=1)[:, :width] > 0
