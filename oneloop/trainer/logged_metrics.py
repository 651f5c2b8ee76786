"""Trainer.log_metric: values of single micro-batches, whose average is in the next log or in the metrics of an
evaluation.

Values stay on the device until a log, a save or the end of an evaluation reads them. Sums are exact (fractions), so
they depend neither on the order of adding nor on the number of processes, and a log after a resume has the same values.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError, a_type
from ..formats.schema import hex_number, listing, mapping
from ..introspect import logs_metrics
from .part import Part, RunContext

if TYPE_CHECKING:
    from ..checkpoint.resume import StoredRun

UNREAD = 512  # values that may be on the device
TAKEN = ("loss", "grad_norm", "learning_rate", "epoch", "step")  # in every log


class _Average:
    """A weighted average."""

    def __init__(self) -> None:
        self.total, self.weight = Fraction(0), Fraction(0)
        self.is_finite = True

    def add(self, value: float, weight: float) -> None:
        if math.isfinite(value) and math.isfinite(weight):
            self.total += Fraction(value) * Fraction(weight)
            self.weight += Fraction(weight)
        else:
            self.is_finite = False

    def merge(self, other: "_Average") -> None:
        self.total, self.weight = self.total + other.total, self.weight + other.weight
        self.is_finite = self.is_finite and other.is_finite

    def value(self) -> float:
        return float(self.total / self.weight) if self.is_finite and self.weight else math.nan

    def to_json(self) -> list[list[str]]:
        return [_as_floats(self.total), _as_floats(self.weight if self.is_finite else Fraction(0))]

    @classmethod
    def from_json(cls, stored: list[list[str]]) -> "_Average":
        made = cls()
        made.total, made.weight = (sum((Fraction(float.fromhex(x)) for x in each), Fraction(0)) for each in stored)
        made.is_finite = made.weight != 0
        return made


def _as_floats(exact: Fraction) -> list[str]:
    """Floats that add up to a sum of floats, exactly."""
    found = []
    while exact:
        found.append(float(exact).hex())
        exact -= Fraction(float(exact))
    return found


Averages = dict[str, _Average]


class LoggedMetrics(Part):
    """The values since the last log, and those of the evaluation that runs."""

    name = "logged_metrics"
    schema = {"logged_metrics": mapping(listing(listing(hex_number), 2))}

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self.averages: Averages = {}  # of this process
        self.of_all: Averages = {}  # of all processes, at the last save
        self._unread: list[tuple[int, str, Any, Any]] = []  # with the steps that are done
        self._evaluating = False
        self._is_muted = False

    def record(self, name: str, value: Any, weight: Any) -> None:
        """Add a value. No host sync, unless many are waiting."""
        if not isinstance(name, str) or not name or name in TAKEN:
            raise ArgumentError(
                f"log_metric: the name {name!r} cannot be used; expected text other than {', '.join(TAKEN)}, which "
                "every log has. Choose another name."
            )
        if not self._is_shared:
            raise ArgumentError(
                f"log_metric({name!r}) is called by no method of the Trainer's class or of the model's, so the "
                "other processes do not expect it. Set the class attribute logs_metrics = True in a subclass "
                "of the Trainer."
            )
        if not (self._evaluating or self._is_muted or self.context.trainer.is_in_train):
            raise ArgumentError(
                f"log_metric({name!r}) averages values of training and evaluation, but neither is running. Call "
                "trainer.log({...}) to log a value at once."
            )
        held = self._held(name, value), self._held(f"the weight of {name}", weight)
        is_repeated = not self._evaluating and self.log not in self.context.hooks.log  # for somebody who compares
        if self._is_muted or is_repeated:
            return
        done = self.context.state.global_step
        if len(self._unread) >= UNREAD and self._unread[-1][0] != done:  # within an update they may be taken back
            self._read()
        self._unread.append((done, name, *held))

    @cached_property
    def _is_shared(self) -> bool:
        """Whether the processes add up their averages at each log: the same in all of them."""
        return self.context.mesh.is_single or logs_metrics(self.context.trainer)

    def _held(self, name: str, value: Any) -> Any:
        """A number, or a copy on the device without its graph."""
        tensors = self.context.backend.tensors
        if isinstance(value, (int, float)):
            return float(value)
        if math.prod(getattr(value, "shape", (0,))) != 1:
            raise ArgumentError(
                f"log_metric: {name} is {_described(value)}; expected a number or a tensor with one element. Pass its "
                "mean, and the number of values as weight=."
            )
        return tensors.detach(value).reshape(()) * 1 if tensors.is_tensor(value) else float(value)

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Whatever is computed here is in no log: it keeps other processes company, or is simulated for a plan."""
        before, self._is_muted = self._is_muted, True
        try:
            yield
        finally:
            self._is_muted = before

    def split_micro_batches(self, micro_batches: list[Any]) -> None:
        """Memory ran out: the update is computed again, from its first micro-batch."""
        done = self.context.state.global_step
        self._unread = [each for each in self._unread if each[0] != done]

    # -- logs, evaluations and checkpoints

    def log(self) -> dict[str, Any]:
        found = self._of_all()
        self.averages = {}
        return {name: average.value() for name, average in found.items()}

    @contextmanager
    def evaluation(self, metrics: dict[str, Any], prefix: str) -> Iterator[None]:
        """What is recorded in this context is added to the metrics, over the whole dataset."""
        before = self.averages, self._unread, self._evaluating
        self.averages, self._unread, self._evaluating = {}, [], True
        try:
            yield
            metrics.update({f"{prefix}_{name}": average.value() for name, average in self._of_all().items()})
        finally:
            self.averages, self._unread, self._evaluating = before

    def _of_all(self) -> Averages:
        """The averages of all batches. On several processes a short message, and one more if there are any."""
        self._read()
        processes, mesh = self.context.processes, self.context.mesh
        if mesh.is_single:
            return self.averages
        if not self._is_shared or not any(row[0] for row in processes.all_gather([float(len(self.averages))])):
            return {}
        found: Averages = {}
        every = processes.all_gather_object({name: each.to_json() for name, each in self.averages.items()})
        for stored in mesh.per_batch(every):
            for name, values in stored.items():
                found.setdefault(name, _Average()).merge(_Average.from_json(values))
        return dict(sorted(found.items()))

    def _read(self) -> None:
        """Host sync: add what is on the device to the averages."""
        unread, self._unread = self._unread, []
        on_device = [each for *_, value, weight in unread for each in (value, weight) if not isinstance(each, float)]
        read = iter(self.backend.tensors.scalars(on_device).tolist() if on_device else ())
        for _, name, *pair in unread:
            value, weight = (each if isinstance(each, float) else next(read) for each in pair)
            self.averages.setdefault(name, _Average()).add(value, weight)

    def before_save(self) -> None:
        self.of_all = self._of_all()

    def state(self) -> dict[str, Any]:
        if not self.of_all:
            return {}
        return {"logged_metrics": {name: average.to_json() for name, average in self.of_all.items()}}

    def load(self, stored: dict[str, Any], source: "StoredRun") -> None:
        """The first batch continues with the averages of all."""
        if self.context.mesh.batch_index == 0:
            before = stored.get("logged_metrics", {})
            self.averages = {name: _Average.from_json(values) for name, values in before.items()}


def _described(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"{a_type(value)}" + (f" of shape {tuple(shape)}" if shape is not None else "")
