"""Iterable data sets in worker processes: who deals out their samples, they themselves or oneloop by the batch."""

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

_warned: set[type] = set()  # classes of data sets that a warning has named


def minds_workers(source: Any, depth: int = 3) -> bool:
    """Whether the code of a data set, or of one that it holds, asks for get_worker_info."""

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
    return any(minds_workers(value, depth - 1) for value in held if hasattr(value, "__iter__"))


def warn_of_repeats(dataset: Any, framework: str, question: str) -> None:
    """Said once of a class: each worker walks through its own copy of an iterable data set."""
    kind = type(dataset)
    shards = hasattr(dataset, "n_shards") or hasattr(dataset, "num_shards")
    hub = any(base.__module__.partition(".")[0] == "datasets" for base in kind.__mro__)
    if kind in _warned or shards or hub or minds_workers(dataset):
        return
    _warned.add(kind)
    logger.warning(
        "%s is a %s IterableDataset, and each worker walks through its own copy of it. Unless its __iter__ looks at "
        "%s and yields that worker's part, samples repeat. Add that, or use dataloader_num_workers=1 or 0.",
        kind.__name__,
        framework,
        question,
    )


class Source:
    """Anything with __iter__, held by a data set of a framework."""

    def __init__(self, source: Any, batch_size: int = 1) -> None:
        self.source = source
        self.batch_size = batch_size

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "source":
            raise AttributeError(name)
        return getattr(self.source, name)

    def deal(
        self,
        part: tuple[int, int],
        seed: int,
        framework: str,
        hidden: Callable[[], AbstractContextManager],
        streams: tuple[Callable[[], Any], Callable[[Any], Any]],
    ) -> Iterator[Any]:
        """The samples of each n-th batch, for the worker `part` (number, of how many).

        Every worker walks through the whole source, with the same random numbers: together they bring what a loader
        without workers would, in the same order. `hidden` is the context in which the source sees no worker: one that
        asks in a way minds_workers does not find would be dealt out twice. `streams` gets and sets the framework's
        random state.
        """
        worker_seeding.seed_streams(framework, seed)
        with hidden():
            samples = iter(self.source)
        for number in count():
            with hidden():
                batch = list(islice(samples, self.batch_size))
            if not batch:
                return
            if number % part[1] == part[0]:
                # The collator draws between this batch and the next: numbers of its own, and the walk is not moved.
                walk = random.getstate(), np.random.get_state(), streams[0]()
                own = key_of(seed, number) >> 1
                worker_seeding.seed_streams(framework, own)
                worker_seeding.current = (own,)
                yield from batch
                random.setstate(walk[0])
                np.random.set_state(walk[1])
                streams[1](walk[2])
