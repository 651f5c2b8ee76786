"""The memory of a step with each parallel layout, from steps that the backend simulates."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..arguments.sharding import recomputes
from ..backends.step_memory import StepMemory
from ..data.batch_sizes import batch_rows
from ..errors import UnsupportedError
from ..trainer.core import core_of
from . import optimizer_state
from .layouts import ParallelLayout, Tensor
from .results import ModelSizes

MOST_ROWS = 2**20
TRIES = 6  # steps that are simulated to find the largest micro-batch
ALONE = ParallelLayout("", "")


class Memories:
    """Simulated steps, each only once. Stage 1 differs from DDP by its optimizer state, which is computed."""

    def __init__(self, trainer: Any, inputs: Any, world: int, progress: Callable[[str], None] | None = None) -> None:
        self.trainer, self.inputs, self.world, self.progress = trainer, inputs, world, progress
        backend = core_of(trainer).backend
        self.planning = getattr(backend, "planning", None)
        self.rows = batch_rows(inputs) or 1
        self.recomputes = bool(trainer.args.gradient_checkpointing or recomputes(trainer.args))
        self.notes: list[str] = []
        self._refused: set[bool] = set()  # with or without gradient_checkpointing
        self.accumulation: int = trainer.args.gradient_accumulation_steps
        self._steps: dict[tuple[ParallelLayout, int, int, bool, int], StepMemory | None] = {}
        if self.planning is None:
            self.notes.append(f"Activations are not known: {backend.NAME} has no module to simulate steps with.")

    def optimizer_state(self) -> int | None:
        """Bytes of the whole state, after a simulated step."""
        step = self.step(ALONE, self.recomputes)
        return None if step is None else step.optimizer

    def activations(self, recompute: bool) -> int | None:
        """The memory of a micro-batch in addition to the training state, in one process with the whole model."""
        step = self.step(ALONE, recompute)
        return None if step is None else step.activations

    def collectives(self, layout: ParallelLayout) -> tuple[tuple[str, int, int], ...] | None:
        """The collectives of one update, as (name, bytes of the full tensor, number of processes)."""
        step = self.step(layout, self.recomputes, world=self.world)
        return None if step is None else step.collectives

    def peak(
        self,
        layout: ParallelLayout,
        recompute: bool,
        tensors: list[Tensor],
        model: ModelSizes,
        world: int,
        rows: int | None = None,
        accumulation: int | None = None,
    ) -> StepMemory | None:
        """The memory of a step in the process that needs most."""
        step = self.step(layout, recompute, rows, world, accumulation)
        if step is None or world == 1:
            return step
        if layout.shards_gradients or layout.axes.used:  # every process makes the whole model before it keeps its part
            kept = step.parameters if layout.shards_gradients else 0
            return replace(step, peak=max(step.peak, model.parameter_bytes + kept))
        if not layout.sharding:
            return step
        share = optimizer_state.largest_part([tensor.elements for tensor in tensors], layout.degree)
        state = round(step.optimizer * share / max(1, model.trainable))
        return replace(step, peak=step.peak + state - step.optimizer, optimizer=state)

    def find_max_batch(
        self, layout: ParallelLayout, tensors: list[Tensor], model: ModelSizes, world: int, limit: int | None
    ) -> int | None:
        """The largest micro-batch with which a step fits: extrapolated, then simulated again."""

        assert limit is not None
        fits, too_many = 0, MOST_ROWS + 1
        rows = self.rows
        seen: list[tuple[int, int]] = []
        for _ in range(TRIES):
            step = self.peak(layout, self.recomputes, tensors, model, world, rows)
            if step is None:
                return None
            seen.append((rows, step.peak))
            fits, too_many = (max(fits, rows), too_many) if step.peak <= limit else (fits, min(too_many, rows))
            if too_many - fits <= 1:
                break
            rows = _next(seen, limit, fits, too_many, step.activations / rows)
        return fits

    def step(
        self,
        layout: ParallelLayout,
        recompute: bool,
        rows: int | None = None,
        world: int = 1,
        accumulation: int | None = None,
    ) -> StepMemory | None:
        """A simulated step of one process, of one of several that have a copy each, or that divide the model."""
        if not layout.shards_gradients and not layout.axes.used:
            layout, world = ALONE, min(world, 2)  # two copies need as much as more
        else:
            layout = replace(layout, name="", degree=layout.degree if "hybrid" in layout.sharding else 1)
        key = (layout, world, rows or self.rows, recompute, accumulation or self.accumulation)
        if key not in self._steps:
            self._steps[key] = self._simulate(*key)
        return self._steps[key]

    def _simulate(
        self, layout: ParallelLayout, world: int, rows: int, recompute: bool, accumulation: int
    ) -> StepMemory | None:
        if self.planning is None or recompute in self._refused:
            return None
        what = ", ".join(f"{name}={value!r}" for name, value in layout.arguments().items())
        what = (what or ("DDP" if world > 1 else "one process")) + ", gradient_checkpointing" * recompute
        if self.progress is not None:
            self.progress(f"simulating a step: {what}, {rows} sample{'s' * (rows > 1)}")
        try:
            given = layout.arguments() | {"gradient_accumulation_steps": accumulation}
            return self.planning.step_memory(core_of(self.trainer), self.inputs, rows, recompute, given, world=world)
        except UnsupportedError as error:
            if not layout.axes.used:
                self._refused.add(recompute)
            self._note(f"{str(error)[:1].upper()}{str(error)[1:]}")
            return None
        except Exception as error:  # of the model or of an override, which may do anything
            words = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            self._note(f"A step with {what} could not be simulated: {words}")
            return None

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _next(seen: list[tuple[int, int]], limit: int, fits: int, too_many: int, per_row: float) -> int:
    """The number of samples to try next: on the line through the two largest, within what is not excluded. `per_row`:
    what a sample takes, about."""
    (more, high), *rest = sorted(seen, reverse=True)
    slope = (high - rest[0][1]) / (more - rest[0][0]) if rest else per_row
    guess = int(more + (limit - high) / slope) if slope > 0 else 2 * more
    return max(fits + 1, min(guess, too_many - 1, MOST_ROWS))
