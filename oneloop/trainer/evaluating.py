"""evaluate, predict and the pass over a loader behind both."""

import time
from typing import Any

from ..outputs import EvalLoopOutput, PredictionOutput
from . import setup
from .evaluation import evaluation_loop
from .meter import speed_metrics
from .parts import TrainerParts


class TrainerEvaluating(TrainerParts):
    """Metrics on an evaluation set, predictions on a test set."""

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Metrics on the evaluation set, or on each of several: a dict gives every metric its set's name as prefix."""
        override = eval_dataset is not None
        eval_dataset = eval_dataset if override else self.eval_dataset
        if isinstance(eval_dataset, dict):
            metrics: dict[str, float] = {}
            for name, part in eval_dataset.items():
                metrics.update(self.evaluate(part if override else name, ignore_keys, f"{metric_key_prefix}_{name}"))
            return metrics
        self.memory.start("eval", self.backend, self.args.device)
        # PaddleNLP hands on what evaluate() was given: overrides of its loader treat the Trainer's own set otherwise.
        loader = self.get_eval_dataloader(None if self._as_paddlenlp and not override else eval_dataset)
        started = time.time()
        output = self._run_evaluation(
            loader, "Evaluation", self.compute_metrics is None or None, ignore_keys, metric_key_prefix
        )
        metrics = self.processes.broadcast_object(self._timed(output, loader, metric_key_prefix, started))
        self.memory.stop("eval", self.backend, self.args.device, metrics)
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics=metrics)
        return metrics

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Predictions on a data set, with metrics when it has labels."""
        self.memory.start("test", self.backend, self.args.device)
        loader = self.get_test_dataloader(test_dataset)
        started = time.time()
        output = self._run_evaluation(loader, "Prediction", None, ignore_keys, metric_key_prefix)
        metrics = self.processes.broadcast_object(self._timed(output, loader, metric_key_prefix, started))
        self.memory.stop("test", self.backend, self.args.device, metrics)
        self.control = self.callback_handler.on_predict(self.args, self.state, self.control, metrics=metrics)
        return PredictionOutput(output.predictions, output.label_ids, metrics)

    def _run_evaluation(self, loader: Any, description: str, loss_only: Any, ignore_keys: Any, prefix: str) -> Any:
        run = self.prediction_loop if self.args.use_legacy_prediction_loop else self.evaluation_loop
        with setup.full_half_evaluation(self), self.processes.explaining_lost_peers():
            try:
                return run(
                    loader,
                    description=description,
                    prediction_loss_only=loss_only,
                    ignore_keys=ignore_keys,
                    metric_key_prefix=prefix,
                )
            finally:
                self.strategy.unsettle(self.model)

    def _timed(self, output: EvalLoopOutput, loader: Any, prefix: str, started: float) -> dict[str, float]:
        metrics = dict(output.metrics or {})
        samples = output.num_samples
        batches = None if samples is None else -(-samples // max(1, self.args.eval_batch_size))
        metrics.update(speed_metrics(prefix, started, samples, batches))
        return metrics

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        max_eval_iters: int | None = -1,
    ) -> EvalLoopOutput:
        """One pass over a loader: predictions, labels and metrics. evaluate() and predict() both run it.

        max_eval_iters, of PaddleNLP, ends it after so many batches.
        """
        this: Any = self
        most = max_eval_iters if max_eval_iters is not None and max_eval_iters > 0 else None
        return evaluation_loop(
            this, dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix, most
        )

    def prediction_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """The old name of evaluation_loop."""
        return self.evaluation_loop(*args, **kwargs)

    def _model_for_evaluation(self) -> Any:
        if not self.args.jit_mode_eval:
            # A data-parallel wrapper talks to the other processes in every forward, and they may have fewer batches.
            return self.model_wrapped if self.processes.size == 1 else self.model
        if self._compiled_for_eval is None:
            self._compiled_for_eval = self.backend.models.compiled(
                self.model, self.args.torch_compile_backend, self.args.torch_compile_mode
            )
        return self._compiled_for_eval
