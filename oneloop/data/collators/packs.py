"""Batches of packs: rows of several documents, with what keeps the documents apart.

- position_ids (rows, width): the place of each token in its document.
- document_ids (rows, width): the number of its document in the row, from 0; padding has the next number.
- attention_mask (rows, 1, width, width): whether a token (third axis) may attend to another (fourth).
- attn_mask_startend_row_indices (rows, 1, width, 1): the end of its document, from where on tokens do not attend to it,
  as PaddlePaddle's flashmask attention takes it.
- cu_seq_lens_q and three more: what flash attention takes in most libraries, with all documents in one row.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..packed_documents import DOCUMENTS, MASK, POSITIONS, ROW_INDICES, SEQUENCE_LENGTHS, Columns
from .base import to_backend


class PackedBatch(dict):
    """A batch by column. `useful_tokens` are those of each row that are not padding."""

    useful_tokens: np.ndarray


class PackCollator:
    """Puts packs into rows, padded to the longest.

    `columns` are added to the tokens and labels, to keep documents apart: those above that the model takes. Padding is
    like a document of its own, so that no token is without any other to attend to.
    """

    def __init__(
        self, backend: str | None, columns: Sequence[str], pad_token_id: int = 0, causal: bool | None = True
    ) -> None:
        self.backend = backend
        self.columns = tuple(columns)
        self.pad_token_id = pad_token_id
        self.causal = causal  # whether MASK also excludes the tokens that follow

    def __call__(self, packs: Sequence[Columns]) -> PackedBatch:
        sizes = [len(pack["input_ids"]) for pack in packs]
        flat = SEQUENCE_LENGTHS in self.columns
        batch = _in_one_row(packs) if flat else self._in_rows(packs, max(sizes))
        made = PackedBatch(to_backend(batch, self.backend))
        made.useful_tokens = np.array([sum(sizes)] if flat else sizes)
        return made

    def _in_rows(self, packs: Sequence[Columns], width: int) -> Columns:
        batch = {}
        for name in packs[0]:
            if name == "lengths":
                continue
            fill = {"input_ids": self.pad_token_id, "labels": -100}.get(name, 0)
            batch[name] = np.full((len(packs), width), fill, packs[0][name].dtype)
            for row, pack in zip(batch[name], packs):
                row[: len(pack[name])] = pack[name]
        return batch | self._apart(packs, width)

    def _apart(self, packs: Sequence[Columns], width: int) -> Columns:
        """The columns that keep documents apart; of all rows at once, as if they were one."""
        rest = [[width - len(pack["input_ids"])] for pack in packs]
        lengths = np.concatenate([part for pack, left in zip(packs, rest) for part in (pack["lengths"], left)])
        rows = (len(packs), width)
        found: Columns = {}
        if POSITIONS in self.columns:
            found[POSITIONS] = (np.arange(len(packs) * width) - _starts(lengths)).reshape(rows)
        if DOCUMENTS in self.columns or MASK in self.columns:
            numbers = [np.arange(len(pack["lengths"]) + 1) for pack in packs]
            documents = np.repeat(np.concatenate(numbers), lengths).reshape(rows)
        if DOCUMENTS in self.columns:
            found[DOCUMENTS] = documents
        if MASK in self.columns:
            mask = documents[:, None, :, None] == documents[:, None, None, :]
            found[MASK] = mask & np.tri(width, dtype=bool) if self.causal else mask
        if ROW_INDICES in self.columns:
            ends = np.repeat(np.cumsum(lengths), lengths).reshape(rows) - width * np.arange(len(packs))[:, None]
            found[ROW_INDICES] = ends.astype(np.int32)[:, None, :, None]
        return found


def _in_one_row(packs: Sequence[Columns]) -> dict[str, Any]:
    """All documents in a single row, without padding."""
    batch: dict[str, Any] = {
        name: np.concatenate([pack[name] for pack in packs])[None] for name in packs[0] if name != "lengths"
    }
    lengths = np.concatenate([pack["lengths"] for pack in packs])
    lengths = lengths[lengths > 0]
    ends = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    longest = int(lengths.max())
    batch[POSITIONS] = (np.arange(ends[-1]) - _starts(lengths))[None]
    return batch | {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}


def _starts(lengths: np.ndarray) -> np.ndarray:
    """For each token, where its document starts."""
    return np.repeat(np.cumsum(lengths) - lengths, lengths)
