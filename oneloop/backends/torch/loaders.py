"""Loaders: batches of a dataset in oneloop's order, with torch's DataLoader."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.utils import data as torch_data
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data._utils import worker as worker_state

from ...data.feistel import key_of
from ...data.iterable import Source, is_worker_aware, warn_about_repeated_samples
from ...data.loader_options import LoaderOptions
from ...data.process_sharding import ProcessShard
from ...data.samples import fetch_samples
from ...distributed.preemption import ignore_job_signals
from ...distributed.world import world
from ...errors import OneloopError

_END = object()
_PIPES: Any = getattr(torch_data, "IterDataPipe", ())  # not every implementation of torch has them
_WORKERS = -104  # separates the seeds of workers from those of data/worker_seeding.py


class Loader(DataLoader):
    """A DataLoader. Without workers and pinning it iterates directly, which is faster than DataLoader's own
    iterator."""

    generator: torch.Generator | None
    known: tuple[int, int] | None = None  # (batches, samples of all processes) if the dataset has only a shard
    ended = False  # an iterable had no sample left after the batch that was made last
    fetches_ahead = False  # in the main process, one batch before it is needed
    seed = 0  # of the workers
    draws_seed = False  # takes a number from the default generator, as DataLoader does for the seed of its workers
    keeps_seed = False  # and only once, as DataLoader does for workers that it keeps
    has_drawn = False

    @property
    def total_batch_size(self) -> int | None:
        """Samples of all processes in one step, under a name that scripts read; None if batches vary."""
        size = self.batch_size or getattr(self.batch_sampler, "batch_size", None)
        return size * world().size if size else None

    @property
    def total_dataset_length(self) -> int:
        """Samples of all processes."""
        return len(self.dataset) if self.known is None else self.known[1]

    def __len__(self) -> int:
        return super().__len__() if self.known is None else self.known[0]

    def __iter__(self) -> Iterator[Any]:
        if self.draws_seed and not (self.keeps_seed and self.has_drawn):
            torch.empty((), dtype=torch.int64).random_()
            self.has_drawn = True
        if self.num_workers or self.pin_memory or self.timeout:
            return self._from_workers(self._workers())
        return self._plain()

    def _workers(self) -> Any:
        """DataLoader's iterator. The seed of workers that it starts is ours. Who prepares a loader for several
        processes copies its `generator`, and should find none where a script has given none."""
        if not self.draws_seed and self.generator is None:
            return super().__iter__()
        before, self.generator = self.generator, torch.Generator().manual_seed(self.seed)
        try:
            return super().__iter__()
        finally:
            self.generator = before

    def _from_workers(self, batches: Any) -> Iterator[Any]:
        """Raise our own errors unchanged: torch prepends the worker's traceback to their message."""
        try:
            yield from batches
        except OneloopError as error:
            kind = type(error)
            words = str(error).rpartition(f"{kind.__module__}.{kind.__qualname__}: ")[2].strip()
            raise kind(words) from error
        finally:
            # When garbage-collected late, torch waits five seconds for each worker.
            if self.num_workers and not self.persistent_workers:
                batches._shutdown_workers()

    def _plain(self) -> Iterator[Any]:
        collate, dataset = self.collate_fn, self.dataset
        self.ended = False
        if isinstance(dataset, IterableDataset):
            samples = iter(dataset)
            if samples is dataset:  # iter() would start again, and islice calls it
                samples = iter(partial(next, samples, _END), _END)
            while chunk := list(islice(samples, self.batch_size)):
                self.ended = len(chunk) < self.batch_size
                if not (self.ended and self.drop_last):
                    yield collate(chunk)
                if self.ended:  # an iterator that starts again after its end would never end here
                    return
            return
        for indices in self.batch_sampler:
            yield collate(fetch_samples(dataset, indices))


def close(loader: Any) -> None:
    """Stop the workers that a loader of ours keeps between epochs."""
    kept: Any = getattr(loader, "_iterator", None) if isinstance(loader, Loader) else None
    if kept is not None:
        kept._shutdown_workers()
        loader._iterator = None


def begin_epoch(loader: Any, seed: int, epoch: int) -> None:
    """Call it before iter(): the random numbers of the workers of a loader of ours depend on (seed, epoch) only.

    torch seeds new workers from the loader's generator, and the n-th epoch of a run is not the n-th of a resumed run.
    """
    if isinstance(loader, Loader):
        loader.seed = key_of(seed, epoch, _WORKERS) >> 1


def iterate(loader: Any) -> Iterator[Any]:
    """The batches of a loader, ours or the user's."""
    return iter(loader)


def has_drawn_seed(loader: Any) -> bool | None:
    """Whether a loader, ours or the user's, has drawn the seed of workers that it keeps from the default generator.
    None: it draws none, or one in each iteration."""
    if isinstance(loader, Loader) and loader.draws_seed:
        return loader.has_drawn if loader.keeps_seed else None
    loader = _base(loader)
    if not isinstance(loader, DataLoader) or not (loader.num_workers and loader.persistent_workers):
        return None
    if loader.generator is not None:
        return True if isinstance(loader.generator, _Apart) else None
    return loader._iterator is not None


def seed_without_drawing(loader: Any) -> None:
    """Let it seed workers that it keeps without drawing from the default generator."""
    if isinstance(loader, Loader) and loader.draws_seed:
        loader.has_drawn = True
    else:
        _base(loader).generator = _Apart().set_state(torch.get_rng_state())


class _Apart(torch.Generator):
    """The generator of a loader that would draw from the default one."""


def _base(loader: Any) -> Any:
    """The DataLoader within one that has been prepared for several processes."""
    return getattr(loader, "base_dataloader", loader)


def is_own(loader: Any) -> bool:
    """Whether make_loader created it, which shards by process."""
    return isinstance(loader, Loader)


def is_loader(value: Any) -> bool:
    """Whether it yields batches, rather than being a dataset."""
    return isinstance(value, DataLoader)


def is_iterable(dataset: Any) -> bool:
    """Whether it is an iterable dataset, without __getitem__."""
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")


def make_loader(dataset: Any, loader_options: LoaderOptions) -> Loader:
    """Batches of a batch sampler, or in the order of an iterable dataset. The loader has its own generator, so that
    iterating does not use the RNG of the model."""
    options: dict[str, Any] = {
        "collate_fn": loader_options.collator,
        "num_workers": loader_options.workers,
        "pin_memory": loader_options.pin and torch.cuda.is_available(),
        "generator": None if loader_options.draws_seed else torch.Generator().manual_seed(loader_options.seed),
    }
    if loader_options.workers:
        # Workers of an iterable are restarted in every epoch: their RNG state would depend on those before.
        options["persistent_workers"] = loader_options.persistent and loader_options.batches is not None
        options["prefetch_factor"] = loader_options.prefetch
        options["in_order"] = loader_options.in_order
        options["worker_init_fn"] = ignore_job_signals
        options["multiprocessing_context"] = loader_options.context
    if loader_options.batches is not None:
        return _as_asked(Loader(dataset, batch_sampler=loader_options.batches, **options), loader_options)
    known = dataset.known if isinstance(dataset, ProcessShard) else None
    if not isinstance(dataset, IterableDataset):
        dataset = Stream(dataset, loader_options.batch_size)
    elif loader_options.workers > 1:
        warn_about_repeated_samples(dataset, "torch", "torch.utils.data.get_worker_info()")
    loader = Loader(dataset, batch_size=loader_options.batch_size, drop_last=loader_options.drop_last, **options)
    loader.known = known
    return _as_asked(loader, loader_options)


def _as_asked(loader: Loader, asked: LoaderOptions) -> Loader:
    loader.seed = asked.seed
    loader.fetches_ahead = asked.draws_seed and not asked.workers
    # For workers torch also draws the seed by which its own pipes shuffle.
    loader.draws_seed = asked.draws_seed and not (asked.workers and isinstance(loader.dataset, _PIPES))
    loader.keeps_seed = asked.persistent and asked.workers > 0
    return loader


class Stream(Source, IterableDataset):
    """Anything with __iter__ as an iterable dataset of torch, sharded over workers by batch.

    A source that calls torch's get_worker_info shards its samples itself.
    """

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if worker is None or is_worker_aware(self.source):
            return iter(self.source)
        part, streams = (worker.id, worker.num_workers), (torch.get_rng_state, torch.set_rng_state)
        return self.shard_batches(part, worker.seed - worker.id, "torch", _worker_hidden, streams)


@contextmanager
def _worker_hidden() -> Iterator[None]:
    """A context in which get_worker_info returns None."""
    info, worker_state._worker_info = worker_state._worker_info, None
    try:
        yield
    finally:
        worker_state._worker_info = info


def reseed_generator(dataset: Any, seed: int) -> None:
    """Reseed the torch.Generator of an iterable dataset that has one in `.generator`, for each epoch."""
    generator = getattr(dataset, "generator", None)
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)


def generator_states(loader: Any) -> list[Any]:
    """The states, as arrays, of generators that a user's loader and samplers draw their order from."""
    return [generator.get_state().numpy() for generator in _generators(loader)]


def set_generator_states(loader: Any, states: list[Any]) -> None:
    """Set them; nothing if there are more than the loader has. Fewer are those of an earlier release."""
    generators = _generators(loader)
    if len(generators) >= len(states):
        for generator, state in zip(generators, states):
            generator.set_state(torch.from_numpy(state.copy()))


def _generators(loader: Any) -> list[torch.Generator]:
    """The generators of a user's loader, each once. Loaders of make_loader are reseeded and have none here."""
    parts = [None if isinstance(loader, Loader) else loader]
    waiting = [getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)]
    while waiting and len(parts) < 9:  # a sampler of batches has another one within it
        part = waiting.pop(0)
        if part is not None:
            parts.append(part)
            waiting += [getattr(part, "sampler", None), getattr(part, "batch_sampler", None)]
    dataset = getattr(loader, "dataset", None)
    parts.append(dataset if isinstance(dataset, IterableDataset) else None)
    found = [getattr(part, "generator", None) for part in parts]
    found = [each for each in found if isinstance(each, torch.Generator) and not isinstance(each, _Apart)]
    return list({id(each): each for each in found}.values())
