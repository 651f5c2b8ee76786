"""Updates whose loss or gradients are not finite: stop the run, or skip them."""

import logging
from typing import TYPE_CHECKING, Any

from ..backends._common.buffers import BufferCopies
from ..backends._common.helpers import preview
from ..errors import NonFiniteError
from ..formats.schema import integer, record
from .part import Part, RunContext
from .step_samples import samples_of

if TYPE_CHECKING:
    from ..checkpoint.resume import StoredRun

logger = logging.getLogger(__name__)

LOGGED = 5  # skipped updates that are each logged; after these, only the 10th, the 100th and so on


class SkippedUpdateBuffers(Part):
    """nonfinite="skip": a forward pass changes the running statistics of norms, whether or not its update is
    skipped."""

    name = "skipped_update_buffers"

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self._copies: BufferCopies | None = None  # a model may have no buffers
        self._has_looked = False

    @property
    def is_active(self) -> bool:
        return self.context.args.nonfinite == "skip"

    def start_update(self, micro_batches: list[Any]) -> None:
        if not self._has_looked:
            self._has_looked, backend = True, self.backend
            buffers = backend.models.buffers(self.context.model)
            self._copies = BufferCopies(buffers, backend.tensors) if buffers else None
        if self._copies is not None:
            self._copies.begin()

    def end_optimizer_step(self, is_bad: Any) -> None:
        lost = [] if self._copies is None else self._copies.end(is_bad)
        if lost:
            logger.warning("Buffers that a skipped update has changed for the first time are not restored: %s.", lost)


class NonfiniteUpdates(Part):
    """Reports updates that were skipped, or ends the run."""

    name = "nonfinite"
    title = "count of skipped updates"
    schema = {"nonfinite": record({"last": integer(1), "in_a_row": integer(1)}, is_closed=True)}

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self.skips = context.args.nonfinite == "skip"
        self.count = 0  # of skipped updates since train() was called
        self.last = -1  # the step of the last one
        self.in_a_row = 0

    def check_pending(self) -> None:
        """What the device knows of the last update and the host does not, as yet."""
        step = self.context.engine.read_pending()
        if step is not None:
            self.handle_nonfinite(step)

    def handle_nonfinite(self, step: int) -> None:
        """Called when an update was skipped because it is not finite: nonfinite="stop" raises, "skip" warns."""
        args = self.context.args
        if args.nonfinite == "ignore":  # a loss scaler skips the update itself
            return
        for check in self.context.hooks.check_step:  # a spike a few steps before may be the reason
            check(False)
        self.in_a_row = self.in_a_row + 1 if step == self.last + 1 else 1
        self.last = step
        self.count += 1
        ends = not self.skips or 0 < args.nonfinite_limit <= self.in_a_row
        if not ends and not self._is_logged:
            return
        samples = samples_of(self.context.plan, step)
        self.context.events.add("nonfinite", step=step, action="stop" if ends else "skip", samples=samples)
        text = (
            f"step {step}: the loss or a gradient is not finite (NaN or infinite; also if all labels are ignored). "
            f"The update was skipped, so the weights are unaffected. Samples of this step: {samples}."
        )
        if ends:
            raise NonFiniteError(self._with_advice(text))
        logger.warning("%s Training continues (nonfinite='skip').%s", text, self._note_on_other_processes())

    def state(self) -> dict[str, Any]:
        """Only in the step of a skipped update, which the next one may follow."""
        if not self.in_a_row or self.last != self.context.state.global_step:
            return {}
        return {"nonfinite": {"last": self.last, "in_a_row": self.in_a_row}}

    def load(self, stored: dict[str, Any], source: "StoredRun") -> None:
        if "nonfinite" in stored:
            self.last, self.in_a_row = stored["nonfinite"]["last"], stored["nonfinite"]["in_a_row"]

    @property
    def _is_logged(self) -> bool:
        return self.count <= LOGGED or str(self.count).strip("0") == "1"

    def _note_on_other_processes(self) -> str:
        if self.count < LOGGED:
            return ""
        if self.count == LOGGED:
            return " From now on only the 10th, the 100th, ... of these messages is shown."
        return f" {self.count} updates have been skipped since the start."

    def _with_advice(self, text: str) -> str:
        backend, checkpointer = self.backend, self.context.checkpointer
        checkpointer.writer.drain()  # a save in progress may be the last checkpoint
        if self.skips:
            text = f"{text} {self.in_a_row} updates in a row were skipped, the limit of nonfinite_limit."
        tensors = backend.tensors
        bad = [b.name for b in backend.models.buffers(self.context.model) if not tensors.is_finite(b.current)]
        if bad:
            text = f"{text} Buffers of the model that are not finite now: {preview(bad)}."
        # A save that was just written by the main process is not known to the others.
        last = checkpointer.last_saved or "none in this run" if self.context.mesh.is_main else "see process 0"
        text = f"{text} Last checkpoint: {last}. Inspect these samples, "
        text += "lower the learning rate, or use debug='underflow_overflow' to find the layer"
        return f"{text}." if self.skips else f"{text}; nonfinite='skip' skips such steps and continues."
