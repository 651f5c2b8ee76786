"""Loaders: batches of a dataset in oneloop's order.

A loader is a subclass of paddle.io.DataLoader, but creates its batches itself: Paddle's own iterators prefetch in a
thread, which shares the RNG with training, print errors of a dataset only to the terminal, convert tuples to lists,
and their workers sometimes crash if collate_fn returns tensors.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice, repeat
from typing import Any

import numpy as np
import paddle
from paddle.io import DataLoader, IterableDataset, get_worker_info
from paddle.io.dataloader import worker as worker_state
from paddle.io.dataloader.collate import default_collate_fn

from ...data import worker_seeding
from ...data.feistel import key_of
from ...data.iterable import Source, is_streamed, is_worker_aware, warn_about_repeated_samples
from ...data.loader_options import LoaderOptions
from ...data.process_sharding import ProcessShard
from ...data.samples import fetch_samples
from ...data.worker_pool import END, Workers
from ...distributed.preemption import ignore_job_signals
from .._common.helpers import map_tensors
from .randomness import restore_generators

_WORKERS = -104  # separates the seeds of workers from those of data/worker_seeding.py


class Loader(DataLoader):
    """Batches created here, one after the other, or in worker processes."""

    known: tuple[int, int] | None = None  # (batches, samples of all processes) if the dataset has only a shard
    ended = False  # an iterable had no sample left after the batch that was made last

    def __init__(self, dataset: Any, *, settings: dict[str, Any], **options: Any) -> None:
        super().__init__(dataset, use_buffer_reader=False, use_shared_memory=False, **options)
        self.settings = settings  # of Workers
        self.pin = settings.pop("pin", False)
        # Workers of an iterable are restarted in every epoch: they would have no more batches.
        self.persistent = settings.pop("persistent", False) and not isinstance(dataset, IterableDataset)
        self.seed = settings.pop("seed")
        self.workers: Workers | None = None

    def __len__(self) -> int:
        """Batches of an epoch; a TypeError, which means "no length" in Python, for an iterable dataset without one."""
        if self.known is not None:
            return self.known[0]
        if not isinstance(self.dataset, IterableDataset):
            return len(self.batch_sampler)
        try:
            whole, rest = divmod(len(self.dataset), self.batch_size)
        except RuntimeError as error:  # of IterableDataset itself
            raise TypeError(str(error)) from error
        return whole if self.drop_last or not rest else whole + 1

    def __iter__(self) -> Iterator[Any]:
        batches = self._from_workers() if self.num_workers else _plain(self)
        return map(_pinned, batches) if self.pin else batches

    def _from_workers(self) -> Iterator[Any]:
        if self.workers is None or not self.persistent:
            self.workers = Workers(partial(_serve, _Task.of(self)), self.num_workers, reduce=_reduce, **self.settings)
        iterable = isinstance(self.dataset, IterableDataset)
        return self._until_done(self.workers, repeat(None) if iterable else iter(self.batch_sampler))

    def _until_done(self, workers: Workers, tasks: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from workers.run(tasks)
        finally:
            # An iteration that was abandoned ends here only when it is garbage-collected: the next one has its workers
            # by then.
            if not self.persistent:
                workers.close()
                self.workers = None if self.workers is workers else self.workers


def _plain(loader: Any) -> Iterator[Any]:
    collate, dataset = loader.collate_fn or default_collate_fn, loader.dataset
    if isinstance(dataset, IterableDataset):
        own = loader if isinstance(loader, Loader) else None
        yield from _collated(iter(dataset), collate, loader.batch_size, loader.drop_last, own)
        return
    for indices in loader.batch_sampler:
        yield collate(fetch_samples(dataset, indices))


def _collated(
    samples: Iterator[Any], collate: Callable, batch_size: int, drop_last: bool, loader: Loader | None = None
) -> Iterator[Any]:
    while chunk := list(islice(samples, batch_size)):
        is_last = len(chunk) < batch_size
        if loader is not None:
            loader.ended = is_last
        if not (is_last and drop_last):
            yield collate(chunk)
        if is_last:  # an iterator that starts again after its end would never end here
            return


# -- in a worker


@dataclass
class _Task:
    """The settings of the loader that a worker needs."""

    dataset: Any
    collate: Callable
    batch_size: int
    drop_last: bool
    workers: int
    seed: int
    init: Callable[[int], None] | None

    @classmethod
    def of(cls, loader: Loader) -> "_Task":
        collate, init = loader.collate_fn or default_collate_fn, loader.worker_init_fn
        return cls(loader.dataset, collate, loader.batch_size, loader.drop_last, loader.num_workers, loader.seed, init)


def _serve(task: _Task, number: int) -> Callable[[Any], Any]:
    """Called once in each worker: returns the function that creates a batch from a list of indices."""
    ignore_job_signals(number)
    paddle.set_device("cpu")
    worker_seeding.seed_rngs("paddle", task.seed + number)
    dataset, collate = task.dataset, task.collate
    worker_state._worker_info = worker_state.WorkerInfo(
        id=number, num_workers=task.workers, dataset=dataset, seed=task.seed
    )
    if task.init is not None:
        task.init(number)
    if isinstance(dataset, IterableDataset):
        batches = _collated(iter(dataset), collate, task.batch_size, task.drop_last)
        return lambda _: next(batches, END)
    return lambda indices: collate(fetch_samples(dataset, indices))


def _reduce(value: Any) -> Any:
    """How a tensor is sent from a worker: as an array, which is read without a copy."""
    if not isinstance(value, paddle.Tensor):
        return NotImplemented
    half = value.dtype == paddle.bfloat16
    return _made, (np.array(value.detach().numpy()), half)


def _made(array: np.ndarray, half: bool) -> paddle.Tensor:
    tensor = paddle.to_tensor(array, place="cpu")
    return tensor.view(paddle.bfloat16) if half else tensor


def _pinned(batch: Any) -> Any:
    """Copy to page-locked memory, from which copies to a GPU are asynchronous."""
    return map_tensors(batch, lambda value: isinstance(value, paddle.Tensor), paddle.Tensor.pin_memory)


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
    """The batches of a loader. Those of the user's loader are created in our way too: see above."""
    if not isinstance(loader, DataLoader) or isinstance(loader, Loader) or not loader.auto_collate_batch:
        return iter(loader)
    if loader.num_workers == 0:
        return _plain(loader)
    options: dict[str, Any] = {"batch_sampler": loader.batch_sampler}
    if isinstance(loader.dataset, IterableDataset):
        options = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    # Paddle draws the seed of its workers from this RNG too.
    settings = {"ahead": loader.prefetch_factor, "context": "fork", "seed": int(np.random.randint(0, 2**31))}
    for name in ("collate_fn", "num_workers", "worker_init_fn"):
        options[name] = getattr(loader, name)
    return iter(Loader(loader.dataset, settings=settings, **options))


def has_drawn_seed(loader: Any) -> bool | None:
    """None: the seeds of workers are not drawn from the random streams, or anew in each iteration."""
    return None


def seed_without_drawing(loader: Any) -> None:
    """Nothing to do: no loader draws the seeds of its workers from the random state."""


def is_own(loader: Any) -> bool:
    """Whether make_loader created it, which shards by process."""
    return isinstance(loader, Loader)


def is_loader(value: Any) -> bool:
    """Whether it yields batches, rather than being a dataset."""
    return isinstance(value, DataLoader)


def is_iterable(dataset: Any) -> bool:
    """Whether it is an iterable dataset. Paddle's IterableDataset has a __getitem__, but one that fails."""
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__") or is_streamed(dataset)


def make_loader(dataset: Any, loader_options: LoaderOptions) -> Loader:
    """Batches of a batch sampler, or in the order of an iterable dataset."""
    options: dict[str, Any] = {"collate_fn": loader_options.collator, "num_workers": loader_options.workers}
    options["settings"] = {
        "ahead": loader_options.prefetch or 2,
        "context": loader_options.context or "fork",
        "in_order": loader_options.in_order,
        "pin": loader_options.pin,
        "persistent": loader_options.persistent,
        "seed": loader_options.seed,
    }
    if loader_options.batches is not None:
        return Loader(dataset, batch_sampler=loader_options.batches, **options)
    known = dataset.known if isinstance(dataset, ProcessShard) else None
    if not isinstance(dataset, IterableDataset):
        dataset = Stream(dataset, loader_options.batch_size)
    elif loader_options.workers > 1:
        warn_about_repeated_samples(dataset, "paddle", "paddle.io.get_worker_info()")
    loader = Loader(dataset, batch_size=loader_options.batch_size, drop_last=loader_options.drop_last, **options)
    loader.known = known
    return loader


class Stream(Source, IterableDataset):
    """Anything with __iter__ as an iterable dataset of Paddle, sharded over workers by batch.

    A source that calls Paddle's get_worker_info shards its samples itself.
    """

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if worker is None or is_worker_aware(self.source):
            return iter(self.source)
        worker_state._worker_info = None  # not restored: nothing in this worker uses it afterwards
        streams = partial(paddle.get_rng_state, "cpu"), partial(restore_generators, "cpu")
        return self.shard_batches((worker.id, worker.num_workers), worker.seed, "paddle", nullcontext, streams)


def reseed_generator(dataset: Any, seed: int) -> None:
    """Paddle has no user-created generators, so there is nothing to reseed."""


def generator_states(loader: Any) -> list[Any]:
    """Paddle has no user-created generators."""
    return []


def set_generator_states(loader: Any, states: list[Any]) -> None:
    """Nothing to do: there are no generators to restore."""
