"""Loaders: torch's, and the datasets of mindspore.dataset, which scripts for MindSpore use."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from ...data.loader_options import LoaderOptions
from .._common.mindspore_datasets import (
    Pipeline,
    check_pipeline_batch_size,
    is_iterator,
    is_pipeline,
    passing,
    warn_workers_ignored,
    yields_batches,
)
from ..torch import loaders as on_torch
from ..torch.loaders import begin_epoch, close, has_drawn_seed, iterate, seed_without_drawing

__all__ = [
    "begin_epoch",
    "close",
    "generator_states",
    "has_drawn_seed",
    "is_iterable",
    "is_loader",
    "is_own",
    "iterate",
    "make_loader",
    "reseed_generator",
    "seed_without_drawing",
    "set_generator_states",
]


class PipelineLoader:
    """Batches of a pipeline's samples, or those that it creates itself (then batch_size is None), in its own order."""

    num_workers = 0
    batch_sampler = None

    def __init__(self, dataset: Pipeline, collate: Callable, batch_size: int | None, drop_last: bool = False) -> None:
        self.dataset, self.collate_fn = dataset, collate
        self.batch_size, self.drop_last = batch_size, drop_last
        self.own_batch_size = dataset.source.get_batch_size() if batch_size is None else None

    def __len__(self) -> int:
        if self.batch_size is None:
            return self.dataset.source.get_dataset_size()
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole if self.drop_last or not rest else whole + 1

    def __iter__(self) -> Iterator[Any]:
        if self.batch_size is None:
            only = passing(self.collate_fn)
            return (only([batch]) for batch in self.dataset)
        return self._collated(iter(self.dataset), self.batch_size)

    def _collated(self, samples: Iterator[Any], size: int) -> Iterator[Any]:
        while chunk := list(islice(samples, size)):
            if len(chunk) == size or not self.drop_last:
                yield self.collate_fn(chunk)


def is_own(loader: Any) -> bool:
    """Whether make_loader created it."""
    return isinstance(loader, PipelineLoader) or on_torch.is_own(loader)


def is_loader(value: Any) -> bool:
    """Whether it yields batches, rather than being a dataset."""
    return is_iterator(value) or on_torch.is_loader(value)


def is_iterable(dataset: Any) -> bool:
    """Whether it is an iterable dataset, without __getitem__."""
    return isinstance(dataset, Pipeline) or is_pipeline(dataset) or on_torch.is_iterable(dataset)


def make_loader(dataset: Any, loader_options: LoaderOptions) -> Any:
    """torch's loader; for a dataset of mindspore.dataset, one that iterates over it."""
    if not is_pipeline(dataset):
        return on_torch.make_loader(dataset, loader_options)
    warn_workers_ignored(loader_options.workers)
    if yields_batches(dataset):
        check_pipeline_batch_size(dataset, loader_options.batch_size)
        return PipelineLoader(Pipeline(dataset), loader_options.collate, None)
    return PipelineLoader(
        Pipeline(dataset), loader_options.collate, loader_options.batch_size, loader_options.drop_last
    )


def reseed_generator(dataset: Any, seed: int) -> None:
    """A pipeline shuffles with this seed from its next iteration on; torch's datasets are reseeded as on torch."""
    if isinstance(dataset, Pipeline):
        dataset.seed = seed
    else:
        on_torch.reseed_generator(dataset, seed)


def generator_states(loader: Any) -> list[Any]:
    """No states: those of mindtorch's generators are not stored."""
    return []


def set_generator_states(loader: Any, states: list[Any]) -> None:
    """Nothing to do: there are no generators to restore."""
