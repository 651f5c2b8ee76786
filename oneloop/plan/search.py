"""The layouts that fit: sizes of the axes, sharding, gradient_checkpointing and the micro-batch.

A few steps are simulated: with the whole model, with stage 3, and with each axis of two processes, for two
micro-batches each. Between them memory is computed:

- What a step needs beside weights and optimizer state grows by the same amount with each sample.
- Along an axis, one part of it is divided by the size of the axis, and the rest is not.
- Sharding and an axis divide it independently.

All layouts compute the same number of samples in an update, by gradient_accumulation_steps. Of each, the largest
micro-batch that fits is taken. They are ordered by the bytes that a process sends, and the first ones are simulated.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from . import layouts, messages
from .layouts import WHOLE, Axes, ParallelLayout, Tensor
from .memory import ALONE, Memories
from .results import LayoutChoice, Messages, ModelSizes, Search

SIMULATED = 3  # layouts of which a step is simulated in the end
TRIED = 6  # at most, if some of them turn out not to fit
STAGE3 = ParallelLayout("", "stage3")


@dataclass(frozen=True)
class Candidate:
    """A layout with its micro-batch, and what it needs."""

    layout: ParallelLayout
    recompute: bool
    rows: int
    accumulation: int
    peak: float
    sent: float

    @property
    def order(self) -> tuple[float, bool, int, int]:
        """Those that send least first; then those that compute least and wait least."""
        return self.sent, self.recompute, self.accumulation, self.layout.axes.size

    def arguments(self) -> dict[str, Any]:
        return self.layout.arguments() | {
            "gradient_checkpointing": self.recompute,
            "per_device_train_batch_size": self.rows,
            "gradient_accumulation_steps": self.accumulation,
        }

    def choice(self, simulated: bool) -> LayoutChoice:
        return LayoutChoice(self.layout.name, self.arguments(), round(self.peak), round(self.sent), simulated)


@dataclass(frozen=True)
class _Line:
    """What a step with stage 3, an axis or neither needs beside weights and optimizer state, by the samples."""

    rows: int
    at: float
    slope: float
    parameters: int
    optimizer: int
    collectives: tuple[tuple[str, int, int], ...]

    def __call__(self, rows: int) -> float:
        return max(0.0, self.at + (rows - self.rows) * self.slope)


class Estimates:
    """Memory and messages of layouts, between those that are simulated."""

    def __init__(self, memories: Memories, model: ModelSizes, world: int, half: bool) -> None:
        self.memories, self.model, self.world = memories, model, world
        self.computes_in = 0.5 if half else 1.0  # of the bytes of weights: what FSDP gathers
        self._lines: dict[tuple[ParallelLayout, int, bool], _Line | None] = {}

    def line(self, layout: ParallelLayout, world: int, recompute: bool) -> _Line | None:
        key = layout, world, recompute
        if key not in self._lines:
            first = self.memories.rows
            second = first // 2 if first > 1 else 2
            one, other = (self.memories.step(layout, recompute, rows, world, 1) for rows in (first, second))
            self._lines[key] = None
            if one is not None and other is not None:
                beside = [step.peak - step.parameters - step.optimizer for step in (one, other)]
                slope = (beside[0] - beside[1]) / (first - second)
                self._lines[key] = _Line(first, beside[0], slope, one.parameters, one.optimizer, one.collectives)
        return self._lines[key]

    def of(self, layout: ParallelLayout, recompute: bool, rows: int, accumulation: int) -> tuple[float, float] | None:
        """(peak, bytes sent) of an update; None if the steps that it needs cannot be simulated."""
        axes = layout.axes
        in_buckets = not axes.tensor > 1 and not axes.expert > 1  # by DDP, which has them from the start
        whole = self.line(ALONE, 2 if in_buckets else 1, recompute)
        if whole is None:
            return None
        beside, parameters, optimizer = whole(rows), float(whole.parameters), float(whole.optimizer)
        sent = 0.0
        for name, size in axes.used.items():
            pair = self.line(ParallelLayout("", "", axes=Axes(**{name: 2})), 2, recompute)
            if pair is None:
                return None
            part = (1 - 1 / size) / (1 - 1 / 2)
            beside -= (whole(rows) - pair(rows)) * part
            parameters -= (whole.parameters - pair.parameters) * part
            optimizer -= (whole.optimizer - pair.optimizer) * part
            sent += _along(pair, size, rows * accumulation)
        share = parameters / max(1, whole.parameters)
        gradients = self.model.gradient_bytes * share
        if layout.shards_gradients:
            found = self._sharded(layout, recompute, rows, beside / max(1.0, whole(rows)), parameters, optimizer)
            if found is None:
                return None
            peak = found
        else:
            if layout.sharding:
                optimizer /= layout.degree
            more = gradients if in_buckets and accumulation > 1 and self.world > 1 else 0.0
            peak = max(parameters + optimizer + beside + more, self.model.parameter_bytes)
        return peak, sent + self._gradients(layout, parameters, gradients, accumulation)

    def _sharded(
        self, layout: ParallelLayout, recompute: bool, rows: int, part: float, parameters: float, optimizer: float
    ) -> float | None:
        whole = self.line(STAGE3, self.world, recompute)
        if whole is None:
            return None
        shards = self.model.gradient_bytes * (parameters / max(1, self.model.parameter_bytes))
        beside = whole(rows) * part + shards * (1 / layout.degree - 1 / self.world)
        if "stage2" in layout.sharding:
            beside += parameters * self.computes_in  # whole until the last micro-batch
        held = parameters / layout.degree
        return max(held + optimizer / layout.degree + beside, self.model.parameter_bytes + held)

    def _gradients(self, layout: ParallelLayout, parameters: float, gradients: float, accumulation: int) -> float:
        """Bytes that a process sends for gradients and weights."""
        batches = self.world // layout.axes.size
        if not layout.shards_gradients:
            sent = messages.sent("all_reduce", gradients, batches * layout.axes.sequence)
            return sent + (messages.sent("broadcast", gradients, batches) if layout.sharding else 0.0)
        degree = layout.degree
        gathers = 2 * accumulation if "stage3" in layout.sharding else 1
        sent = gathers * messages.sent("all_gather", parameters * self.computes_in, degree)
        sent += accumulation * messages.sent("reduce_scatter", gradients, degree)
        copies = batches // degree * layout.axes.sequence
        return sent + accumulation * messages.sent("all_reduce", gradients / degree, copies)


def _along(pair: _Line, size: int, rows: int) -> float:
    """Bytes that a process sends along an axis of that size for so many samples. What all exchange with all is a part
    of a sequence, and smaller where there are more of them."""
    found = 0.0
    for kind, whole, _ in pair.collectives:
        part = whole * 2 / size if kind == "all_to_all" else whole
        found += messages.sent(kind, part * rows / pair.rows, size)
    return found


# -- the search


def search(
    memories: Memories,
    tensors: list[Tensor],
    model: ModelSizes,
    candidates: list[ParallelLayout],
    count: Callable[[Candidate, Any], Messages],
    samples: int,
    limit: int,
    half: bool,
) -> Search | None:
    """The candidates that fit. `samples` of an update are kept; `count`: what processes send in a simulated step."""
    world = memories.world
    estimates = Estimates(memories, model, world, half)
    fitting: list[Candidate] = []
    too_large: list[float] = []
    for layout in candidates:
        for recompute in (False, True):
            found = list(_of(estimates, layout, recompute, samples // (world // layout.axes.size)))
            fits = [each for each in found if each.peak <= limit]
            if fits:
                fitting.append(min(fits, key=lambda each: each.order))
            elif found:
                too_large.append(min(each.peak for each in found))
    if not fitting and not too_large:
        return None
    fitting.sort(key=lambda each: each.order)
    sure: list[Candidate] = []
    for each in fitting[:TRIED]:
        if len(sure) == SIMULATED:
            break
        fitting.remove(each)
        step = memories.peak(
            each.layout, each.recompute, tensors, model, world, rows=each.rows, accumulation=each.accumulation
        )
        if step is None:
            continue
        checked = Candidate(
            each.layout, each.recompute, each.rows, each.accumulation, step.peak, count(each, step).sent
        )
        if step.peak <= limit:
            sure.append(checked)
        else:
            too_large.append(step.peak)
    sure.sort(key=lambda each: each.order)
    choices = [each.choice(True) for each in sure] + [each.choice(False) for each in fitting]
    return Search(tuple(choices), len(too_large), round(min(too_large)) if too_large else None)


def _of(estimates: Estimates, layout: ParallelLayout, recompute: bool, rows: int) -> Iterator[Candidate]:
    """A layout with each micro-batch that divides its samples of an update."""
    for micro in (each for each in range(rows, 0, -1) if rows % each == 0):
        found = estimates.of(layout, recompute, micro, rows // micro)
        if found is not None:
            yield Candidate(layout, recompute, micro, rows // micro, *found)


def candidates(
    sizes: Callable[[str, int], list[int]], world: int, per_machine: int, samples: int
) -> list[ParallelLayout]:
    """All layouts: with one axis at most, since axes are not combined, whose processes are of one machine."""
    axes = [WHOLE]
    for name in Axes.__annotations__:
        axes += [Axes(**{name: size}) for size in sizes(name, min(world, per_machine))]
    found: list[ParallelLayout] = []
    for each in axes:
        if world % each.size == 0 and per_machine % each.size == 0 and samples % (world // each.size) == 0:
            found += layouts.layouts(world, per_machine, hybrid=True, axes=each)
    return found
