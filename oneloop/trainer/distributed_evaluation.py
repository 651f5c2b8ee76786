"""Distributed evaluation: each process evaluates its batches, and each sample is counted once, in order.

Of the processes that evaluate the same batch, its leader sends what came of it.
"""

from typing import TYPE_CHECKING, Any

from ..errors import EvaluationInterrupted
from .eval_outputs import EvalOutputs
from .gathering import map_leaves

if TYPE_CHECKING:
    from .core import Core

BYTES = 1 << 25  # per process and message
MOST_TURNS = 64


class DistributedEvalOutputs(EvalOutputs):
    """Batches are assigned in turns, so the order of the dataset is that of the turns and, within a turn, of their
    indices in the mesh. Outputs are gathered in a few large messages.

    Metrics are computed by the main process and broadcast. Predictions are available `everywhere`, as predict() returns
    them, or only in the main process, where evaluate() needs them.
    """

    def __init__(self, core: "Core", expected: int | None, loss_only: bool, everywhere: bool) -> None:
        super().__init__(core, expected, loss_only, everywhere)
        self.processes = core.processes
        self.everywhere = everywhere
        self.turns: list[tuple | None] = []
        self.turns_per_message = 1
        self._on_device: list[int] = []  # turns whose values are still on the device
        # batch_eval_metrics: the batch to pass to compute_metrics when another one follows
        self._next: tuple | None = None
        self._some_loss = False

    @property
    def has_loss(self) -> bool:
        return self._some_loss

    def batch_metrics(self, last: bool) -> None:
        """Does nothing: batches are passed to compute_metrics after they have been gathered."""

    def end_of_turn(self, step: int) -> None:
        self._on_device.append(len(self.turns))
        self.turns.append(self.held.pop() if self.held else None)
        if len(self._on_device) >= (self.trainer.args.eval_accumulation_steps or 1):
            self.to_host()
        if len(self.turns) >= self.turns_per_message:
            self._exchange(done=False)

    def to_host(self) -> None:
        for place in self._on_device:
            turn = self.turns[place]
            if turn is not None:
                self.turns[place] = (turn[0], *(self._numpy(value) for value in turn[1:]))
        self._on_device = []

    def _exchange(self, done: bool) -> bool:
        """Gather the turns; returns whether all processes have reached the end of their loaders."""
        self.to_host()
        turns, self.turns = self.turns, []
        core = self.core
        watch = core.run.sync.signals if core.abandons_evaluations else None
        heard = float(watch.received or 0) if watch is not None else 0.0
        size = max((_bytes(turn) for turn in turns), default=0)
        sizes, ends, signals = zip(*self.processes.all_gather([size, done, heard]))
        if watch is not None and any(signals):
            watch.agree_on(int(max(signals)))
            raise EvaluationInterrupted("interrupted by a preemption signal")
        mine = turns if self.core.mesh.is_batch_leader else []
        every = self.processes.all_gather_object(mine) if self.everywhere else self.processes.gather_object(mine)
        by_batch = self.core.mesh.per_batch(every) if every is not None else ()
        self.turns_per_message = int(max(1, min(MOST_TURNS, BYTES // max(1, *sizes))))
        for number in range(max(map(len, by_batch), default=0)):
            for sent in by_batch:
                batch = sent[number] if number < len(sent) else None
                if batch is not None:
                    self._take(batch)
        return all(ends)

    def _take(self, batch: tuple) -> None:
        if not self.trainer.args.batch_eval_metrics:
            self._keep(*batch)
            return
        if not self.core.mesh.is_main:  # which computes the metrics
            self._keep_arrays(batch[2], batch[3])
            return
        before, self._next = self._next, batch
        if before is not None:
            self._show_tensors(before, last=False)

    def _show_tensors(self, batch: tuple, last: bool) -> None:
        from_numpy = self.tensors.from_numpy

        def tensor(leaf: Any) -> Any:  # a whole batch may hold texts
            return from_numpy(leaf) if hasattr(leaf, "dtype") else leaf

        self._show((batch[0], *(map_leaves(value, tensor) for value in batch[1:])), last)

    def finish(self, prefix: str) -> dict[str, Any]:
        while not self._exchange(done=True):
            pass
        if self.everywhere and (not self.trainer.args.batch_eval_metrics or not self.core.mesh.is_main):
            self._join_arrays()
        metrics, self.seen, self._some_loss = self.processes.run_on_main(
            lambda: self._finish(prefix), "compute_metrics"
        )
        return metrics

    def _finish(self, prefix: str) -> tuple[dict[str, Any], int, bool]:
        """Compute the metrics; called in the main process only."""
        if self.trainer.args.batch_eval_metrics:
            if self._next is not None:
                self._show_tensors(self._next, last=True)
            metrics = dict(self.batch_result)
            self._join_arrays()
        else:
            if not self.everywhere:
                self._join_arrays()
            metrics = self._whole_metrics() if self.seen else {}
        return self._named(metrics, prefix), self.seen, bool(self.losses)


def _bytes(turn: tuple | None) -> int:
    total = 0

    def count(leaf: Any) -> Any:
        nonlocal total
        total += getattr(leaf, "nbytes", 64)
        return leaf

    for value in (turn or ())[1:]:
        map_leaves(value, count)
    return total
