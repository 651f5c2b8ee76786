"""Loss spikes: steps whose loss or gradient norm is far above those of the steps before.

`loss_spike="warn"` reports them. With "rollback" the run returns to its last checkpoint and continues without the
samples of the spike:

- The steps whose samples are left out remain steps: they are counted and the learning rate follows its schedule, but
  their batches are dropped and nothing is updated. So the samples of every other step stay the same, and a position in
  the data is computed as before.
- Returning is a resume in the same process: `train()` begins a new run from the checkpoint.
- What is decided depends on the values only, not on when they are read. The recent values and the steps to leave out
  are in checkpoints, and a step is looked at before it is saved. A run that is killed and resumed decides the same.
- A signal, a clock or a callback may ask for a checkpoint at any step. The run can return to such a one, but what is
  left out, and whether it returns at all, depends on those that the arguments ask for.
"""

import logging
import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint import store
from ..errors import CheckpointError, DataError, LossSpikeError, UnsupportedError
from ..formats.reading import json_object
from ..formats.schema import hex_number, integer, listing, optional, record, text
from ..formats.structure import RUN, read_state
from .meter import Meter
from .part import Part, Restart, RestartRequested, RunContext
from .step_samples import positions_of, samples_of

if TYPE_CHECKING:
    from ..checkpoint.resume import StoredRun

logger = logging.getLogger(__name__)

VERSION = 1  # of what a checkpoint has of it
READ_EVERY = 8  # steps whose values are read from the device together
SMALLEST_DEVIATION = 0.01  # of the median: values that hardly differ are no measure of a spike
LOGGED = 5  # spikes that are each logged; after these, only the 10th, the 100th and so on
_NAMES = {"loss": "the loss", "grad_norm": "the gradient norm"}


class RunningRange:
    """The values of the last steps, and the largest one to be expected next.

    The limit is the median plus `threshold` robust standard deviations. These are measured above the median, from the
    upper quartile: losses and norms have longer tails there.
    """

    def __init__(self, window: int, threshold: float) -> None:
        self.window, self.threshold = window, threshold
        self.recent: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, value: float) -> None:
        self.recent.append(value)
        insort(self._sorted, value)
        if len(self.recent) > self.window:
            del self._sorted[bisect_left(self._sorted, self.recent.popleft())]

    @property
    def median(self) -> float:
        middle = len(self._sorted) // 2
        return (self._sorted[middle] + self._sorted[~middle]) / 2

    @property
    def limit(self) -> float:
        """Infinite until there are as many values as the window has, and where all of them are zero."""
        if len(self.recent) < self.window:
            return math.inf
        median = self.median
        deviation = (self._sorted[3 * len(self._sorted) // 4] - median) / 0.6745
        deviation = max(deviation, SMALLEST_DEVIATION * abs(median))
        return median + self.threshold * deviation if deviation > 0 else math.inf


@dataclass(frozen=True)
class Spike:
    step: int
    name: str  # loss or grad_norm
    value: float
    median: float
    limit: float

    def __str__(self) -> str:
        return (
            f"step {self.step}: {_NAMES[self.name]} is {self.value:.4g}, far above that of the steps before (median "
            f"{self.median:.4g}, expected at most {self.limit:.4g})"
        )


@dataclass(frozen=True)
class ScheduledCheckpoint:
    """A checkpoint that the arguments ask for: a run has it whether it was interrupted or not."""

    step: int
    path: Path


@dataclass(frozen=True)
class Rollback:
    """A return to a checkpoint: why, and the steps, from first to last, whose samples are left out since."""

    spike: Spike
    checkpoint: int  # its step
    first: int
    last: int
    positions: tuple[int, int, int] | None  # epoch, first position, the one after the last; None: the data has none

    def to_json(self) -> dict[str, Any]:
        spike = {name: value.hex() if isinstance(value, float) else value for name, value in asdict(self.spike).items()}
        return {"spike": spike, "checkpoint": self.checkpoint, "steps": [self.first, self.last]} | (
            {} if self.positions is None else {"positions": list(self.positions)}
        )

    def facts(self, samples: str) -> dict[str, Any]:
        """The facts recorded in run.jsonl."""
        spike = self.spike
        values = {"step": spike.step, "of": spike.name, "value": spike.value, "median": spike.median}
        where = {"to": f"{store.PREFIX}-{self.checkpoint}", "left_out": [self.first, self.last]}
        return values | {"limit": spike.limit} | where | {"positions": self.positions, "samples": samples}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Rollback":
        spike = {name: stored["spike"][name] for name in ("step", "name")}
        spike |= {name: float.fromhex(stored["spike"][name]) for name in ("value", "median", "limit")}
        first, last = stored["steps"]
        positions = tuple(stored["positions"]) if "positions" in stored else None
        return cls(Spike(**spike), stored["checkpoint"], first, last, positions)


_SPIKE = {
    "step": integer(1),
    "name": text("loss|grad_norm", "loss or grad_norm"),
    **dict.fromkeys(("value", "median", "limit"), hex_number),
}
_ROLLBACK = {"spike": record(_SPIKE, is_closed=True), "checkpoint": integer(), "steps": listing(integer(1), 2)}


class SpikeGuard(Part):
    """Without loss_spike it only leaves out the steps that a checkpoint names."""

    name = "spikes"
    schema = {
        "spikes": record(
            {
                "version": integer(1),
                "recent": record({}, dict.fromkeys(_NAMES, listing(hex_number)), is_closed=True),
                "rollbacks": listing(record(_ROLLBACK, {"positions": listing(integer(), 3)}, is_closed=True)),
            },
            {"scheduled": optional(integer(1))},
        )
    }

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        args = context.args
        self.mode: str = args.loss_spike
        self.is_on = self.mode != "off"
        self.ranges = {name: RunningRange(args.loss_spike_window, args.loss_spike_threshold) for name in _NAMES}
        self.scheduled: ScheduledCheckpoint | None = None  # the last one; steps are left out down to it
        self._unread: list[tuple[int, Any, Any]] = []  # step, loss and norm, still on the device
        self._count = 0  # reported since train() was called
        self._last = -1  # the step of the last one
        self._carried = None if context.restart is None else context.restart.carried.get(self.name)
        self._skip_steps_of(self._carried or ())

    @property
    def is_active(self) -> bool:
        return self.is_on or bool(self.rollbacks)  # which the next checkpoint has to name as well

    def plan_ready(self) -> None:
        """Raise an error if the run could not return to a checkpoint."""
        trainer = self.context.trainer
        if self.mode != "rollback":
            return
        name = type(trainer).__name__
        if self.context.extensions.generates_data:
            raise UnsupportedError(
                f"loss_spike='rollback' cannot be used with {name}, which generates its training data for several "
                "steps at once: those of a single step cannot be skipped. Use loss_spike='warn'."
            )
        loader = self.context.plan.loader
        for what, given in (("train_dataset", trainer.train_dataset), ("the training loader", loader)):
            if isinstance(given, Iterator):
                raise DataError(
                    f"loss_spike='rollback' reads the training data again, but {what} is an iterator "
                    f"({type(given).__name__}), which can be read once. Pass a dataset, or use loss_spike='warn'."
                )

    # -- called in each step

    def end_update(self, step: int, loss: Any) -> None:
        if loss is not None and self.is_on:
            self._unread.append((step, loss, self.context.engine.norm))

    def check_pending(self) -> None:
        self.check_step(False)  # a checkpoint that follows a spike could not undo it

    def check_step(self, may_wait: bool) -> None:
        """Read the values of the steps since the last call, and report a spike or roll the run back. A host sync and,
        on several processes, a collective."""
        if len(self._unread) < (READ_EVERY if may_wait else 1):
            return
        for step, values in self._read():
            spike = self._spike_of(step, values)
            for name, value in values.items():
                self.ranges[name].add(value)
            if spike is not None:
                self._handle_spike(spike)

    def _read(self) -> list[tuple[int, dict[str, float]]]:
        tensors, processes = self.backend.tensors, self.context.processes
        unread, self._unread = self._unread, []
        losses = tensors.scalars([loss for _, loss, _ in unread]).tolist()
        on_device = [norm for *_, norm in unread if tensors.is_tensor(norm)]
        read = iter(tensors.scalars(on_device).tolist() if on_device else [])
        norms = [next(read) if tensors.is_tensor(norm) else norm for *_, norm in unread]
        rows = [
            # What is not finite is left to the argument nonfinite.
            (step, {key: float(v) for key, v in zip(_NAMES, values) if v is not None and math.isfinite(v)})
            for (step, *_), *values in zip(unread, losses, norms)
        ]
        # Sums may be rounded differently: all processes decide by the values of the main process.
        return rows if self.context.mesh.is_single else processes.broadcast_object(rows)

    def _spike_of(self, step: int, values: dict[str, float]) -> Spike | None:
        for name, value in values.items():
            known = self.ranges[name]
            if value > (limit := known.limit):
                return Spike(step, name, value, known.median, limit)
        return None

    # -- a spike

    def _handle_spike(self, spike: Spike) -> None:
        run = self.context
        found = self._checkpoint_to_return_to(spike.step) if self.mode == "rollback" else None
        samples = samples_of(run.plan, spike.step)
        if found is None:
            self._report(spike, samples)
            return
        path, saved, first = found
        at = [place for step in (first, spike.step) if (place := positions_of(run.plan, step)) is not None]
        together = bool(at) and at[0][0] == at[-1][0]
        positions = (at[0][0], at[0][1], at[-1][2]) if together else None
        rollback = Rollback(spike, saved, first, spike.step, positions)
        self._check_limit(rollback, samples, path)
        run.exit_if_interrupted()  # the resumed run will find the spike again
        which = f"step {first}" if first == spike.step else f"steps {first} to {spike.step}"
        logger.warning(
            "%s. Returning to %s; the samples of %s are skipped. Samples of step %d: %s.",
            spike, path, which, spike.step, samples,
        )  # fmt: skip
        run.checkpointer.undo_after(saved)
        meter = run.parts.of(Meter)
        began = meter.started, meter.first_step
        carried = {self.name: (*self.rollbacks, rollback)}
        restart = Restart(str(path), run.run_id, run.events.parent_id, began, carried)
        raise RestartRequested(f"returning to checkpoint-{saved}", restart, "rolled_back", rollback.facts(samples))

    def _report(self, spike: Spike, samples: str) -> None:
        is_new, self._last = spike.step != self._last + 1, spike.step
        self._count += is_new  # the steps that follow one are the same spike
        if not is_new or not (self._count <= LOGGED or str(self._count).strip("0") == "1"):
            return
        why = "loss_spike='warn'" if self.mode == "warn" else "there is no complete checkpoint to return to"
        logger.warning("%s. Samples of this step: %s. Training continues (%s).", spike, samples, why)
        facts = {name: value for name, value in asdict(spike).items() if name not in ("step", "name")}
        self.context.events.add("loss_spike", step=spike.step, of=spike.name, **facts, samples=samples)

    def _checkpoint_to_return_to(self, spike: int) -> tuple[Path, int, int] | None:
        """The checkpoint to return to, its step, and the first step to leave out; None if the arguments have asked for
        no checkpoint yet, or it is not complete. A collective."""
        checkpointer, processes = self.context.checkpointer, self.context.processes
        checkpointer.wait()  # it may still be written in the background
        scheduled = self.scheduled
        if scheduled is None or scheduled.step >= spike:
            return None
        first = max(scheduled.step, spike - self.context.args.loss_spike_skip_steps) + 1
        found = processes.run_on_main(lambda: self._complete_before(first), "looking for the last checkpoint")
        if found is None or found[1] < first:
            return None if found is None else (*found, first)
        path, saved = found
        logger.warning(
            "The samples of steps %d to %d should be skipped too, but %s, which precedes them, is missing or not "
            "complete.", first, saved, scheduled.path,
        )  # fmt: skip
        return path, saved, saved + 1

    def _complete_before(self, first: int) -> tuple[Path, int] | None:
        """The last checkpoint, or the last one that the arguments ask for if the steps to leave out begin before the
        last; and its step. None if neither is complete."""
        run, last = self.context, self.context.checkpointer.last_saved
        assert self.scheduled is not None and last is not None
        newest, earlier = run.checkpointer.directory.resolve(last), self.scheduled.path
        step = None if store.problems(newest) else read_state(newest)["global_step"]
        if step is not None and step < first:
            return newest, step
        # A directory may hold a checkpoint of that name from another run.
        is_own = (store.read_manifest(earlier) or {}).get("run_id") in (run.run_id, run.events.parent_id)
        if earlier != newest and is_own and not store.problems(earlier):
            return earlier, self.scheduled.step
        return None if step is None else (newest, step)

    def _check_limit(self, rollback: Rollback, samples: str, path: Path) -> None:
        limit = self.context.args.loss_spike_limit
        assert self.scheduled is not None
        before = [each for each in self.rollbacks if each.spike.step > self.scheduled.step]
        if len(before) < limit:
            return
        steps = ", ".join(str(each.spike.step) for each in before)
        raise LossSpikeError(
            f"{rollback.spike}. Samples of this step: {samples}. The run has returned to {path} {len(before)} times "
            f"before, because of spikes in step {steps}: skipping samples does not help (loss_spike_limit={limit}). "
            "Lower the learning rate, raise loss_spike_skip_steps to skip the steps before a spike as well, or "
            "loss_spike_threshold if these values are normal, and resume."
        )

    # -- checkpoints

    def checkpoint_saved(self, step: int, path: Path, is_scheduled: bool) -> None:
        if is_scheduled:
            self.scheduled = ScheduledCheckpoint(step, path)

    @property
    def _skips_steps_before_spike(self) -> bool:
        """Whether the steps before a spike are left out too. They may precede a checkpoint that is not scheduled."""
        return self.mode == "rollback" and self.context.args.loss_spike_skip_steps > 1

    def checkpoint_to_keep(self) -> Path | None:
        """The checkpoint that a return may need beside the last one, if that was saved for another reason."""
        return self.scheduled.path if self._skips_steps_before_spike and self.scheduled is not None else None

    def checkpoint_needed(self, checkpoint: Path) -> int | None:
        """The last one that the arguments asked for, as of this one."""
        if not self._skips_steps_before_spike:
            return None
        spikes = json_object(checkpoint / RUN).get("spikes")
        step = spikes.get("scheduled") if isinstance(spikes, dict) else None
        return step if isinstance(step, int) else None

    def load_from_other_trainer(self, path: Path, state: Mapping[str, Any]) -> None:
        self._return_to(path, {})

    def _return_to(self, path: Path, stored: Mapping[str, Any]) -> None:
        """`stored`: what the checkpoint has of spikes. If it does not say which one was the last that the arguments
        asked for, it is taken for that itself."""
        checkpointer, step = self.context.checkpointer, self.context.state.global_step
        path = checkpointer.directory.resolve(path)
        scheduled = stored.get("scheduled", step)
        if scheduled is None or scheduled == step:
            self.scheduled = None if scheduled is None else ScheduledCheckpoint(step, path)
        else:
            self.scheduled = ScheduledCheckpoint(scheduled, path.with_name(f"{store.PREFIX}-{scheduled}"))

    def _skip_steps_of(self, rollbacks: tuple[Rollback, ...]) -> None:
        self.rollbacks = rollbacks
        self.skipped_steps = frozenset(step for each in rollbacks for step in range(each.first, each.last + 1))

    def properties(self) -> dict[str, Any]:
        names = ("loss_spike", "loss_spike_threshold", "loss_spike_window", "loss_spike_skip_steps")
        return {name: getattr(self.context.args, name) for name in names if self.mode == "rollback"}

    def state(self) -> dict[str, Any]:
        recent = {name: [value.hex() for value in known.recent] for name, known in self.ranges.items()}
        rollbacks = [each.to_json() for each in self.rollbacks]
        found = {"version": VERSION, "recent": recent, "rollbacks": rollbacks}
        if self.mode == "rollback":
            before = None if self.scheduled is None else self.scheduled.step
            is_scheduled = self.context.checkpointer.is_scheduled
            found["scheduled"] = self.context.state.global_step if is_scheduled else before
        return {"spikes": found}

    def load(self, stored: dict[str, Any], source: "StoredRun") -> None:
        if (spikes := stored.get("spikes")) is not None:
            self._load(spikes, source)
        self._return_to(source.path, spikes or {})

    def _load(self, stored: Mapping[str, Any], source: "StoredRun") -> None:
        if stored["version"] != VERSION:
            raise CheckpointError(
                f"the checkpoint has loss spikes of version {stored['version']}, but this release of oneloop reads "
                f"{VERSION}. Resume with the release that wrote it, or a later one."
            )
        for name, known in self.ranges.items():
            for value in stored["recent"].get(name, ()):
                known.add(float.fromhex(value))
        rollbacks = self.rollbacks
        if self._carried is None:
            rollbacks = tuple(map(Rollback.from_json, stored["rollbacks"]))
        step = self.context.state.global_step
        later = [each for each in rollbacks if each.last > step]
        if later and not source.same_samples:
            logger.warning(
                "The checkpoint skips the samples of later steps because of loss spikes, but the dataset or the "
                "number of samples in an update has changed: they are not skipped."
            )
            rollbacks = tuple(each for each in rollbacks if each.last <= step)
        self._skip_steps_of(rollbacks)
