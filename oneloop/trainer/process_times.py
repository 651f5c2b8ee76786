"""How long each process needs for its own part of a step, by which the slowest one is found.

A step takes equally long in all processes, since they wait for each other. What is timed here is what a process does
until it comes to the exchange of gradients, and after it: waiting for data, forward passes, the backward passes before
the last one, and the optimizer step; not evaluations, logs and saves. On an accelerator it is the time of the host,
which queues the work. Where a forward pass is a collective (FSDP), no part of a step is a process's own, and nothing is
timed.
"""

import statistics
import time
from typing import Any

from .meter import Meter
from .part import Part, RunContext

EVERY = 10  # steps between two messages, at least
ALL = 16  # processes whose times are all logged; of more, those of the slowest
SLOWEST = 4
PREFIX = "process_seconds/"


class ProcessTimes(Part):
    """The means since the last message are among the figures of a log, in log.jsonl."""

    name = "process_times"

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self._meter = context.parts.of(Meter)
        self._seconds, self._steps = 0.0, 0  # since the last message
        self._told = 0  # the step of that
        self._start = self._computed = self._gathered = 0.0

    @property
    def is_active(self) -> bool:
        return not self.context.mesh.is_single and not self.context.strategy.forward_is_collective

    def begin_run(self) -> None:
        self._told = self.context.state.global_step

    def start_update(self, micro_batches: list[Any]) -> None:
        self._start = time.perf_counter()

    def end_accumulation(self, micro_batches: list[Any]) -> None:
        """Gradients may have been exchanged before, while the last backward pass computed them."""
        now, reached = time.perf_counter(), self.context.strategy.reached_exchange
        self._computed = reached if self._start < reached < now else now

    def gradients_ready(self, loss: Any) -> None:
        self._gathered = time.perf_counter()

    def end_step(self, step: int) -> None:
        if self._start:
            own = self._computed - self._start + time.perf_counter() - self._gathered
            self._seconds += own + self._meter.last_data_wait
            self._steps += 1
        self._start = 0.0

    def log(self) -> dict[str, Any]:
        """A short message, unless the last one was a few steps ago. No value of the log: that of two runs is equal."""
        step = self.context.state.global_step
        if step - self._told < EVERY:
            return {}
        self._told = step
        mean = self._seconds / self._steps if self._steps else 0.0
        self._seconds, self._steps = 0.0, 0
        times = {rank: row[0] for rank, row in enumerate(self.context.processes.all_gather([mean]))}
        self._meter.add_figures(_shown(times))
        return {}


def _shown(times: dict[int, float]) -> dict[str, float]:
    """Of many processes the slowest, and the median of all."""
    slowest = sorted(times, key=lambda rank: -times[rank])[: len(times) if len(times) <= ALL else SLOWEST]
    found = {f"{PREFIX}process {rank}": round(times[rank], 6) for rank in sorted(slowest)}
    if len(times) > ALL:
        found[f"{PREFIX}median"] = round(statistics.median(times.values()), 6)
    return found
