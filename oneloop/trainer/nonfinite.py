"""Updates whose loss or gradients are not finite: stop the run, or skip them."""

import logging
from typing import TYPE_CHECKING, Any

from ..backends._common.buffers import BufferCopies
from ..backends._common.helpers import some
from ..errors import NonFiniteError
from .step_samples import samples_of

if TYPE_CHECKING:
    from .run import Run

logger = logging.getLogger(__name__)

LOGGED = 5  # skipped updates that are each logged; after these, only the 10th, the 100th and so on


class NonfiniteUpdates:
    """Created for each run."""

    def __init__(self, run: "Run") -> None:
        self.run = run
        self.skips = run.core.trainer.args.nonfinite == "skip"
        self.count = 0  # of skipped updates since train() was called
        self.last = -1  # the step of the last one
        self.in_a_row = 0
        self._copies: BufferCopies | None = None  # a model may have no buffers
        self._has_looked = False

    # -- buffers: a forward pass changes the running statistics of norms, whether or not its update is skipped

    def begin(self) -> None:
        """Before the forward pass of an update."""
        if not self._has_looked:
            self._has_looked, core = True, self.run.core
            buffers = core.backend.models.buffers(core.trainer.model)
            self._copies = BufferCopies(buffers, core.backend.tensors) if buffers else None
        if self._copies is not None:
            self._copies.begin()

    def end(self, is_bad: Any) -> None:
        """After the update."""
        lost = [] if self._copies is None else self._copies.end(is_bad)
        if lost:
            logger.warning("Buffers that a skipped update has changed for the first time are not restored: %s.", lost)

    # -- messages

    def read_pending(self) -> None:
        """What the device knows of the last update and the host does not, as yet."""
        step = self.run.core.engine.read_pending()
        if step is not None:
            self.found(step)

    def found(self, step: int) -> None:
        """Called when an update was skipped because it is not finite: nonfinite="stop" raises, "skip" warns."""
        run = self.run
        args = run.core.trainer.args
        if args.nonfinite == "ignore":  # a loss scaler skips the update itself
            return
        run.meter.spikes.look()  # a spike a few steps before may be the reason
        self.in_a_row = self.in_a_row + 1 if step == self.last + 1 else 1
        self.last = step
        self.count += 1
        ends = not self.skips or 0 < args.nonfinite_limit <= self.in_a_row
        if not ends and not self._is_logged:
            return
        samples = samples_of(run.plan, step)
        run.events.add("nonfinite", step=step, action="stop" if ends else "skip", samples=samples)
        text = (
            f"step {step}: the loss or a gradient is not finite (NaN or infinite; also if all labels are ignored). "
            f"The update was skipped, so the weights are unaffected. Samples of this step: {samples}."
        )
        if ends:
            raise NonFiniteError(self._with_advice(text))
        logger.warning("%s Training continues (nonfinite='skip').%s", text, self._about_others())

    @property
    def _is_logged(self) -> bool:
        return self.count <= LOGGED or str(self.count).strip("0") == "1"

    def _about_others(self) -> str:
        if self.count < LOGGED:
            return ""
        if self.count == LOGGED:
            return " From now on only the 10th, the 100th, ... of these messages is shown."
        return f" {self.count} updates have been skipped since the start."

    def _with_advice(self, text: str) -> str:
        run, core = self.run, self.run.core
        run.checkpointer.pending.finish()  # a save in progress may be the last checkpoint
        if self.skips:
            text = f"{text} {self.in_a_row} updates in a row were skipped, the limit of nonfinite_limit."
        tensors = core.backend.tensors
        bad = [b.name for b in core.backend.models.buffers(core.trainer.model) if not tensors.is_finite(b.current)]
        if bad:
            text = f"{text} Buffers of the model that are not finite now: {some(bad)}."
        text = f"{text} Last checkpoint: {run.checkpointer.last_saved or 'none in this run'}. Inspect these samples, "
        text += "lower the learning rate, or use debug='underflow_overflow' to find the layer"
        return f"{text}." if self.skips else f"{text}; nonfinite='skip' skips such steps and continues."
