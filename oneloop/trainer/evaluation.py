"""Evaluation and prediction: one pass over a loader, batches gathered into arrays, metrics at the end."""

import contextlib
import logging
import math
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from .. import behaviour
from ..data.batch_sizes import batch_rows, loader_rows
from ..data.order import NoBatch
from ..distributed.even_batches import even_batches
from ..errors import ArgumentError, DataError, EvaluationInterrupted, OneloopError, shorten
from ..outputs import EvalLoopOutput, EvalPrediction, plain_metrics
from . import batch_hints
from .core import core_of
from .dataloaders import local_batches
from .gathering import NestedRows, map_leaves
from .meter import speed_metrics

if TYPE_CHECKING:
    from . import Trainer
    from .core import Core

logger = logging.getLogger(__name__)


def run_loop(
    trainer: "Trainer", loader: Any, description: str, loss_only: Any, ignore_keys: Any, prefix: str
) -> EvalLoopOutput:
    """The loop of the Trainer, which may be overridden, with the weights and in the precision of evaluations."""
    core, args = core_of(trainer), trainer.args
    loop = trainer.prediction_loop if args.use_legacy_prediction_loop else trainer.evaluation_loop
    seeds = core.run.seeds
    given_up = seeds.undone_if_interrupted() if core.abandons_evaluations else contextlib.nullcontext()
    weights = core.run.parts.weights_for("eval")
    precision = core.engine.forward_context()
    with given_up, weights, core.half_precision_evaluation(), precision, core.processes.translate_lost_peer_errors():
        try:
            return loop(
                loader,
                description=description,
                prediction_loss_only=loss_only,
                ignore_keys=ignore_keys,
                metric_key_prefix=prefix,
            )
        except OneloopError as error:
            raise shorten(error)  # noqa: B904 (it is the same error)
        finally:
            core.strategy.finish_eval(trainer.model)


def with_speed(args: Any, output: EvalLoopOutput, prefix: str, started: float) -> dict[str, float]:
    """The metrics of an evaluation, and its runtime, samples and batches per second."""
    samples = output.num_samples
    batches = None if samples is None else -(-samples // max(1, args.eval_batch_size))
    return dict(output.metrics or {}) | speed_metrics(prefix, started, samples, batches)


def evaluation_loop(
    trainer: "Trainer",
    loader: Any,
    description: str,
    prediction_loss_only: bool | None,
    ignore_keys: list[str] | None,
    prefix: str,
    most: int | None = None,
) -> EvalLoopOutput:
    """Run the model over the loader, or its first `most` batches, without gradients and gather what it returns."""
    core = core_of(trainer)
    args = trainer.args
    loss_only = args.prediction_loss_only if prediction_loss_only is None else prediction_loss_only
    model = core.model_for_evaluation()
    core.strategy.prepare_eval(trainer.model)
    core.run.modes.evaluate(model)
    trainer.callback_handler.eval_dataloader = loader
    expected = loader_rows(loader) if most is None else None
    logger.info("%s: %s samples in batches of %s", description, expected or "unknown", args.eval_batch_size)
    gather = _gatherer(core, expected, loss_only, description)
    step = -1
    with core.run.update.without_past():  # past_index: the outputs of training do not belong to this data
        core.run.seeds.before_iterating(loader, prefix)
        for step, inputs in enumerate(islice(_batches(core, model, loader, ignore_keys), most)):
            if core.mesh.is_single and core.abandons_evaluations and core.run.sync.interrupted:
                raise EvaluationInterrupted("the run was interrupted by a signal")
            if not isinstance(inputs, NoBatch):
                _predict(core, model, inputs, gather, ignore_keys)
            gather.end_of_turn(step)
            del inputs  # frees its memory for the next batch
        core.run.step_end.release(loader)
    # A loader that an override made may be empty, where something else evaluates.
    may_be_empty = not core.backend.loaders.is_own(loader)
    if step < 0 and core.mesh.is_single and not may_be_empty:
        raise DataError(f"{description}: the dataset is empty. Pass a dataset with at least one sample.")
    metrics = gather.finish(prefix)
    if gather.seen == 0 and not may_be_empty:
        raise DataError(f"{description}: the dataset is empty. Pass a dataset with at least one sample.")
    if (
        not gather.has_loss
        and gather.seen
        and description == "Evaluation"
        and core.run.events.is_first_report("no loss", prefix)
    ):
        logger.warning(
            "The evaluation has no %s_loss: no labels found in its inputs (label_names is %s). Add labels to the "
            "dataset, or list their columns in label_names.",
            prefix,
            trainer.label_names,
        )
    return EvalLoopOutput(gather.predictions, gather.label_ids, metrics, gather.seen)


def _gatherer(core: "Core", expected: int | None, loss_only: bool, description: str) -> "EvalOutputs":
    if core.mesh.is_single:
        return EvalOutputs(core, expected, loss_only, description != "Evaluation")
    from .distributed_evaluation import DistributedEvalOutputs

    return DistributedEvalOutputs(core, expected, loss_only, description != "Evaluation")


def _batches(core: "Core", model: Any, loader: Any, ignore_keys: list[str] | None) -> Iterable[Any]:
    """The batches that this process computes. Where a forward pass is a collective, a process without batches joins."""
    batches = local_batches(core, loader)
    if not core.strategy.forward_is_collective and not core.run.contract.gathers:
        return batches

    def join_in(batch: Any) -> None:
        core.trainer.prediction_step(model, batch, True, ignore_keys=ignore_keys)

    return even_batches(core.processes, batches, join_in)


def _predict(core: "Core", model: Any, inputs: Any, gather: "EvalOutputs", ignore_keys: list[str] | None) -> None:
    """Run one batch and add its outputs to the gathered arrays."""
    trainer = core.trainer
    args = trainer.args
    rows = batch_rows(inputs) or args.eval_batch_size
    try:
        loss, logits, labels = trainer.prediction_step(model, inputs, gather.loss_only, ignore_keys=ignore_keys)
    except Exception as error:
        explained = batch_hints.explain(error, inputs, core)
        if explained is None:
            raise
        raise explained from error
    if logits is not None and trainer.preprocess_logits_for_metrics is not None:
        logits = trainer.preprocess_logits_for_metrics(logits, labels)
    kept = None
    if "inputs" in args.include_for_metrics and not gather.loss_only:
        # Where batches are seen whole, all of them together are seen by their main input.
        is_whole = args.batch_eval_metrics and behaviour.current().metrics_see_whole_batches
        kept = core.backend.devices.move(inputs if is_whole else _main_input(core, inputs), args.device)
    if args.batch_eval_metrics:
        gather.batch_metrics(last=False)  # of the previous batch: only now is it known not to be the last
    gather.hold(rows, loss, logits, labels, kept)
    trainer.control = trainer.callback_handler.on_prediction_step(args, trainer.state, trainer.control)


def _main_input(core: "Core", inputs: Any) -> Any:
    name = getattr(core.backend.models.unwrap(core.trainer.model), "main_input_name", "input_ids")
    if isinstance(inputs, Mapping):
        return inputs[name] if name in inputs else next(iter(inputs.values()))
    return inputs


class EvalOutputs:
    """Losses, predictions, labels and inputs of one evaluation, first on the device, then on the host."""

    def __init__(self, core: "Core", expected: int | None, loss_only: bool, predicts: bool) -> None:
        self.core, self.trainer = core, core.trainer
        # Whether predictions and labels are kept; with batch_eval_metrics, evaluate() does not need them.
        self.keeps = predicts or not core.trainer.args.batch_eval_metrics
        self.loss_only = loss_only
        as_list = not core.trainer.args.eval_do_concat_batches
        self.parts = {
            name: NestedRows(expected, core.backend.tensors, as_list) for name in ("logits", "labels", "inputs")
        }
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
        tensors = self.core.backend.tensors
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
            import numpy as np

            extra["losses"] = np.repeat([loss for loss, _ in self.losses], [rows for _, rows in self.losses])
        return _checked(trainer.compute_metrics(EvalPrediction(self.predictions, self.label_ids, **extra)))


def _checked(result: Any) -> dict[str, Any]:
    if not isinstance(result, Mapping):
        raise ArgumentError(
            f"compute_metrics returned {type(result).__name__}; expected a dict of names and numbers, such as "
            "{'accuracy': 0.9}. Return such a dict."
        )
    return dict(result)
