"""What an evaluation collects: losses, predictions and labels, and the metrics computed from them."""

import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import behaviour
from ..errors import ArgumentError
from ..outputs import EvalPrediction, plain_metrics
from .gathering import NestedRows, map_leaves

if TYPE_CHECKING:
    from .core import Core

logger = logging.getLogger(__name__)


class EvalOutputs:
    """Losses, predictions, labels and inputs of one evaluation, first on the device, then on the host."""

    def __init__(self, core: "Core", expected: int | None, loss_only: bool, predicts: bool) -> None:
        self.core, self.trainer, self.tensors = core, core.trainer, core.backend.tensors
        # Whether predictions and labels are kept; with batch_eval_metrics, evaluate() does not need them.
        self.keeps = predicts or not core.trainer.args.batch_eval_metrics
        self.loss_only = loss_only
        as_list = not core.trainer.args.eval_do_concat_batches
        self.parts = {name: NestedRows(expected, self.tensors, as_list) for name in ("logits", "labels", "inputs")}
        self.held: list[tuple] = []
        self.seen = 0
        self.losses: list[tuple[float, int]] = []
        self.batch_result: dict[str, Any] = {}
        self.predictions = self.label_ids = None

    def hold(self, rows: int, loss: Any, logits: Any, labels: Any, inputs: Any) -> None:
        self.held.append((rows, loss, logits, labels, inputs))

    def end_of_turn(self, step: int) -> None:
        """Called after batch number `step` of the loader."""
        args = self.trainer.args
        if not args.batch_eval_metrics and (step + 1) % (args.eval_accumulation_steps or 1) == 0:
            self.to_host()

    @property
    def has_loss(self) -> bool:
        return bool(self.losses)

    def _numpy(self, value: Any) -> Any:
        tensors = self.tensors
        return map_leaves(value, lambda leaf: tensors.to_numpy(leaf) if tensors.is_tensor(leaf) else leaf)

    def to_host(self) -> None:
        """Host sync: move the outputs held on the device into the arrays."""
        held, self.held = self.held, []
        for batch in held:
            self._keep(*batch)

    def _keep(self, rows: int, loss: Any, logits: Any, labels: Any, inputs: Any) -> None:
        self.seen += rows
        if loss is not None:
            self.losses.append((float(self._numpy(loss).mean()), rows))
        self._keep_arrays(logits, labels, inputs)

    def _keep_arrays(self, logits: Any, labels: Any, inputs: Any = None) -> None:
        for name, value in (("logits", logits), ("labels", labels), ("inputs", inputs)):
            if value is not None:
                self.parts[name].add(value)

    def batch_metrics(self, last: bool) -> None:
        """batch_eval_metrics: call compute_metrics for each batch; it returns the result when compute_result is
        True."""
        for batch in self.held:
            self._show(batch, last)
        self.held = []

    def _show(self, batch: tuple, last: bool) -> None:
        rows, loss, logits, labels, inputs = batch
        compute = self.trainer.compute_metrics
        self.seen += rows
        if self.keeps:
            self._keep_arrays(logits, labels)
        if loss is not None:
            self.losses.append((float(self._numpy(loss).mean()), rows))
        if compute is None or logits is None or labels is None:
            return
        extra = {"inputs": inputs} if inputs is not None else {}
        if "loss" in self.trainer.args.include_for_metrics:
            is_one = loss is not None and behaviour.current().metrics_see_whole_batches and len(loss.shape) == 0
            extra["losses"] = loss.broadcast_to((rows,)) if is_one else loss  # there one for each sample
        result = compute(EvalPrediction(logits, labels, **extra), compute_result=last)
        self.batch_result = _checked(result) if last else self.batch_result

    def finish(self, prefix: str) -> dict[str, Any]:
        """Compute all metrics; their names get the prefix."""
        trainer = self.trainer
        if trainer.args.batch_eval_metrics:
            self.batch_metrics(last=True)
            metrics = dict(self.batch_result)
            self._join_arrays()
        else:
            self.to_host()
            self._join_arrays()
            metrics = self._whole_metrics()
        return self._named(metrics, prefix)

    def _join_arrays(self) -> None:
        if self.keeps:
            self.predictions, self.label_ids = self.parts["logits"].result(), self.parts["labels"].result()

    def _named(self, metrics: dict[str, Any], prefix: str) -> dict[str, Any]:
        metrics = plain_metrics(metrics)
        if self.losses:
            rows = sum(rows for _, rows in self.losses)
            metrics[f"{prefix}_loss"] = math.fsum(loss * n for loss, n in self.losses) / rows
        return {key if key.startswith(f"{prefix}_") else f"{prefix}_{key}": value for key, value in metrics.items()}

    def _whole_metrics(self) -> dict[str, Any]:
        trainer = self.trainer
        if trainer.compute_metrics is None or self.loss_only:
            return {}
        if self.predictions is None or self.label_ids is None:
            if self.losses:  # for data without labels there is another warning, or it is intended
                logger.warning(
                    "compute_metrics was not called: %s.",
                    "the model returned only its loss"
                    if self.predictions is None
                    else f"no labels found in the inputs (label_names is {trainer.label_names})",
                )
            return {}
        extra = {}
        if "inputs" in trainer.args.include_for_metrics:
            extra["inputs"] = self.parts["inputs"].result()
        if "loss" in trainer.args.include_for_metrics:
            extra["losses"] = np.repeat([loss for loss, _ in self.losses], [rows for _, rows in self.losses])
        return _checked(trainer.compute_metrics(EvalPrediction(self.predictions, self.label_ids, **extra)))


def _checked(result: Any) -> dict[str, Any]:
    if not isinstance(result, Mapping):
        raise ArgumentError(
            f"compute_metrics returned {type(result).__name__}; expected a dict of names and numbers, such as "
            "{'accuracy': 0.9}. Return such a dict."
        )
    return dict(result)
