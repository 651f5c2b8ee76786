"""Collators that create labels from the input text: causal and masked language modelling, by token or whole word."""

import multiprocessing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...distributed.world import world
from ...errors import ArgumentError, DataError
from .. import worker_seeding
from .base import DataCollatorMixin, as_mappings, check_samples
from .padding import pad, pad_token_id, pads_left, take_labels


class RandomCollator(DataCollatorMixin):
    """A collator that draws random numbers: from its own generator if it has a seed, else from NumPy's global one."""

    seed: int | None = None
    batch_index: int | None = None  # of the mesh: processes with the same batch draw the same numbers
    _stream: tuple[list[int], np.random.Generator] | None = None

    def _generator(self) -> Any:
        """An object with random(size): a Generator, or np.random, whose state is in checkpoints."""
        if self.seed is None:
            return np.random
        if worker_seeding.current is not None:  # in a worker: seeded by the batch's position in the run
            return np.random.default_rng([self.seed, *worker_seeding.current])
        # Workers and ranks with the same random numbers would mask the same positions.
        number = world().rank if self.batch_index is None else self.batch_index
        origin = [self.seed, number, *multiprocessing.current_process()._identity]
        if self._stream is None or self._stream[0] != origin:
            self._stream = (origin, np.random.default_rng(origin))
        return self._stream[1]

    def state_dict(self) -> dict[str, Any]:
        """The state of the collator's generator, for the checkpoint."""
        return (
            {} if self._stream is None else {"origin": self._stream[0], "stream": self._stream[1].bit_generator.state}
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            generator = np.random.default_rng(state["origin"])
            generator.bit_generator.state = state["stream"]
            self._stream = (list(state["origin"]), generator)


@dataclass
class DataCollatorForLanguageModeling(RandomCollator):
    """Pads token ids and creates labels: masked tokens (`mlm=True`), or a copy of the input without padding.

    Of the tokens selected with `mlm_probability`, `mask_replace_prob` become the mask token and `random_replace_prob` a
    random token; the rest are unchanged. Special tokens are never selected, and a batch has at least one masked token.

    With `whole_word_mask` all tokens of a selected word are masked. Word boundaries come from `offset_mapping`, or
    without that column, from a leading "##" and the positions in `chinese_ref`.
    """

    tokenizer: Any
    mlm: bool = True
    whole_word_mask: bool = False
    mlm_probability: float | None = 0.15
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1
    pad_to_multiple_of: int | None = None
    return_tensors: str | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.whole_word_mask and not self.mlm:
            raise ArgumentError(
                "whole_word_mask=True requires masked language modelling, but mlm is False; set mlm=True."
            )
        if not self.mlm:
            return
        if getattr(self.tokenizer, "mask_token", None) is None:
            raise ArgumentError(
                f"{type(self.tokenizer).__name__} has no mask token, which mlm=True requires. Pass mlm=False for "
                "causal language modelling, or add one: tokenizer.add_special_tokens({'mask_token': '[MASK]'})."
            )
        for name in ("mlm_probability", "mask_replace_prob", "random_replace_prob"):
            value = getattr(self, name)
            if value is None or not 0 <= value <= 1:
                raise ArgumentError(f"Invalid {name}={value!r}: expected a number from 0 to 1.")
        total = self.mask_replace_prob + self.random_replace_prob
        if total > 1 + 1e-9:
            raise ArgumentError(f"mask_replace_prob + random_replace_prob is {total:g}; expected at most 1.")

    def collate(self, features: Sequence[Any]) -> dict[str, Any]:
        check_samples(features)
        bare = isinstance(features[0], (list, tuple)) or hasattr(features[0], "shape")
        samples = [{"input_ids": ids} for ids in features] if bare else take_labels(as_mappings(features))[0]
        chinese = None
        if "chinese_ref" in samples[0]:
            chinese = [sample["chinese_ref"] for sample in samples]
            samples = [{key: value for key, value in sample.items() if key != "chinese_ref"} for sample in samples]
        batch = pad(self.tokenizer, samples, pad_to_multiple_of=self.pad_to_multiple_of)
        if bare:
            batch = {"input_ids": batch["input_ids"]}
        special, offsets = batch.pop("special_tokens_mask", None), batch.pop("offset_mapping", None)
        if not self.mlm:
            labels = batch["input_ids"].copy()
            labels[labels == pad_token_id(self.tokenizer)] = -100
            batch["labels"] = labels
            return batch
        ids = batch["input_ids"]
        special = special_tokens(self.tokenizer, ids) if special is None else special.astype(bool)
        starts = self._word_starts(ids, offsets, chinese) if self.whole_word_mask else None
        batch["input_ids"], batch["labels"] = self.mask_tokens(ids, special, starts)
        return batch

    def mask_tokens(
        self, ids: np.ndarray, special: np.ndarray, starts: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and labels; with `starts`, all tokens of a word are treated like its first one."""
        choice, fate = self._generator().random((2, *ids.shape))
        if starts is not None:
            # A special token ends a word; a continuation after it takes its number, which nothing else uses.
            place = np.where(starts | special, np.arange(ids.shape[1]), 0)
            choice = np.take_along_axis(choice, np.maximum.accumulate(place, axis=1), axis=1)
        choice = np.where(special, 2.0, choice)
        chosen = choice < self.mlm_probability
        if self.mlm_probability and not chosen.any():
            # The mean over no labels is NaN, so mask the token that came closest to being selected.
            chosen = (choice == choice.min()) & ~special
        masked = chosen & (fate < self.mask_replace_prob)
        swapped = chosen & ~masked & (fate < self.mask_replace_prob + self.random_replace_prob)
        inputs = ids.copy()
        inputs[masked] = self.tokenizer.mask_token_id
        if swapped.any():
            # Within its band `fate` is uniform again, so it also selects the token.
            share = (fate[swapped] - self.mask_replace_prob) / self.random_replace_prob
            size = len(self.tokenizer)
            inputs[swapped] = np.minimum((share * size).astype(ids.dtype), size - 1)
        return inputs, np.where(chosen, ids, -100)

    def _word_starts(self, ids: np.ndarray, offsets: np.ndarray | None, chinese: Sequence[Any] | None) -> np.ndarray:
        if offsets is not None:
            starts = np.ones(ids.shape, bool)
            starts[:, 1:] = offsets[:, 1:, 0] != offsets[:, :-1, 1]
            return starts
        rows = [self.tokenizer.convert_ids_to_tokens(row) for row in ids.tolist()]
        starts = np.array([[not str(token).startswith("##") for token in row] for row in rows])
        if chinese is not None:
            # Relative to the first token of the text, which left padding shifts.
            shifts = np.zeros(len(ids), int)
            if pads_left(self.tokenizer):
                shifts = (ids != pad_token_id(self.tokenizer)).argmax(axis=1)
            for row, shift, positions in zip(starts, shifts, chinese, strict=True):
                places = np.asarray(positions, dtype=int) + shift
                row[places[places < len(row)]] = False  # the text may have been truncated since
        return starts


@dataclass
class DataCollatorForWholeWordMask(DataCollatorForLanguageModeling):
    """`DataCollatorForLanguageModeling` with whole_word_mask=True."""

    whole_word_mask: bool = True


@dataclass
class DataCollatorForSOP(DataCollatorForLanguageModeling):
    """Masked language modelling plus `sentence_order_label`, which every sample must have."""

    def collate(self, features: Sequence[Any]) -> dict[str, Any]:
        check_samples(features)
        if not isinstance(features[0], Mapping) or "sentence_order_label" not in features[0]:
            raise DataError(
                "sentence order prediction requires 'sentence_order_label' in every sample: 0 for two segments in "
                "order, 1 for swapped ones. Without it, use DataCollatorForLanguageModeling."
            )
        return super().collate(features)


def special_tokens(tokenizer: Any, ids: np.ndarray) -> np.ndarray:
    """A mask of special tokens and padding."""
    rows = [tokenizer.get_special_tokens_mask(row, already_has_special_tokens=True) for row in ids.tolist()]
    return np.array(rows, dtype=bool) | (ids == pad_token_id(tokenizer))
