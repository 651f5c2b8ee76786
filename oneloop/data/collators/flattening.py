"""Padding-free packing: all samples of a batch in one row."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import DataError
from .base import DataCollatorMixin, as_mappings, backend_of, column_of, to_backend, to_numpy
from .padding import lengths_of


@dataclass
class DataCollatorWithFlattening(DataCollatorMixin):
    """All samples in one row of shape (1, tokens), without padding.

    `position_ids` restart at every sample, so that attention that uses them (flash attention, or
    `return_flash_attn_kwargs`) keeps samples apart; other attention would mix them. The first label of every sample is
    `separator_id`, so that nothing is predicted across sample boundaries.
    """

    return_tensors: str | None = None
    return_position_ids: bool = True
    separator_id: int = -100
    return_flash_attn_kwargs: bool = False
    return_seq_idx: bool = False
    position_ids_start: int = 0

    def __call__(
        self, features: Sequence[Any], return_tensors: str | None = None, separator_id: int | None = None
    ) -> dict[str, Any]:
        if separator_id is None:
            return super().__call__(features, return_tensors)
        backend = backend_of(self.return_tensors if return_tensors is None else return_tensors)
        return to_backend(self.collate(features, separator_id), backend)

    def collate(self, features: Sequence[Any], separator_id: int | None = None) -> dict[str, Any]:
        samples = as_mappings(features)
        ids = [to_numpy(value) for value in column_of(samples, "input_ids")]
        lengths = np.array(lengths_of("input_ids", ids))
        labels = [to_numpy(value) for value in column_of(samples, "labels")] if "labels" in samples[0] else ids
        if [len(row) for row in labels] != lengths.tolist():
            raise DataError(
                f"'labels' has lengths {[len(row) for row in labels]}, but 'input_ids' has {lengths.tolist()}. Packing "
                "requires one label per token."
            )
        ends = np.cumsum(lengths)
        starts = ends - lengths

        batch: dict[str, Any] = {"input_ids": np.concatenate(ids).astype(np.int64)[None]}
        batch["labels"] = np.concatenate(labels).astype(np.int64)[None]
        batch["labels"][0, starts[lengths > 0]] = self.separator_id if separator_id is None else separator_id
        if self.return_position_ids:
            positions = np.arange(ends[-1]) - np.repeat(starts, lengths) + self.position_ids_start
            batch["position_ids"] = positions[None]
        if self.return_seq_idx:
            batch["seq_idx"] = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)[None]
        if self.return_flash_attn_kwargs:
            edges = np.concatenate([[0], ends]).astype(np.int32)
            longest = int(lengths.max())
            batch.update(cu_seq_lens_q=edges, cu_seq_lens_k=edges, max_length_q=longest, max_length_k=longest)
        return batch
