"""Evaluation and prediction: one pass over a loader, whose outputs are collected (eval_outputs.py)."""

import contextlib
import logging
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from .. import behaviour
from ..data.batch_sizes import batch_rows, loader_rows
from ..data.order import NoBatch
from ..distributed.even_batches import even_batches
from ..errors import DataError, EvaluationInterrupted, OneloopError, shorten
from ..outputs import EvalLoopOutput
from . import batch_hints
from .core import core_of
from .dataloaders import local_batches
from .distributed_evaluation import DistributedEvalOutputs
from .eval_outputs import EvalOutputs
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
        logged: dict[str, float] = {}
        try:
            with core.run.logged_metrics.evaluation(logged, prefix):
                output = loop(
                    loader,
                    description=description,
                    prediction_loss_only=loss_only,
                    ignore_keys=ignore_keys,
                    metric_key_prefix=prefix,
                )
            return output._replace(metrics={**(output.metrics or {}), **logged}) if logged else output
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


def _gatherer(core: "Core", expected: int | None, loss_only: bool, description: str) -> EvalOutputs:
    if core.mesh.is_single:
        return EvalOutputs(core, expected, loss_only, description != "Evaluation")
    return DistributedEvalOutputs(core, expected, loss_only, description != "Evaluation")


def _batches(core: "Core", model: Any, loader: Any, ignore_keys: list[str] | None) -> Iterable[Any]:
    """The batches that this process computes. Where a forward pass is a collective, a process without batches joins."""
    batches = local_batches(core, loader)
    if not core.strategy.forward_is_collective and not core.run.contract.gathers:
        return batches

    def join_in(batch: Any) -> None:
        with core.run.logged_metrics.muted():
            core.trainer.prediction_step(model, batch, True, ignore_keys=ignore_keys)

    return even_batches(core.processes, batches, join_in)


def _predict(core: "Core", model: Any, inputs: Any, gather: EvalOutputs, ignore_keys: list[str] | None) -> None:
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
