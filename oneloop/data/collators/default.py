"""The default collator: stacks columns without padding. It runs in every training step."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...backends import registry
from ...errors import DataError
from .base import (
    DataCollatorMixin,
    as_mappings,
    backend_of,
    check_samples,
    column_of,
    framework_of,
    tensors,
    to_backend,
    to_numpy,
)

#: Other names for labels, in order of precedence; a column named labels takes precedence over both.
LABEL_ALIASES = ("label", "label_ids")


def default_data_collator(features: Sequence[Any], return_tensors: str | None = None) -> Any:
    """Stack samples into a batch: dicts into a dict, tuples into a tuple, bare values into one array.

    `label` and `label_ids` become `labels` (int64 or float32); strings and None are dropped.
    """
    return to_backend(stack_samples(features), backend_of(return_tensors))


def torch_default_data_collator(features: Sequence[Any]) -> Any:
    return to_backend(stack_samples(features), "torch")


def numpy_default_data_collator(features: Sequence[Any]) -> Any:
    return to_backend(stack_samples(features), None)


@dataclass
class DefaultDataCollator(DataCollatorMixin):
    """`default_data_collator` as an object with a fixed `return_tensors`."""

    return_tensors: str | None = None

    def collate(self, features: Sequence[Any]) -> Any:
        return stack_samples(features)


def stack_samples(samples: Sequence[Any]) -> Any:
    """The first sample decides the structure; the others must match it."""
    if type(samples) is not list or not samples:
        check_samples(samples)
    first = samples[0]
    if type(first) is dict or isinstance(first, Mapping):
        return _stack_mappings(samples)
    if isinstance(first, (tuple, list)):
        return _stack_tuples(samples)
    if _kind(type(first)) in ("number", "array", *registry.names()):
        return stack("the samples", samples)
    return _stack_mappings(as_mappings(samples))


def _stack_mappings(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    batch = {}
    for key in samples[0]:
        column = stack(key, column_of(samples, key))
        if column is not None:
            batch[key] = column
    return rename_labels(batch) if any(alias in batch for alias in LABEL_ALIASES) else batch


def _stack_tuples(samples: Sequence[Any]) -> tuple[Any, ...]:
    try:
        columns = list(zip(*samples, strict=True))
    except ValueError:
        sizes = _shown([len(sample) for sample in samples])
        raise DataError(
            f"the samples of a batch are tuples of {sizes} elements. Return the same number of elements for every "
            "sample, or pass a data_collator."
        ) from None
    stacked = [stack(f"element {i}", column) for i, column in enumerate(columns)]
    first = samples[0]
    return type(first)(*stacked) if hasattr(first, "_fields") else tuple(stacked)


def rename_labels(batch: dict[str, Any]) -> dict[str, Any]:
    """`label` and `label_ids` become `labels`: int64 for classes, float32 for targets."""
    for alias in LABEL_ALIASES:
        if alias in batch:
            labels = to_numpy(batch.pop(alias))
            if "labels" not in batch:
                batch["labels"] = labels.astype(np.float32 if labels.dtype.kind == "f" else np.int64, copy=False)
    return batch


def _kind_of(cls: type) -> str:
    """The kind of values of this class; for tensors, the name of their framework."""
    if cls is type(None) or issubclass(cls, (str, bytes)):
        return "text"
    if issubclass(cls, (int, float, np.generic)):
        return "number"
    if issubclass(cls, np.ndarray):
        return "array"
    return framework_of(cls) or ("mapping" if issubclass(cls, Mapping) else "sequence")


# Cached per class: a chain of isinstance checks would be too slow in every step.
_kind: Callable[[type], str] = functools.cache(_kind_of)


# Python numbers have no width: floats become float32, and ints int64 even where NumPy 1 makes them int32 (Windows).
_LOOSE: dict[str, Any] = {np.dtype(float).char: np.float32}
if np.dtype(int) != np.int64:
    _LOOSE[np.dtype(int).char] = np.int64


def stack(name: str, values: Sequence[Any]) -> Any:
    """Stack one column on a new first axis: an array, or a tensor if it holds tensors; None for strings and None."""
    first = values[0]
    kind = _kind(type(first))
    if kind == "text":
        return None
    if kind == "mapping":
        return _stack_mappings(values)
    try:
        if kind in registry.names():
            return tensors(kind).stack(values)
        if kind == "sequence":
            first = _leaf(first)
            if isinstance(first, (str, bytes)):
                return None
        # Half the cost of np.stack, which inspects every sample in Python.
        column = np.array(values)
    except (ValueError, TypeError, RuntimeError) as problem:
        raise _not_stackable(name, values, problem) from problem
    code = column.dtype.char
    if code in "OUS":
        raise _not_stackable(name, values)
    if code in _LOOSE and not isinstance(first, (np.ndarray, np.generic)):
        return column.astype(_LOOSE[code])
    return column


def _leaf(value: Any) -> Any:
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return value


def _not_stackable(name: str, values: Sequence[Any], problem: Exception | None = None) -> DataError:
    label = repr(name) if name.isidentifier() else name
    absent = [i for i, value in enumerate(values) if value is None]
    if absent:
        return DataError(
            f"{label} is None in sample {absent[0]}, but not in the first. Set a value or drop the sample."
        )
    shapes = []
    for value in values:
        try:
            shapes.append(tuple(np.shape(value)) if not hasattr(value, "shape") else tuple(value.shape))
        except ValueError:
            shapes.append((len(value), "ragged"))
    if len(set(shapes)) > 1:
        sizes = [shape[0] if len(shape) == 1 else shape for shape in shapes]
        what = "lengths" if all(len(shape) == 1 for shape in shapes) else "shapes"
        return DataError(
            f"{label} cannot be stacked into one array: its {what} are {_shown(sizes)}. They must be equal or "
            "padded: pass tokenizer= (processing_class=) to the Trainer, or data_collator=DataCollatorWithPadding("
            "tokenizer); for one label per token DataCollatorForTokenClassification, for target text "
            "DataCollatorForSeq2Seq."
        )
    reason = f" ({problem})" if problem else ""
    kinds = sorted({type(_leaf(value)).__name__ for value in values})
    return DataError(
        f"{label} holds {', '.join(kinds)}, which cannot be converted to an array of numbers{reason}. Convert it in "
        "the dataset, drop the column, or pass a data_collator that handles it."
    )


def _shown(values: Sequence[Any], limit: int = 8) -> str:
    shown = ", ".join(str(value) for value in values[:limit])
    return shown if len(values) <= limit else f"{shown}, ..."
