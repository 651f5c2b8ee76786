"""A pool of DataLoader workers, for frameworks without a suitable loader.

Batches arrive in the order of their tasks, exceptions are raised as in the worker, and values keep their types. Each
worker has one pipe: tasks go in, and pickles with out-of-band array buffers come out.
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

from ..distributed.preemption import is_main_process_alive
from ..errors import DataError

END = "oneloop: no more batches"  # returned by a worker's function when it has no more batches
_ORPHAN = 2.0  # seconds between checks that the main process is alive


class Workers:
    """Processes that turn tasks into batches.

    serve(number) is called in each worker and returns the function that handles a task. reduce(value) pickles values of
    the framework, like pickle's reducer_override. `ahead` is the number of tasks queued per worker.
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
        self._open: list[int] = [0] * count  # tasks sent to each worker and not yet answered
        made = multiprocessing.get_context(context)
        for number in range(count):
            pipe, far = made.Pipe()
            # A forked worker inherits the main process's ends and would never see that they are closed.
            inherited = [*self.pipes, pipe] if context == "fork" else []
            process = made.Process(  # type: ignore[attr-defined]
                target=_work, args=(far, inherited, serve, number, reduce, os.getpid()), daemon=True
            )
            process.start()
            far.close()
            self.pipes.append(pipe)
            self.processes.append(process)

    def run(self, tasks: Iterator[Any]) -> Iterator[Any]:
        """The batches of these tasks. A worker that has no more batches gets no more tasks; ends when none has any."""
        for number in range(len(self.pipes)):  # an earlier run may have been abandoned
            while self._open[number]:
                self._answer(number)
        left, order = True, list[int]()  # the workers in the order of their batches
        for turn in range(self.ahead * len(self.pipes)):
            left = left and self._give(turn % len(self.pipes), tasks, order)
        while order:
            number = order.pop(0) if self.in_order else self._first_ready(order)
            batch = self._receive(number)
            if isinstance(batch, str) and batch == END:
                for _ in range(self._open[number]):  # its other pending tasks have no batches either
                    self._receive(number)
                order = [other for other in order if other != number]
                continue
            left = left and self._give(number, tasks, order)
            yield batch

    def _give(self, number: int, tasks: Iterator[Any], order: list[int]) -> bool:
        """Send a worker its next task; returns whether there was one."""
        try:
            task = next(tasks)
        except StopIteration:
            return False
        with contextlib.suppress(BrokenPipeError):  # a dead worker is reported when its batch is received
            self.pipes[number].send(task)
        self._open[number] += 1
        order.append(number)
        return True

    def _first_ready(self, order: list[int]) -> int:
        """in_order=False: the first worker with a batch ready."""
        ready = wait([self.pipes[number] for number in set(order)])
        number = next(number for number in order if self.pipes[number] in ready)
        order.remove(number)
        return number

    def _receive(self, number: int) -> Any:
        good, value = self._answer(number)
        if good:
            return value
        raised, where = value
        raise raised from RuntimeError(f"in data loader worker {number}:\n{where}")

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
                f"data loader worker {number} exited with status {process.exitcode} before it produced its batch: it "
                "was killed, possibly because of low memory. Use fewer workers or smaller batches."
            ) from error
        self._open[number] -= 1
        return good, pickle.loads(words, buffers=parts)

    def close(self) -> None:
        """Stop the worker processes."""
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.kill()  # workers ignore the preemption signals
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
    """The worker's main loop, until the main process closes the pipe or exits."""
    for end in inherited:
        end.close()
    tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
    # Tasks are read in a thread: a worker that is sending a large batch must not block the main process's writes.
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
        except Exception as error:  # not picklable; then send the error message only
            words = str(value[1][0]) if not value[0] else f"a batch cannot be sent from its worker: {error}"
            _send(pipe, False, (DataError(words), traceback.format_exc()), reduce)


def _read(pipe: Connection, tasks: "queue.SimpleQueue[Any]", parent: int) -> None:
    try:
        while True:
            while not pipe.poll(_ORPHAN):
                if not is_main_process_alive(parent):
                    os._exit(0)
            tasks.put(pipe.recv())
    except (EOFError, OSError):
        os._exit(0)
