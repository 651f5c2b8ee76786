"""Loaders: batches of a dataset in oneloop's order, and of the datasets of mindspore.dataset in their own."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, repeat
from typing import Any

import mindspore as ms
import numpy as np

from ...data import worker_seeding
from ...data.feistel import key_of
from ...data.iterable import is_streamed
from ...data.loader_options import LoaderOptions
from ...data.process_sharding import ProcessShard
from ...data.samples import fetch_samples
from ...data.worker_pool import END, Workers
from ...distributed.preemption import ignore_job_signals
from ...errors import DataError
from .._common.mindspore_datasets import (
    Pipeline,
    check_pipeline_batch_size,
    is_iterator,
    is_pipeline,
    is_sharded,
    passing,
    warn_workers_ignored,
    yields_batches,
)
from . import randomness, tensors

_WORKERS = -104  # separates the seeds of workers from those of data/worker_seeding.py


class Loader:
    """Batches of a batch sampler, or in the order of an iterable."""

    ended = False  # an iterable had no sample left after the batch that was made last

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[list[Any]], Any],
        batches: Any = None,
        batch_size: int = 1,
        drop_last: bool = False,
        workers: int = 0,
        persistent: bool = False,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.dataset = dataset
        self.collate_fn = collate
        self.batch_sampler = batches
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.num_workers = workers
        self.persistent = persistent and batches is not None  # workers of an iterable are restarted in every epoch
        self.settings = settings or {}  # of Workers
        self.seed = 0  # of workers of an iterable; set by begin_epoch
        self.workers: Workers | None = None
        # (batches, samples of all processes) if the dataset has only a shard
        self.known = dataset.known if isinstance(dataset, ProcessShard) else None

    def __len__(self) -> int:
        if self.known is not None:
            return self.known[0]
        if self.batch_sampler is not None:
            return len(self.batch_sampler)
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole if self.drop_last or not rest else whole + 1

    def __iter__(self) -> Iterator[Any]:
        # The order is determined at iter(), not at the first next().
        tasks = None if self.batch_sampler is None else iter(self.batch_sampler)
        if self.num_workers:
            return self._from_workers(tasks)
        if tasks is not None:
            return map(partial(_fetched, self), tasks)
        return map(self.collate_fn, _chunks(iter(self.dataset), self.batch_size, self.drop_last, self))

    def _from_workers(self, tasks: Iterator[list[int]] | None) -> Iterator[Any]:
        if self.workers is None or not self.persistent:
            self.workers = Workers(partial(_serve, self), self.num_workers, reduce=_reduce, **self.settings)
        return self._until_done(self.workers, repeat(None) if tasks is None else tasks)

    def _until_done(self, workers: Workers, tasks: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from workers.run(tasks)
        finally:
            # An iteration that was abandoned ends here only when it is garbage-collected: the next one has its workers
            # by then.
            if not self.persistent:
                workers.close()
                self.workers = None if self.workers is workers else self.workers

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"workers": None}  # what is sent to a worker that is not forked


def _fetched(loader: Loader, indices: list[int]) -> Any:
    return loader.collate_fn(fetch_samples(loader.dataset, indices))


def _chunks(samples: Iterator[Any], size: int, drop_last: bool, loader: "Loader | None" = None) -> Iterator[list[Any]]:
    while chunk := list(islice(samples, size)):
        is_last = len(chunk) < size
        if loader is not None:
            loader.ended = is_last
        if not (is_last and drop_last):
            yield chunk
        if is_last:  # an iterator that starts again after its end would never end here
            return


# -- in a worker, which never computes with MindSpore: its threads do not survive a fork


def _serve(loader: Loader, number: int) -> Callable[[Any], Any]:
    """Called once in each worker: returns the function that creates a batch from a task, a list of indices."""
    ignore_job_signals(number)
    tensors.in_worker = randomness.in_worker = True
    if loader.batch_sampler is not None:
        return partial(_fetched, loader)
    walk = _walked(loader, number)
    return lambda task: next(walk, END)


def _walked(loader: Loader, worker: int) -> Iterator[Any]:
    """Each n-th batch of an iteration over all the data, which draws the same random numbers in every worker."""
    worker_seeding.seed_rngs("mindspore", loader.seed)
    for place, samples in enumerate(_chunks(iter(loader.dataset), loader.batch_size, loader.drop_last)):
        if place % loader.num_workers == worker:
            # The collator may draw between two batches: give it its own seed, so that the RNG of the data is
            # unaffected.
            walk = random.getstate(), np.random.get_state(), randomness.get_state()
            seed = key_of(loader.seed, place) >> 1
            worker_seeding.seed_rngs("mindspore", seed)
            worker_seeding.current = (seed,)
            yield loader.collate_fn(samples)
            random.setstate(walk[0])
            np.random.set_state(walk[1])
            randomness.set_state(walk[2])


def _reduce(value: Any) -> Any:
    """How a tensor is sent from a worker: as an array."""
    if not isinstance(value, ms.Tensor):
        return NotImplemented
    return ms.Tensor, (np.array(value.asnumpy()),)


# -- pipelines of mindspore.dataset


class Batched(Loader):
    """A mindspore.dataset that creates batches itself, which are used unchanged."""

    @property
    def own_batch_size(self) -> int:
        return self.dataset.source.get_batch_size()

    def __len__(self) -> int:
        return self.dataset.source.get_dataset_size()

    def __iter__(self) -> Iterator[Any]:
        only = passing(self.collate_fn)
        return (only([batch]) for batch in self.dataset.rows())


def _sharded_pipeline(dealt: ProcessShard) -> Any:
    """A pipeline for several processes: it is sharded already, or its samples are sharded here."""
    source = dealt.source
    if is_sharded(source):
        return source
    if yields_batches(source):
        raise DataError(
            f"the dataset creates batches itself, which cannot be sharded over {dealt.shard_count} processes. Shard it "
            "with num_shards and shard_id where it reads its data, or remove dataset.batch()."
        )
    dealt.source = Pipeline(source)
    return dealt


# -- the interface of the backend


def close(loader: Any) -> None:
    """Stop the workers of a loader of ours."""
    if isinstance(loader, Loader) and loader.workers is not None:
        workers, loader.workers = loader.workers, None
        workers.close()


def begin_epoch(loader: Any, seed: int, epoch: int) -> None:
    """Call it before iter(): the random numbers of the workers of a loader of ours depend on (seed, epoch) only."""
    if isinstance(loader, Loader):
        loader.seed = key_of(seed, epoch, _WORKERS) >> 1
        if not loader.persistent:
            close(loader)


def iterate(loader: Any) -> Iterator[Any]:
    """The batches of a loader, ours or the user's."""
    return iter(loader)


def has_drawn_seed(loader: Any) -> bool | None:
    """None: the seeds of workers are not drawn from the random state."""
    return None


def seed_without_drawing(loader: Any) -> None:
    """Nothing to do: no loader draws the seeds of its workers from the random state."""


def is_own(loader: Any) -> bool:
    """Whether make_loader created it, which shards by process."""
    return isinstance(loader, Loader)


def is_loader(value: Any) -> bool:
    """Whether it yields batches, rather than being a dataset."""
    return is_iterator(value) or isinstance(value, Loader)


def is_iterable(dataset: Any) -> bool:
    """Whether it is an iterable dataset, without __getitem__."""
    own = isinstance(dataset, Pipeline) or is_pipeline(dataset)
    return own or not hasattr(dataset, "__getitem__") or is_streamed(dataset)


def make_loader(dataset: Any, loader_options: LoaderOptions) -> Loader:
    """Batches of a batch sampler, or in the order of an iterable. Iterating does not use the RNG of the model."""
    if isinstance(dataset, ProcessShard) and is_pipeline(dataset.source):
        dataset = _sharded_pipeline(dataset)
    if is_pipeline(dataset):
        warn_workers_ignored(loader_options.workers)
        if not yields_batches(dataset):
            return Loader(
                Pipeline(dataset), loader_options.collate, None, loader_options.batch_size, loader_options.drop_last
            )
        check_pipeline_batch_size(dataset, loader_options.batch_size)
        return Batched(Pipeline(dataset), loader_options.collate)
    settings = {
        "ahead": loader_options.prefetch or 2,
        "context": loader_options.context or "fork",
        "in_order": loader_options.in_order,
    }
    return Loader(
        dataset,
        loader_options.collator,
        loader_options.batches,
        loader_options.batch_size,
        loader_options.drop_last,
        loader_options.workers,
        loader_options.persistent,
        settings,
    )


def reseed_generator(dataset: Any, seed: int) -> None:
    """A pipeline shuffles with this seed from its next iteration on."""
    if isinstance(dataset, ProcessShard):
        dataset = dataset.source
    if isinstance(dataset, Pipeline):
        dataset.seed = seed


def generator_states(loader: Any) -> list[Any]:
    """No states: samplers of MindSpore do not draw from generators."""
    return []


def set_generator_states(loader: Any, states: list[Any]) -> None:
    """Nothing to do: there are no generators to restore."""
