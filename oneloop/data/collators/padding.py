"""Padding in NumPy, using the tokenizer's properties: its pad token, padding side and input names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import ArgumentError, DataError, a_type
from .base import DataCollatorMixin, as_mappings, column_of, to_numpy
from .default import LABEL_ALIASES, rename_labels, stack

# pad() of these classes is equivalent to `pad` below, unless a subclass overrides it.
_KNOWN_BASES = ("PreTrainedTokenizerBase.", "PretrainedTokenizerBase.")


@dataclass
class DataCollatorWithPadding(DataCollatorMixin):
    """Pads tokenized samples to one length; other columns are stacked, `label` and `label_ids` become `labels`.

    padding: True or "longest", "max_length" (then max_length, or the tokenizer's model_max_length), or False.
    """

    tokenizer: Any
    padding: bool | str = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    return_tensors: str | None = None

    def collate(self, features: Sequence[Any]) -> dict[str, Any]:
        return rename_labels(
            pad(self.tokenizer, as_mappings(features), self.padding, self.max_length, self.pad_to_multiple_of)
        )


def pad(
    tokenizer: Any,
    samples: Sequence[Mapping[str, Any]],
    padding: bool | str = True,
    max_length: int | None = None,
    pad_to_multiple_of: int | None = None,
) -> dict[str, Any]:
    """Pad tokenized samples into a batch; columns that are not the tokenizer's are stacked."""
    if not _pads_by_facts(tokenizer):
        return _pad_by_method(tokenizer, samples, padding, max_length, pad_to_multiple_of)
    names = tokenizer.model_input_names
    main = main_input(tokenizer)
    if main not in samples[0]:
        raise DataError(
            f"padding requires {main!r}, but the samples have only {sorted(map(str, samples[0]))}. Tokenize the "
            "dataset first; if it is tokenized, check that remove_unused_columns does not drop the tokens."
        )
    lengths = lengths_of(main, column_of(samples, main))
    width = padded_length(tokenizer, lengths, padding, max_length, pad_to_multiple_of)
    left = pads_left(tokenizer)
    fills = {"attention_mask": 0, "special_tokens_mask": 1, "position_ids": 0, "offset_mapping": 0}
    fills["token_type_ids"] = getattr(tokenizer, "pad_token_type_id", 0)
    # Read only when needed: reading an unset pad token raises or warns.
    fills[main] = 0 if min(lengths) == width else _pad_token(tokenizer, lengths)

    batch: dict[str, Any] = {}
    for key in samples[0]:
        values = column_of(samples, key)
        if key in fills and values[0] is not None and not _is_matrix(key, values[0]):
            if key != main and lengths_of(key, values) != lengths:
                raise DataError(
                    f"{key!r} has lengths {lengths_of(key, values)}, but {main!r} has {lengths}; expected equal."
                )
            batch[key] = pad_column(key, values, width, fills[key], left)
        else:
            column = stack(key, values)
            if column is not None:
                batch[key] = column
    if "attention_mask" in names and "attention_mask" not in batch:
        place = np.arange(width - 1, -1, -1) if left else np.arange(width)
        batch["attention_mask"] = (place < np.array(lengths)[:, None]).astype(np.int64)
    return batch


def main_input(tokenizer: Any) -> str:
    """The column that determines a sample's length."""
    return getattr(tokenizer, "model_input_names", ("input_ids",))[0]


def pads_left(tokenizer: Any) -> bool:
    return getattr(tokenizer, "padding_side", "right") == "left"


def _is_matrix(key: str, value: Any) -> bool:
    # A mask per pair of tokens is left unpadded: which of its axes to pad depends on the model.
    return key == "attention_mask" and getattr(value, "ndim", 1) > 1


def padded_length(
    tokenizer: Any, lengths: Sequence[int], padding: bool | str, max_length: int | None, multiple: int | None
) -> int:
    """The common length to pad to."""
    longest = max(lengths)
    if padding is False or padding == "do_not_pad":
        if min(lengths) != longest:
            raise DataError(
                f"padding={padding!r}, but the samples have lengths {list(lengths)}. Use padding=True, "
                "or tokenize to one length."
            )
        return longest
    if padding == "max_length":
        if max_length is None:
            max_length = getattr(tokenizer, "model_max_length", None)
        # Tokenizers without a limit report a number as large as 1e30.
        if max_length is None or max_length > 1e12:
            raise ArgumentError(
                "padding='max_length' requires max_length=..., since the tokenizer has no model_max_length."
            )
        if longest > max_length:
            raise DataError(
                f"a sample has {longest} tokens, more than max_length={max_length}. Truncate when tokenizing: "
                f"tokenizer(text, truncation=True, max_length={max_length})."
            )
        longest = max_length
    elif padding is not True and padding != "longest":
        raise ArgumentError(f"Invalid padding={padding!r}: expected True, 'longest', 'max_length' or False.")
    return round_up(longest, multiple)


def round_up(length: int, multiple: int | None) -> int:
    return length if not multiple else -(-length // multiple) * multiple


def lengths_of(name: str, values: Sequence[Any]) -> list[int]:
    try:
        lengths = [len(value) for value in values]
    except TypeError:
        lengths = None
    if lengths is None or (hasattr(values[0], "ndim") and values[0].ndim > 1 and values[0].shape[0] == 1):
        shape = tuple(getattr(values[0], "shape", ()))
        raise DataError(
            f"{name!r} must be one list of numbers per sample, but the first is {a_type(values[0])} "
            f"of shape {shape}. Tokenize without return_tensors=, and one text per sample."
        )
    return lengths


def pad_column(name: str, values: Sequence[Any], width: int, fill: int, left: bool) -> np.ndarray:
    """Pad rows of unequal length into one array; values per token may be short lists, such as offsets."""
    if type(values[0]) is not list:
        values = [to_numpy(value) for value in values]
    token = next((value[0] for value in values if len(value)), 0)
    dtype: Any = np.int64
    if isinstance(token, np.floating):
        dtype = token.dtype
    elif isinstance(token, float):
        dtype = np.float32
    try:
        column = np.full((len(values), width, *np.shape(token)), fill, dtype)
        for row, value in zip(column, values, strict=True):
            if left:
                row[width - len(value) :] = value
            else:
                row[: len(value)] = value
    except (ValueError, TypeError) as problem:
        raise DataError(
            f"{name!r} cannot be padded to {width} tokens ({problem}). Every sample must have one flat list of "
            f"numbers, no longer than that; the lengths are {[len(value) for value in values]}."
        ) from problem
    return column


def pad_token_id(tokenizer: Any) -> int | None:
    """The tokenizer's pad token, or None; read so that tokenizers without one log no error."""
    known = getattr(tokenizer, "special_tokens_map", None)
    if isinstance(known, Mapping) and known and "pad_token" not in known:
        return None
    return getattr(tokenizer, "pad_token_id", None)


def _pad_token(tokenizer: Any, lengths: Sequence[int]) -> int:
    token = pad_token_id(tokenizer)
    if token is None:
        raise DataError(
            f"the samples have lengths {list(lengths)} and need padding, but {type(tokenizer).__name__} has no pad "
            "token. Set one, for example tokenizer.pad_token = tokenizer.eos_token, or split the text into blocks of "
            "equal length."
        )
    return token


def _pads_by_facts(tokenizer: Any) -> bool:
    cls = type(tokenizer)
    if hasattr(cls, "_pad"):
        # A class that pads additional columns (boxes, entities) overrides one of the two.
        return all(
            getattr(getattr(cls, name, None), "__qualname__", "").startswith(_KNOWN_BASES) for name in ("pad", "_pad")
        )
    return all(hasattr(tokenizer, name) for name in ("pad_token_id", "padding_side", "model_input_names"))


def _pad_by_method(
    tokenizer: Any, samples: Sequence[Mapping[str, Any]], padding: bool | str, max_length: int | None, multiple: Any
) -> dict[str, Any]:
    if not hasattr(tokenizer, "pad"):
        raise DataError(
            f"{type(tokenizer).__name__} cannot pad: expected a tokenizer with pad_token_id, padding_side and "
            "model_input_names, or with a pad() method."
        )
    text = {key for key, value in samples[0].items() if value is None or isinstance(value, (str, bytes))}
    try:
        padded = tokenizer.pad(
            [{key: value for key, value in sample.items() if key not in text} for sample in samples],
            padding=padding,
            max_length=max_length,
            pad_to_multiple_of=multiple,
            return_tensors="np",
        )
    except ValueError as problem:
        raise DataError(f"{type(tokenizer).__name__}.pad() failed: {problem}") from problem
    return dict(padded)


def take_labels(samples: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[Any] | None]:
    """The samples without labels, and the labels (under any of their names), or None."""
    names = ("labels", *LABEL_ALIASES)
    present = next((name for name in names if samples[0].get(name) is not None), None)
    rest = [{key: value for key, value in sample.items() if key not in names} for sample in samples]
    return rest, None if present is None else column_of(samples, present)
