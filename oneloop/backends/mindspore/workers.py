"""Processes that make batches for a loader, in its order.

A worker never computes with MindSpore, whose threads do not survive a fork: collators in it leave arrays as they are,
and tensors that a collator of the user's makes travel as arrays.
"""

import multiprocessing
import os
import traceback
from collections import deque
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import mindspore as ms
import numpy as np

from ...data import seeding
from ...data.permutation import key_of
from ...errors import DataError
from ...preemption import leave_to_main_process
from ..common import map_tensors
from . import tensors

END = "end"


class _Packed:
    """A tensor on its way between processes."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array


def _pack(value: Any) -> Any:
    return map_tensors(value, lambda leaf: isinstance(leaf, ms.Tensor), lambda leaf: _Packed(np.array(leaf.asnumpy())))


def _unpack(value: Any) -> Any:
    return map_tensors(value, lambda leaf: isinstance(leaf, _Packed), lambda leaf: ms.Tensor(leaf.array))


class Workers:
    """So many processes, each with a pipe; batch number n is made by worker n modulo their number."""

    def __init__(self, loader: Any, number: int, context: str | None) -> None:
        make = multiprocessing.get_context(context or ("fork" if hasattr(os, "fork") else None))
        self.pipes: list[Any] = []
        self.processes: list[Any] = []
        for i in range(number):
            ours, theirs = make.Pipe()
            process = make.Process(target=_serve, args=(theirs, loader, i, number), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def fetch(self, batches: Iterator[list[int]], ahead: int) -> Iterator[Any]:
        """The batches of these indices, with so many under way in each worker."""
        size, asked = len(self.pipes), deque()
        numbers = count()

        def ask() -> None:
            indices = next(batches, None)
            if indices is not None:
                worker = next(numbers) % size
                self.pipes[worker].send(("fetch", indices))
                asked.append(worker)

        for _ in range(size * ahead):
            ask()
        try:
            while asked:
                batch = self._receive(asked.popleft())
                ask()
                yield batch
        finally:
            while asked:  # left early: what is under way must not be taken for the next epoch's
                self.pipes[asked.popleft()].recv()

    def walk(self) -> Iterator[Any]:
        """Every worker walks through all the data and brings each of its batches when it is their turn."""
        for pipe in self.pipes:
            pipe.send(("walk", None))
        for number in count():
            batch = self._receive(number % len(self.pipes))
            if isinstance(batch, str) and batch == END:
                return
            yield batch

    def _receive(self, worker: int) -> Any:
        try:
            kind, value = self.pipes[worker].recv()
        except EOFError:
            self.processes[worker].join(5)
            raise DataError(
                f"worker {worker} of the loader has died (exit status {self.processes[worker].exitcode}). A data set "
                "or collator must not compute with MindSpore in a worker; use dataloader_num_workers=0 to see why."
            ) from None
        if kind == "error":
            raise value
        return _unpack(value)

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.join()


def _serve(pipe: Any, loader: Any, worker: int, number: int) -> None:
    """The life of a worker: until the other end of its pipe is closed."""
    leave_to_main_process(worker)
    tensors.in_worker = True
    try:
        while True:
            kind, indices = pipe.recv()
            for batch in [_fetched(loader, indices)] if kind == "fetch" else _walked(loader, worker, number):
                pipe.send(("batch", _pack(batch)))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except BaseException as error:
        pipe.send(("error", _portable(error)))


def _portable(error: BaseException) -> BaseException:
    """An error that survives the way to the main process, with where it came from."""
    import pickle

    try:
        copy = pickle.loads(pickle.dumps(error))
        if hasattr(copy, "add_note"):
            copy.add_note(traceback.format_exc())
        return copy
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")


def _fetched(loader: Any, indices: list[int]) -> Any:
    fetch = getattr(loader.dataset, "__getitems__", None)
    return loader.collate_fn(fetch(indices) if fetch is not None else [loader.dataset[i] for i in indices])


def _walked(loader: Any, worker: int, number: int) -> Iterator[Any]:
    """Each n-th batch of a walk that draws the same random numbers in every worker."""
    seeding.seed_streams("mindspore", loader.seed)
    samples = iter(loader.dataset)
    for place in count():
        batch = list(islice(samples, loader.batch_size))
        if not batch or (len(batch) < loader.batch_size and loader.drop_last):
            break
        if place % number == worker:
            # The collator draws between this batch and the next: numbers of its own, and the walk is not moved.
            walk = seeding_state()
            seed = key_of(loader.seed, place) >> 1
            seeding.seed_streams("mindspore", seed)
            seeding.current = (seed,)
            yield loader.collate_fn(batch)
            restore_state(walk)
    yield END


def seeding_state() -> Any:
    from ...randomness import get_state
    from . import randomness

    return get_state(_Backend(randomness))


def restore_state(state: Any) -> None:
    from ...randomness import set_state
    from . import randomness

    set_state(_Backend(randomness), state)


class _Backend:
    def __init__(self, randomness: Any) -> None:
        self.randomness = randomness
