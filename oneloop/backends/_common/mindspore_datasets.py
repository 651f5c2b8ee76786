"""Datasets of mindspore.dataset, for the backends whose tensors are MindSpore's; the package is not imported."""

import functools
import logging
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ... import behaviour
from ...data.samples import ColumnFilter
from ...errors import DataError

logger = logging.getLogger(__name__)


class Pipeline:
    """A dataset of mindspore.dataset as an iterable of dicts of arrays, shuffled differently in each epoch.

    A pipeline that is iterated again repeats its order, so its seed is set to that of the epoch before.
    """

    def __init__(self, source: Any) -> None:
        self.source = source
        self.seed: int | None = None

    def rows(self) -> Iterator[dict[str, Any]]:
        if self.seed is not None:
            seed_pipelines(self.seed)
        return self.source.create_dict_iterator(num_epochs=1, output_numpy=True)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (row for row in self.rows())  # an iterator of MindSpore's that is asked again at its end is an error

    def __len__(self) -> int:
        """Samples, not batches."""
        return self.source.get_dataset_size() * self.source.get_batch_size()


def seed_pipelines(value: int) -> None:
    """The seed of mindspore.dataset, whose own function for it would seed Python and NumPy as well."""
    if "mindspore.dataset" in sys.modules:
        streams = random.getstate(), np.random.get_state()
        sys.modules["mindspore.dataset"].config.set_seed(value % 2**32)
        random.setstate(streams[0])
        np.random.set_state(streams[1])


def is_pipeline(value: Any) -> bool:
    """Whether this is a dataset of mindspore.dataset, without importing that package, which is slow."""
    return any(
        base.__name__ == "Dataset" and base.__module__.startswith("mindspore.dataset.") for base in type(value).__mro__
    )


def is_iterator(value: Any) -> bool:
    """Whether this is an iterator such as create_dict_iterator returns."""
    return any(base.__module__ == "mindspore.dataset.engine.iterators" for base in type(value).__mro__)


def yields_batches(source: Any) -> bool:
    """Whether the pipeline creates batches."""
    if any("Batch" in base.__name__ and base.__module__.startswith("mindspore.") for base in type(source).__mro__):
        return True
    return any(yields_batches(child) for child in getattr(source, "children", ()))


def is_sharded(source: Any) -> bool:
    """Whether a pipeline is sharded by process: one of its steps has num_shards."""
    for part in (source, getattr(source, "sampler", None)):
        if (getattr(part, "num_shards", None) or 1) > 1:
            return True
    return any(is_sharded(child) for child in getattr(source, "children", ()))


def check_pipeline_batch_size(source: Any, batch_size: int) -> None:
    """Handle a pipeline that creates batches when the arguments have a batch size too: batches of batches fit no model.

    Scripts may depend on such batches being used unchanged, whatever the arguments say.
    """
    own = source.get_batch_size()
    if batch_size == 1:
        return
    if behaviour.current().batched_pipelines_keep_batch_size:
        if batch_size != own:
            _warn_batch_size_ignored(own, batch_size)
        return
    raise DataError(
        f"the dataset is already batched (dataset.batch() yields {own} samples at a time), but the batch size in the "
        f"arguments is {batch_size}: no model accepts batches of batches. Set per_device_train_batch_size and "
        "per_device_eval_batch_size to 1, which uses its batches unchanged, or remove dataset.batch()."
    )


@functools.cache
def _warn_batch_size_ignored(own: int, batch_size: int) -> None:
    """Warn once for each pair of sizes, since evaluations are repeated."""
    logger.warning(
        "The dataset creates batches of %d itself; the batch size in the arguments, %d, is ignored.",
        own,
        batch_size,
    )


def warn_workers_ignored(workers: int) -> None:
    if workers:
        logger.warning(
            "dataloader_num_workers=%d is ignored: a dataset of mindspore.dataset has its own workers "
            "(num_parallel_workers).",
            workers,
        )


def passing(collate: Any) -> Callable[[Sequence[Any]], Any]:
    """The collator of batches that are used unchanged: it only drops columns that the model does not accept."""
    if isinstance(collate, ColumnFilter):
        return ColumnFilter(_first, collate.keep, collate.on_first)
    return _first


def _first(samples: Sequence[Any]) -> Any:
    return samples[0]
