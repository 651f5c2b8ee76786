"""How many samples a batch or a loader has."""

from collections.abc import Mapping, Sequence
from typing import Any


def batch_rows(inputs: Any) -> int | None:
    """Number of samples in a batch: the first axis of its first array, or the length of its first column of text."""
    counts = (_array_rows, _text_rows, _nested_rows, _uncollated_rows)
    return next((rows for count in counts if (rows := count(inputs)) is not None), None)


def _columns(inputs: Any) -> Sequence[Any]:
    if isinstance(inputs, Mapping):
        return list(inputs.values())
    return inputs if isinstance(inputs, (list, tuple)) else [inputs]


def _array_rows(inputs: Any) -> int | None:
    return next((int(column.shape[0]) for column in _columns(inputs) if getattr(column, "shape", None)), None)


def _text_rows(inputs: Any) -> int | None:
    """Texts that the model tokenizes itself. Beside them, arrays within a column are those of one sample each, such as
    the labels of its documents."""
    columns = [column for column in _columns(inputs) if isinstance(column, (list, tuple)) and column]
    return next((len(column) for column in columns if all(isinstance(value, str) for value in column)), None)


def _nested_rows(inputs: Any) -> int | None:
    if not isinstance(inputs, (Mapping, list, tuple)):
        return None
    found = ((_array_rows(column), _nested_rows(column)) for column in _columns(inputs))
    return next((rows for pair in found for rows in pair if rows is not None), None)


def _uncollated_rows(inputs: Any) -> int | None:
    """Samples that have not been collated, such as prompts of a trainer that tokenizes them later."""
    is_samples = isinstance(inputs, (list, tuple)) and inputs and all(isinstance(v, (Mapping, str)) for v in inputs)
    return len(inputs) if is_samples else None


def loader_rows(loader: Any) -> int | None:
    """Number of samples that a loader yields, if known."""
    if getattr(loader, "known", None) is not None:
        return loader.known[1]
    try:
        rows = len(loader.dataset)
    except (TypeError, AttributeError, NotImplementedError, ValueError, RuntimeError):  # Paddle raises the last two
        return None
    return rows
