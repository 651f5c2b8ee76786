"""Collators that pad labels or choices along with the tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...backends import loading
from ...errors import DataError
from .base import DataCollatorMixin, as_mappings, to_backend
from .default import stack
from .padding import lengths_of, main_input, pad, pad_column, padded_length, pads_left, round_up, take_labels


@dataclass
class DataCollatorForTokenClassification(DataCollatorMixin):
    """Pads the samples and their labels (one per token); the loss ignores `label_pad_token_id`."""

    tokenizer: Any
    padding: bool | str = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    label_pad_token_id: int = -100
    return_tensors: str | None = None

    def collate(self, features: Sequence[Any]) -> dict[str, Any]:
        samples, labels = take_labels(as_mappings(features))
        batch = pad(self.tokenizer, samples, self.padding, self.max_length, self.pad_to_multiple_of)
        if labels is None:
            return batch
        width = batch[main_input(self.tokenizer)].shape[1]
        lengths = lengths_of("labels", labels)
        if max(lengths) > width:
            raise DataError(
                f"samples have up to {max(lengths)} labels, but only {width} tokens. Align the labels with "
                "the tokens (word_ids() of the tokenizer's output), with -100 for special tokens."
            )
        batch["labels"] = pad_column("labels", labels, width, self.label_pad_token_id, pads_left(self.tokenizer))
        return batch


@dataclass
class DataCollatorForSeq2Seq(DataCollatorMixin):
    """Pads inputs and target tokens, each to its own length.

    With a `model` that has prepare_decoder_input_ids_from_labels, the batch also contains `decoder_input_ids`, which
    label smoothing requires.
    """

    tokenizer: Any
    model: Any = None
    padding: bool | str = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    label_pad_token_id: int = -100
    return_tensors: str | None = None

    def collate(self, features: Sequence[Any]) -> dict[str, Any]:
        samples, labels = take_labels(as_mappings(features))
        batch = pad(self.tokenizer, samples, self.padding, self.max_length, self.pad_to_multiple_of)
        if labels is None:
            return batch
        lengths = lengths_of("labels", labels)
        if self.padding == "max_length" and self.max_length is None:
            # The tokenizer's limit is for inputs; targets are padded to the longest of the batch.
            width = round_up(max(lengths), self.pad_to_multiple_of)
        else:
            width = padded_length(self.tokenizer, lengths, self.padding, self.max_length, self.pad_to_multiple_of)
        batch["labels"] = pad_column("labels", labels, width, self.label_pad_token_id, pads_left(self.tokenizer))
        if hasattr(self.model, "prepare_decoder_input_ids_from_labels"):
            own = to_backend(batch["labels"], loading.name_of(self.model))
            batch["decoder_input_ids"] = self.model.prepare_decoder_input_ids_from_labels(labels=own)
        return batch


@dataclass
class DataCollatorForMultipleChoice(DataCollatorMixin):
    """Samples whose columns hold one entry per choice become arrays of shape (samples, choices, tokens)."""

    tokenizer: Any
    padding: bool | str = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    return_tensors: str | None = None

    def collate(self, features: Sequence[Any]) -> dict[str, Any]:
        samples, labels = take_labels(as_mappings(features))
        names = [key for key, value in samples[0].items() if value is not None and not isinstance(value, str)]
        if not names:
            raise DataError("the samples have no columns other than labels; tokenize every choice of every sample.")
        choices = self._choices(samples, names)
        flat = [{key: sample[key][choice] for key in names} for sample in samples for choice in range(choices)]
        batch = pad(self.tokenizer, flat, self.padding, self.max_length, self.pad_to_multiple_of)
        batch = {key: column.reshape(len(samples), choices, *column.shape[1:]) for key, column in batch.items()}
        if labels is not None:
            batch["labels"] = np.asarray(to_backend(stack("labels", labels), None), dtype=np.int64)
        return batch

    @staticmethod
    def _choices(samples: Sequence[dict[str, Any]], names: Sequence[str]) -> int:
        counts = {key: lengths_of(key, [sample[key] for sample in samples]) for key in names}
        choices = counts[names[0]][0]
        for key, column in counts.items():
            if set(column) != {choices}:
                raise DataError(
                    f"{key!r} has {column} choices in the samples of the batch; expected {choices} in every column of "
                    "every sample. Drop or fill the samples that differ."
                )
        return choices
