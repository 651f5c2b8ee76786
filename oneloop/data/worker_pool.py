"""Batches made in worker processes, for frameworks that have no loader to build on.

Batches come in the order of their tasks, errors arrive as they were raised, and what a batch is made of stays what it
is. Each worker has one pipe: tasks go in, and pickles whose arrays lie beside them, uncopied, come out.
"""

import contextlib
import io
import multiprocessing
import os
import pickle
import queue
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from ..distributed.preemption import main_process_lives
from ..errors import DataError

END = "oneloop: no more batches"  # what a worker's function returns when it has nothing left
_ORPHAN = 2.0  # seconds between two looks at whether the main process is still there


class Workers:
    """Processes that turn tasks into batches.

    serve(number) is called in each worker and returns its function of a task. reduce(value) says how values of the
    framework are pickled, as pickle's reducer_override does. `ahead` is how many tasks each worker has before it.
    """

    def __init__(
        self,
        serve: Callable[[int], Callable[[Any], Any]],
        count: int,
        *,
        reduce: Callable[[Any], Any],
        ahead: int = 2,
        context: str = "fork",
        in_order: bool = True,
    ) -> None:
        self.ahead = ahead
        self.in_order = in_order
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        self._open: list[int] = [0] * count  # tasks that a worker has been given and not answered
        made = multiprocessing.get_context(context)
        for number in range(count):
            pipe, far = made.Pipe()
            # A forked worker has copies of the main process's ends, and would never see that they are closed.
            inherited = [*self.pipes, pipe] if context == "fork" else []
            process = made.Process(  # type: ignore[attr-defined]
                target=_work, args=(far, inherited, serve, number, reduce, os.getpid()), daemon=True
            )
            process.start()
            far.close()
            self.pipes.append(pipe)
            self.processes.append(process)

    def run(self, tasks: Iterator[Any]) -> Iterator[Any]:
        """The batches of these tasks. A worker that has nothing left is asked no more; when none has, the run ends."""
        for number in range(len(self.pipes)):  # a run before this one may have been left in its middle
            while self._open[number]:
                self._answer(number)
        left, order = True, list[int]()  # whose batch comes next
        for turn in range(self.ahead * len(self.pipes)):
            left = left and self._give(turn % len(self.pipes), tasks, order)
        while order:
            number = order.pop(0) if self.in_order else self._first_ready(order)
            batch = self._receive(number)
            if isinstance(batch, str) and batch == END:
                for _ in range(self._open[number]):  # what else it was asked for has no answer either
                    self._receive(number)
                order = [other for other in order if other != number]
                continue
            left = left and self._give(number, tasks, order)
            yield batch

    def _give(self, number: int, tasks: Iterator[Any], order: list[int]) -> bool:
        """Hand a worker its next task; whether there was one."""
        try:
            task = next(tasks)
        except StopIteration:
            return False
        with contextlib.suppress(BrokenPipeError):  # a worker that is gone is found when it is asked for the batch
            self.pipes[number].send(task)
        self._open[number] += 1
        order.append(number)
        return True

    def _first_ready(self, order: list[int]) -> int:
        """in_order=False: whoever has a batch."""
        ready = wait([self.pipes[number] for number in set(order)])
        number = next(number for number in order if self.pipes[number] in ready)
        order.remove(number)
        return number

    def _receive(self, number: int) -> Any:
        good, value = self._answer(number)
        if good:
            return value
        raised, where = value
        raise raised from RuntimeError(f"in worker {number} of the data loader:\n{where}")

    def _answer(self, number: int) -> tuple[bool, Any]:
        """The next batch of a worker, or, with False, its error and where that was raised."""
        pipe = self.pipes[number]
        try:
            good, words, buffers = pickle.loads(pipe.recv_bytes())
            parts = [pipe.recv_bytes() for _ in range(buffers)]
        except (EOFError, ConnectionResetError) as error:
            process = self.processes[number]
            process.join(5)
            raise DataError(
                f"worker {number} of the data loader ended with the status {process.exitcode} before it had made its "
                "batch: it was killed, perhaps for want of memory. Use fewer workers or smaller batches."
            ) from error
        self._open[number] -= 1
        return good, pickle.loads(words, buffers=parts)

    def close(self) -> None:
        """End the processes."""
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.kill()  # it ignores the signals that ask a run to leave
        for process in self.processes:
            process.join()
        self.pipes, self.processes = [], []


class _Pickler(pickle.Pickler):
    def __init__(self, file: Any, reduce: Callable[[Any], Any], buffers: list[Any]) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers.append)
        self._reduce = reduce

    def reducer_override(self, value: Any) -> Any:
        return self._reduce(value)


def _send(pipe: Connection, good: bool, value: Any, reduce: Callable[[Any], Any]) -> None:
    file, buffers = io.BytesIO(), []  # type: ignore[var-annotated]
    _Pickler(file, reduce, buffers).dump(value)
    pipe.send_bytes(pickle.dumps((good, file.getvalue(), len(buffers))))
    for buffer in buffers:
        pipe.send_bytes(buffer.raw())


def _work(
    pipe: Connection, inherited: list[Connection], serve: Callable, number: int, reduce: Callable, parent: int
) -> None:
    """The life of a worker: until the main process closes the pipe or is gone."""
    for end in inherited:
        end.close()
    tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
    # Tasks are read at once: a worker that writes a large batch must not keep the main process from writing to it.
    threading.Thread(target=_read, args=(pipe, tasks, parent), daemon=True).start()
    function = None
    while True:
        task = tasks.get()
        try:
            function = function or serve(number)
            value: tuple[bool, Any] = (True, function(task))
        except BaseException as error:
            value = (False, (error, traceback.format_exc()))
        try:
            _send(pipe, *value, reduce)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)
        except Exception as error:  # what cannot be pickled; an error is told by its words then
            words = str(value[1][0]) if not value[0] else f"a batch cannot leave its worker: {error}"
            _send(pipe, False, (DataError(words), traceback.format_exc()), reduce)


def _read(pipe: Connection, tasks: "queue.SimpleQueue[Any]", parent: int) -> None:
    try:
        while True:
            while not pipe.poll(_ORPHAN):
                if not main_process_lives(parent):
                    os._exit(0)
            tasks.put(pipe.recv())
    except (EOFError, OSError):
        os._exit(0)
