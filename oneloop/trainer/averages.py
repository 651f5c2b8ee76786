"""An average of the weights over the steps of a run: EMA (ema_decay) or SWA (swa_start)."""

import contextlib
import logging
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..backends._common.helpers import find_mismatch
from ..errors import CheckpointError
from ..formats.schema import integer, record, text
from .part import Part, RunContext

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ..checkpoint.resume import StoredRun

logger = logging.getLogger(__name__)


class WeightAverage(Part):
    """It has the parameters that are trained, in float32 and on their device; all other weights and buffers are those
    of the model. An update reads nothing from the device."""

    name = "average"
    title = "average of the weights"
    schema = {"average": record({"kind": text("ema|swa", "ema or swa"), "count": integer()}, is_closed=True)}

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        args = context.args
        self.kind = "ema" if args.ema_decay is not None else "swa" if args.swa_start is not None else None
        self.count = 0  # weights that are in it
        self.values: list[Any] = []  # empty until the first weights are in it
        self._named: list[tuple[str, Any]] = []  # the parameters, by name

    @property
    def is_active(self) -> bool:
        return self.kind is not None

    # -- training

    def model_ready(self) -> None:
        if self.kind is not None:
            self._named = self.backend.models.named_parameters(self.context.model)

    def end_step(self, step: int) -> None:
        """Take the weights of this step into the average."""
        args, tensors = self.context.args, self.backend.tensors
        if step < self._start or step % args.averaging_steps:
            return
        if self.count:
            weight = 1.0 / (self.count + 1) if args.ema_decay is None else 1.0 - args.ema_decay
            tensors.lerp(self.values, self._parameters, weight)
        else:
            self.values = tensors.float32_copies(self._parameters)
        self.count += 1

    @property
    def _start(self) -> int:
        start, steps = self.context.args.swa_start or 0, self.context.plan.max_steps
        return math.ceil(start * max(steps, 0)) if 0 < start < 1 else int(start)

    @property
    def _parameters(self) -> list[Any]:
        return [p for _, p in self._named]

    def weights_for(self, purpose: str) -> contextlib.AbstractContextManager[None] | None:
        args = self.context.args
        is_wanted = args.eval_with_average if purpose == "eval" else args.save_average
        return self.in_model() if is_wanted and self.values else None

    @contextlib.contextmanager
    def in_model(self) -> Iterator[None]:
        """A context in which the model has the average. The weights of the training are back afterwards, bit for
        bit."""
        tensors, parameters = self.backend.tensors, self._parameters
        before = tensors.keep(parameters, [None] * len(parameters))
        tensors.assign(parameters, self.values)
        try:
            yield
        finally:
            tensors.restore_copies(parameters, before)

    # -- checkpoints

    def tensors(self) -> dict[str, Any]:
        """The average by the names of the parameters; {} if there is none yet."""
        return {name: value for (name, _), value in zip(self._named, self.values)}

    @classmethod
    def expects_tensors(cls, stored: "Mapping[str, Any]") -> bool:
        return stored["average"]["count"] > 0

    def state(self) -> dict[str, Any]:
        return {"average": {"kind": self.kind, "count": self.count}}

    def properties(self) -> dict[str, Any]:
        return {name: getattr(self.context.args, name) for name in ("ema_decay", "swa_start", "averaging_steps")}

    def load(self, stored: dict[str, Any], source: "StoredRun") -> None:
        average = stored.get("average", {"kind": None, "count": 0})
        if self.kind != average["kind"]:
            self._warn_about_other_average(average["kind"], source.path)
        elif self.kind is not None and average["count"]:
            self.count = average["count"]
            self._read(source)

    def load_best_model(self, source: "StoredRun") -> None:
        """The average of the best model, if it is what was evaluated."""
        if self.values and source.has_tensors(self.name):
            self._read(source)

    def _warn_about_other_average(self, stored: str | None, path: "Path") -> None:
        words = {None: "no average of the weights", "ema": "an EMA of the weights", "swa": "an SWA of the weights"}
        logger.warning(
            "%s has %s, and this run keeps %s: it %s.",
            path,
            words[stored],
            words[self.kind] if self.kind else "none",
            "starts here" if self.kind else "is not continued",
        )

    def _read(self, source: "StoredRun") -> None:
        """Names, shapes and types have to be those of this model's average."""
        file, backend = f"{self.name}.safetensors", self.backend
        if not source.has_tensors(self.name):
            raise CheckpointError(f"{source.path} has an average of {self.count} weights, but no {file}")
        found, tensors = source.tensor_types(self.name), source.tensors(self.name)
        problems = find_mismatch(tensors, dict(self._named))
        wrong = [f"{name} is {dtype}, expected F32" for name, dtype in found.items() if dtype != "F32"]
        if problems or wrong:
            raise CheckpointError(
                f"the averaged weights in {source.path / file} do not match the model: "
                f"{problems or '; '.join(wrong[:3])}. Use the same model and the same frozen layers, or remove "
                "ema_decay or swa_start."
            )
        self.values = backend.tensors.float32_copies(self._parameters)
        backend.tensors.assign(self.values, [source.part_of(p, tensors[name]) for name, p in self._named])
