"""Iterable datasets in DataLoader workers: sharded by the dataset itself, or by oneloop, one batch at a time."""

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import count, islice
from typing import Any

import numpy as np

from ..backends import registry
from . import worker_seeding
from .feistel import key_of

logger = logging.getLogger(__name__)

_SHARDED_BY_WORKER = ("datasets", "webdataset", "streaming", "litdata")  # packages whose streams ask for the worker
_warned: set[type] = set()  # dataset classes that have been warned about


def is_worker_aware(source: Any, depth: int = 3) -> bool:
    """Whether a dataset, or one that it wraps, shards itself across workers: its code uses get_worker_info."""

    def asks(code: Any) -> bool:
        return "get_worker_info" in code.co_names or any(asks(c) for c in code.co_consts if hasattr(c, "co_names"))

    own = [
        base
        for base in type(source).__mro__
        if base.__module__ != "builtins" and not registry.is_framework_module(base.__module__)
    ]
    codes = [getattr(value, "__code__", None) for base in own for value in vars(base).values()]
    if any(asks(code) for code in (*codes, getattr(source, "gi_code", None)) if code is not None):
        return True
    held = list(getattr(source, "__dict__", {}).values()) if depth else []
    return any(is_worker_aware(value, depth - 1) for value in held if hasattr(value, "__iter__"))


def warn_about_repeated_samples(dataset: Any, framework: str, question: str) -> None:
    """Warn once per class that each worker iterates over its own copy of an iterable dataset."""
    kind = type(dataset)
    shards = hasattr(dataset, "n_shards") or hasattr(dataset, "num_shards")
    hub = any(base.__module__.partition(".")[0] in _SHARDED_BY_WORKER for base in kind.__mro__)
    if kind in _warned or shards or hub or is_worker_aware(dataset):
        return
    _warned.add(kind)
    logger.warning(
        "%s is a %s IterableDataset, and each worker iterates over its own copy of it. Samples are repeated unless its "
        "__iter__ uses %s to yield only that worker's shard. Add that, or use dataloader_num_workers=1 or 0.",
        kind.__name__,
        framework,
        question,
    )


def is_streamed(dataset: Any) -> bool:
    """Whether this is an IterableDataset of `datasets`, whose __getitem__ selects a column."""
    return any(
        base.__name__ == "IterableDataset" and base.__module__.partition(".")[0] == "datasets"
        for base in type(dataset).__mro__
    )


def has_shuffle_buffer(dataset: Any) -> bool:
    """Whether a streamed dataset of `datasets` is shuffled through a buffer, which its state_dict does not contain."""
    found, seen = [dataset], 0
    while found and seen < 1000:
        part = found.pop()
        seen += 1
        if type(part).__name__ == "BufferShuffledExamplesIterable":
            return True
        held = getattr(part, "__dict__", {})
        found += [held[name] for name in ("source", "_ex_iterable", "ex_iterable") if name in held]
        found += held.get("ex_iterables", ())
    return False


class Source:
    """An iterable, wrapped by a dataset of a framework."""

    def __init__(self, source: Any, batch_size: int = 1) -> None:
        self.source = source
        self.batch_size = batch_size

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "source":
            raise AttributeError(name)
        return getattr(self.source, name)

    def shard_batches(
        self,
        part: tuple[int, int],
        seed: int,
        framework: str,
        hidden: Callable[[], AbstractContextManager],
        streams: tuple[Callable[[], Any], Callable[[Any], Any]],
    ) -> Iterator[Any]:
        """The samples of every n-th batch, for one worker; `part` is (worker id, number of workers).

        Every worker iterates over the whole source with the same random numbers: together they yield the same batches,
        in the same order, as a loader without workers. `hidden` is the context in which the source sees no worker, so
        that a source whose use of the worker info is_worker_aware does not detect is not sharded twice. `streams` gets
        and sets the framework's RNG state.
        """
        worker_seeding.seed_rngs(framework, seed)
        with hidden():
            samples = iter(self.source)
        for number in count():
            with hidden():
                batch = list(islice(samples, self.batch_size))
            if not batch:
                return
            if number % part[1] == part[0]:
                # The collator draws between two batches: give it its own seed, so that the source's RNG is unaffected.
                source_state = random.getstate(), np.random.get_state(), streams[0]()
                own = key_of(seed, number) >> 1
                worker_seeding.seed_rngs(framework, own)
                worker_seeding.current = (own,)
                yield from batch
                random.setstate(source_state[0])
                np.random.set_state(source_state[1])
                streams[1](source_state[2])
