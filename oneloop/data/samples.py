"""Samples on their way from the dataset to the collator: reading them, and the columns that the model accepts."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..errors import DataError, add_note


def fetch_samples(dataset: Any, indices: Sequence[int]) -> Any:
    """The samples at these indices, all at once if the dataset can. An error that reading raises says which it was."""
    read_all = getattr(dataset, "__getitems__", None)
    if read_all is not None and len(indices):
        return read_all(indices)
    samples: list[Any] = []
    try:
        for index in indices:
            samples.append(dataset[index])
    except Exception as error:
        _name_sample(error, dataset, index)
        raise
    return samples


def fetch_sample(dataset: Any, index: int) -> Any:
    """The sample at an index. An error that reading it raises says which it was."""
    try:
        return dataset[index]
    except Exception as error:
        _name_sample(error, dataset, index)
        raise


def _name_sample(error: Exception, dataset: Any, index: int) -> None:
    add_note(error, f"(oneloop: raised by sample {index} of the dataset, {type(dataset).__name__}[{index}])")


def forward_columns(signature_parameters: Iterable[str], label_names: Iterable[str]) -> set[str] | None:
    """The columns to keep for a `forward` with these parameters (names, or `inspect.signature(...).parameters`).

    None if `forward` accepts anything (only **kwargs).
    """
    names = set(signature_parameters)
    if isinstance(signature_parameters, Mapping):
        kinds = {name: parameter.kind for name, parameter in signature_parameters.items()}
        names = {
            name
            for name, kind in kinds.items()
            if kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        }
        if not names and inspect.Parameter.VAR_KEYWORD in kinds.values():
            return None
    return names | set(label_names) | {"label", "label_ids"}


class ColumnFilter:
    """A collator that passes on only the columns in `keep`; samples without column names are passed unchanged.

    `on_first` is called once with the names of the dropped columns, to log them. It is sent to worker processes with
    this object, so it must be picklable there.
    """

    def __init__(
        self,
        collator: Callable[..., Any],
        keep: Iterable[str],
        on_first: Callable[[list[str]], None] | None = None,
    ) -> None:
        self.collator = collator
        self.keep: frozenset[str] = frozenset(keep)
        self.on_first = on_first

    def __call__(self, samples: Sequence[Any]) -> Any:
        first = samples[0] if samples else None
        if not isinstance(first, Mapping):
            return self.collator(samples)
        names = [key for key in first if key in self.keep]
        if len(names) == len(first):
            return self.collator(samples)
        if not names:
            raise DataError(
                f"none of the columns {sorted(map(str, first))} is a label or a parameter of the model's forward, "
                f"which accepts {sorted(self.keep)}. Rename the columns, or set remove_unused_columns=False and pass a "
                "data_collator that produces the model's inputs."
            )
        if self.on_first is not None:
            report, self.on_first = self.on_first, None
            report([key for key in first if key not in self.keep])
        return self.collator([{key: sample[key] for key in names if key in sample} for sample in samples])
