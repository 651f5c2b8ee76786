"""Loaders: batches of a data set in oneloop's order, on torch's own DataLoader."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from ...errors import OneloopError
from ...preemption import leave_to_main_process


class Loader(DataLoader):
    """A DataLoader. Without workers and pinning it iterates plainly, which saves its bookkeeping on every batch."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if self.num_workers or self.pin_memory or self.timeout:
            return self._from_workers(super().__iter__())
        return self._plain()

    def _from_workers(self, batches: Any) -> Iterator[Any]:
        """Our own errors as they were raised: torch puts the worker's traceback in front of their words."""
        try:
            yield from batches
        except OneloopError as error:
            kind = type(error)
            words = str(error).rpartition(f"{kind.__module__}.{kind.__qualname__}: ")[2].strip()
            raise kind(words) from error
        finally:
            # Left to the garbage collector, which may be late, torch waits five seconds for each worker.
            if self.num_workers and not self.persistent_workers:
                batches._shutdown_workers()

    def _plain(self) -> Iterator[Any]:
        collate, dataset = self.collate_fn, self.dataset
        if isinstance(dataset, IterableDataset):
            samples = iter(dataset)
            while chunk := list(islice(samples, self.batch_size)):
                if len(chunk) < self.batch_size and self.drop_last:
                    return
                yield collate(chunk)
            return
        fetch = getattr(dataset, "__getitems__", None)
        for indices in self.batch_sampler:
            yield collate(fetch(indices) if fetch is not None else [dataset[i] for i in indices])


def close(loader: Any) -> None:
    """End the processes that a loader of ours keeps between epochs."""
    kept: Any = getattr(loader, "_iterator", None) if isinstance(loader, Loader) else None
    if kept is not None:
        kept._shutdown_workers()
        loader._iterator = None


def is_loader(value: Any) -> bool:
    """Something that makes batches, not a data set."""
    return isinstance(value, DataLoader)


def is_iterable(dataset: Any) -> bool:
    """A data set that can only be walked through, not indexed."""
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")


def make_loader(
    dataset: Any,
    *,
    collate: Callable[[list[Any]], Any],
    batches: Any = None,
    batch_size: int = 1,
    drop_last: bool = False,
    workers: int = 0,
    pin: bool = False,
    persistent: bool = False,
    prefetch: int | None = None,
    context: str | None = None,
    in_order: bool = True,
    seed: int = 0,
) -> Loader:
    """Batches by a batch sampler, or in the order of an iterable data set. The loader owns its generator, so that
    iterating never draws from the random stream of the model."""
    options: dict[str, Any] = {
        "collate_fn": collate,
        "num_workers": workers,
        "pin_memory": pin and torch.cuda.is_available(),
        "generator": torch.Generator().manual_seed(seed),
    }
    if workers:
        options |= {"persistent_workers": persistent, "prefetch_factor": prefetch, "in_order": in_order}
        options["worker_init_fn"] = leave_to_main_process
        options["multiprocessing_context"] = context
    if batches is not None:
        return Loader(dataset, batch_sampler=batches, **options)
    if not isinstance(dataset, IterableDataset):
        dataset = Stream(dataset)
    return Loader(dataset, batch_size=batch_size, drop_last=drop_last, **options)


class Stream(IterableDataset):
    """Anything with __iter__ as an iterable data set of torch."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        return iter(self.source)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "source":
            raise AttributeError(name)
        return getattr(self.source, name)


def reseed_generator(dataset: Any, seed: int) -> None:
    """An iterable data set that keeps a torch.Generator in `.generator` gets it reseeded for each epoch."""
    generator = getattr(dataset, "generator", None)
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
