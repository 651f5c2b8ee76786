"""Sharding of iterable datasets across processes: each sample goes to one process.

Every process iterates over the whole source and keeps its shard of each global micro-batch, so the global batches are
those of a single process, in the same order, without communication. The cost is that every process reads everything.
Datasets that shard themselves, because their code reads the rank, are left unchanged.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from .. import libraries, randomness
from ..backends import registry
from ..backends.loading import load
from ..introspect import declared, log_decision
from .feistel import key_of
from .worker_seeding import seed_rngs

_SOURCE_SEED = -106  # separates the seed of the source's RNG from all others
SHARDED_STATE = "dealt"  # marks the state of a source that was sharded


class ProcessShard:
    """Yields this process's shard of a source of samples.

    The source may draw random numbers while iterating, and all processes must draw the same ones. So the source has its
    own RNG state, which depends only on (seed, epoch), and the process's RNG state is restored after every batch.
    """

    def __init__(
        self,
        source: Any,
        batch_size: int,
        num_shards: int,
        shard_id: int,
        drop_last: bool,
        seed: int,
        backend: Any,
        fills: bool = False,
    ) -> None:
        self.source = source
        self.batch_size, self.shard_count, self.shard_index, self.drop_last = (
            batch_size,
            num_shards,
            shard_id,
            drop_last,
        )
        self.seed, self.backend_name = seed, backend.NAME
        self.fills = fills  # give each process as many samples of a short last chunk, with some of the first ones
        self.epoch = 0
        self._walk: dict[str, np.ndarray] | None = None

    @property
    def known(self) -> tuple[int, int] | None:
        """(batches per process, total samples), if the source has a length."""
        try:
            samples = len(self.source)
        except (TypeError, NotImplementedError):
            return None
        whole, rest = divmod(samples, self.batch_size * self.shard_count)
        return whole + (bool(rest) and not self.drop_last), samples

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        backend = load(self.backend_name)
        together = self.batch_size * self.shard_count
        walk, self._walk = self._walk, None
        own = randomness.get_state(backend)
        if walk is None:
            seed_rngs(self.backend_name, key_of(self.seed, self.epoch, _SOURCE_SEED) >> 1)
        else:
            randomness.set_state(backend, walk)
        samples = iter(self.source)
        first: list[Any] = []
        while True:
            chunk = list(islice(samples, together))
            first = first or chunk[: self.shard_count]
            if self.fills and chunk and len(chunk) % self.shard_count:
                chunk += (first * self.shard_count)[: -len(chunk) % self.shard_count]
            self._walked = randomness.get_state(backend)
            randomness.set_state(backend, own)
            if not chunk or (len(chunk) < together and self.drop_last):
                return
            yield from chunk[slice(*self._part(len(chunk)))]
            own = randomness.get_state(backend)
            randomness.set_state(backend, self._walked)

    def _part(self, count: int) -> tuple[int, int]:
        """Contiguous runs by rank; a short last chunk is divided as evenly as possible, lower ranks first."""
        each, extra = divmod(count, self.shard_count)
        start = self.shard_index * each + min(self.shard_index, extra)
        return start, start + each + (self.shard_index < extra)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("source", "_walked"):
            raise AttributeError(name)
        if self.fills and name in ("state_dict", "load_state_dict"):
            raise AttributeError(name)  # a source that starts at its position does not have the first samples again
        if name == "state_dict" and callable(getattr(self.source, name, None)):
            return self._state
        if name == "load_state_dict" and callable(getattr(self.source, name, None)):
            return self._load
        return getattr(self.source, name)

    def _state(self) -> dict[str, Any] | None:
        """All processes have read equally far, so the state is valid for any number of processes."""
        walk = getattr(self, "_walked", None) or {}
        source = self.source.state_dict()
        if source is None:  # a mixture of which a part has no state
            return None
        return {SHARDED_STATE: {name: array.tolist() for name, array in walk.items()}, "source": source}

    def _load(self, state: dict[str, Any]) -> None:
        if SHARDED_STATE not in state:  # written by a single-process run
            self.source.load_state_dict(state)
            return
        self.source.load_state_dict(state["source"])
        # Streams that are not known here are those of another framework or device.
        known = randomness.get_state(load(self.backend_name))
        stored = {name: values for name, values in state[SHARDED_STATE].items() if name in known}
        self._walk = {name: np.array(values, dtype=known[name].dtype) for name, values in stored.items()} or None


def is_rank_independent(state: Any) -> bool:
    """Whether a saved data state is valid for another number of processes."""
    return isinstance(state, dict) and SHARDED_STATE in state


def source_state(state: Any) -> Any:
    """The state of the source, without that of the sharding."""
    return state["source"] if is_rank_independent(state) else state


def samplers_of(loader: Any) -> list[Any]:
    """The samplers that a loader draws its batches from."""
    batches = getattr(loader, "batch_sampler", None)
    inner = (getattr(batches, "sampler", None), getattr(batches, "batch_sampler", None))
    return [part for part in (getattr(loader, "sampler", None), batches, *inner) if part is not None]


def is_prepared(loader: Any) -> bool:
    """Whether this loader has been prepared to give each process its own batches."""
    return type(loader).__module__ in libraries.SHARDING_LOADERS


def every_nth(batches: Iterator[Any], num_shards: int, shard_id: int) -> Iterator[Any]:
    """This process's batches of a loader that all processes iterate over identically."""
    while turn := list(islice(batches, num_shards)):
        if shard_id < len(turn):
            yield turn[shard_id]


def with_rng_state(streams: dict[str, np.ndarray], backend: Any, begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Start iterating, up to the first batch, with this RNG state: a loader that shuffles draws from it."""
    own = randomness.get_state(backend)
    randomness.set_state(backend, streams)
    batches = begin()
    first = next(batches, _NONE)
    randomness.set_state(backend, own)

    def all_of_them() -> Iterator[Any]:
        if first is not _NONE:
            yield first
            yield from batches

    return all_of_them()


_NONE = object()


# -- data sets that shard themselves

_RANK_NAMES = {"get_rank", "get_world_size", "split_dataset_by_node", "process_index", "num_processes"}


def shards_itself(source: Any, depth: int = 3) -> bool:
    """Whether a dataset shards itself: its code, or that of a dataset it wraps, reads the rank or world size.

    A class attribute `shards_itself` of the dataset overrules this.
    """
    found, why = declared(source, "shards_itself"), ""
    if found is None:
        found = _reads_rank(source, depth)
        if not _is_library(type(source).__module__):
            why = "it asks for the rank of the process" if found else "it does not ask for the rank of the process"
    return log_decision("shards_itself", source, found, why)


def _reads_rank(source: Any, depth: int) -> bool:
    def asks(code: Any) -> bool:
        if _RANK_NAMES & set(code.co_names) or "RANK" in code.co_consts or "WORLD_SIZE" in code.co_consts:
            return True
        return any(asks(c) for c in code.co_consts if hasattr(c, "co_names"))

    if getattr(source, "_distributed", None) is not None:  # set by datasets.distributed.split_dataset_by_node
        return True
    if type(source).__module__ == "ray.data.iterator":  # the worker's shard of a dataset of Ray Train
        return True
    own = [base for base in type(source).__mro__ if not _is_library(base.__module__)]
    values = [value for base in own for value in vars(base).values()]
    codes = [getattr(value.fget if isinstance(value, property) else value, "__code__", None) for value in values]
    if any(asks(code) for code in (*codes, getattr(source, "gi_code", None)) if code is not None):
        return True
    held = list(getattr(source, "__dict__", {}).values()) if depth else []
    return any(_reads_rank(value, depth - 1) for value in held if hasattr(value, "__iter__"))


def _is_library(module: str) -> bool:
    """A class of such a module shards nothing that a user has written."""
    return module.partition(".")[0] in ("builtins", "datasets", "numpy") or registry.is_framework_module(module)
