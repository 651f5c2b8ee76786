"""An average of the weights over the steps of a run: EMA (ema_decay) or SWA (swa_start)."""

import contextlib
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..backends._common.helpers import any_misfit
from ..checkpoint import from_framework
from ..checkpoint.run_state import RunState
from ..errors import CheckpointError
from ..formats.safetensors_io import read_header
from ..formats.structure import AVERAGE, is_ours

if TYPE_CHECKING:
    from .internals import Internals

logger = logging.getLogger(__name__)


class WeightAverage:
    """Created for each run. It has the parameters that are trained, in float32 and on their device; all other weights
    and buffers are those of the model. An update reads nothing from the device."""

    def __init__(self, core: "Internals") -> None:
        args = core.trainer.args
        self.core = core
        self.kind = "ema" if args.ema_decay is not None else "swa" if args.swa_start is not None else None
        self.count = 0  # weights that are in it
        self.values: list[Any] = []  # empty until the first weights are in it
        self._named: list[tuple[str, Any]] = []  # the parameters, by name

    # -- training

    def begin(self) -> None:
        """Before the first step, once the model has its final parameters."""
        if self.kind is not None:
            self._named = self.core.backend.models.named_parameters(self.core.trainer.model)

    def update(self, step: int) -> None:
        """After the update of a step: take its weights into the average."""
        args, tensors = self.core.trainer.args, self.core.backend.tensors
        if step < self._start or step % args.averaging_steps:
            return
        if self.count:
            weight = 1.0 - args.ema_decay if self.kind == "ema" else 1.0 / (self.count + 1)
            tensors.lerp(self.values, self._parameters, weight)
        else:
            self.values = tensors.float32_copies(self._parameters)
        self.count += 1

    @property
    def _start(self) -> int:
        start, steps = self.core.trainer.args.swa_start or 0, self.core.run.plan.max_steps
        return math.ceil(start * max(steps, 0)) if 0 < start < 1 else int(start)

    @property
    def _parameters(self) -> list[Any]:
        return [p for _, p in self._named]

    @contextlib.contextmanager
    def in_model(self, wanted: bool) -> Iterator[None]:
        """A context in which the model has the average, if it is wanted and there is one. The weights of the training
        are back afterwards, bit for bit."""
        if not wanted or not self.values:
            yield
            return
        tensors, parameters = self.core.backend.tensors, self._parameters
        before = tensors.keep(parameters, [None] * len(parameters))
        tensors.assign(parameters, self.values)
        try:
            yield
        finally:
            tensors.put_back(parameters, before)

    # -- checkpoints

    def named_values(self) -> dict[str, Any]:
        """The average by the names of the parameters; {} if there is none yet."""
        return {name: value for (name, _), value in zip(self._named, self.values)}

    def state(self) -> dict[str, Any]:
        """What run.json has of it."""
        return {} if self.kind is None else {"average": {"kind": self.kind, "count": self.count}}

    def load(self, run: RunState, path: Path) -> None:
        """Continue the average of a checkpoint."""
        stored = run.measured.get("average", {"kind": None, "count": 0})
        if self.kind != stored["kind"]:
            self._tell_of_another(stored["kind"], path)
        elif self.kind is not None and stored["count"]:
            self.count = stored["count"]
            self._read(run, path)

    def load_best(self, path: Path) -> None:
        """The average of the best model, whose weights were loaded, if it is what was evaluated."""
        run = RunState.read(path)
        if self.values and run is not None and is_ours(path, AVERAGE):
            self._read(run, path)

    def _tell_of_another(self, stored: str | None, path: Path) -> None:
        words = {None: "no average of the weights", "ema": "an EMA of the weights", "swa": "an SWA of the weights"}
        logger.warning(
            "%s has %s, and this run keeps %s: it %s.",
            path,
            words[stored],
            words[self.kind] if self.kind else "none",
            "starts here" if self.kind else "is not continued",
        )

    def _read(self, run: RunState, path: Path) -> None:
        """Names, shapes and types have to be those of this model's average."""
        core, file = self.core, path / AVERAGE
        if not is_ours(path, AVERAGE):
            raise CheckpointError(f"{path} has an average of {self.count} weights, but no {AVERAGE}")
        found = {name: dtype for name, (dtype, _) in read_header(file).items()}
        if from_framework.is_needed(core, run):
            tensors = from_framework.load_tensors(core, run, path, [file])
        else:
            tensors = core.strategy.load_tensors(file)
        problems = any_misfit(tensors, dict(self._named))
        wrong = [f"{name} is {dtype}, expected F32" for name, dtype in found.items() if dtype != "F32"]
        if problems or wrong:
            raise CheckpointError(
                f"the averaged weights in {file} do not match the model: {problems or '; '.join(wrong[:3])}. Use the "
                "same model and the same frozen layers, or remove ema_decay or swa_start."
            )
        self.values = core.backend.tensors.float32_copies(self._parameters)
        core.backend.tensors.assign(self.values, [tensors[name] for name, _ in self._named])
