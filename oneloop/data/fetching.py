"""Read the samples of a batch from a map-style dataset."""

from collections.abc import Sequence
from typing import Any

from ..errors import add_note


def fetch_samples(dataset: Any, indices: Sequence[int]) -> Any:
    """The samples at these indices, all at once if the dataset can. An error that reading raises says which it was."""
    read_all = getattr(dataset, "__getitems__", None)
    if read_all is not None and len(indices):
        return read_all(indices)
    samples = []
    for index in indices:
        samples.append(fetch_sample(dataset, index))
    return samples


def fetch_sample(dataset: Any, index: int) -> Any:
    """The sample at an index. An error that reading it raises says which it was."""
    try:
        return dataset[index]
    except Exception as error:
        add_note(error, f"(oneloop: raised by sample {index} of the dataset, {type(dataset).__name__}[{index}])")
        raise
