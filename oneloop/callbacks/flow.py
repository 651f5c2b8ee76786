"""When to log, evaluate and save; when to stop early."""

import logging
import math
import time
from typing import TYPE_CHECKING, Any, ClassVar

from .. import behaviour
from ..arguments.evaluation import higher_is_better
from ..errors import EarlyStoppingError
from ..formats.schema import Rule, any_number, optional
from ..state import ExportableState, TrainerControl, TrainerState
from .base import TrainerCallback
from .progress import tell

if TYPE_CHECKING:
    from ..arguments import TrainingArguments

logger = logging.getLogger(__name__)


class DefaultFlowCallback(TrainerCallback):
    """Sets the flags of TrainerControl according to the strategies in the arguments."""

    def __init__(self) -> None:
        self._saved_at = time.monotonic()
        self._behaviour = behaviour.current()  # read once: on_step_end is in the way of every step

    def on_train_begin(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._saved_at = time.monotonic()

    def on_step_end(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        step, expected = state.global_step, self._behaviour
        if args.save_interval_minutes and time.monotonic() - self._saved_at >= 60 * args.save_interval_minutes:
            control.should_save = True
        if step == 1 and args.logging_first_step:
            control.should_log = True
            if args.eval_strategy == "steps" and args.eval_delay <= step and expected.evaluates_first_logged_step:
                control.should_evaluate = True
        if args.logging_strategy == "steps" and step % state.logging_steps == 0:
            control.should_log = True
        if args.eval_strategy == "steps" and step % state.eval_steps == 0 and args.eval_delay <= step:
            control.should_evaluate = True
        if args.save_strategy == "steps" and state.save_steps > 0 and step % state.save_steps == 0:
            control.should_save = True
        if state.max_steps > 0 and step >= state.max_steps:
            control.should_training_stop = True
            if args.eval_strategy == "steps" and args.eval_delay <= step and expected.evaluates_last_step:
                control.should_evaluate = True
            # A run that saves by steps always saves its last step.
            if args.save_strategy == "steps":
                control.should_save = True
        if control.should_save:
            self._saved_at = time.monotonic()
        return control

    def on_epoch_end(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        if args.logging_strategy == "epoch":
            control.should_log = True
        if args.eval_strategy == "epoch" and args.eval_delay <= (state.epoch or 0):
            control.should_evaluate = True
        if args.save_strategy == "epoch":
            control.should_save = True
        return control


class EarlyStoppingCallback(TrainerCallback, ExportableState):
    """Stops when the metric has not improved by more than the threshold for `early_stopping_patience` evaluations."""

    # Of stored attributes that need not be of the kind of the current ones: a run may return to before any evaluation.
    state_rules: ClassVar[dict[str, Rule]] = {"best": optional(any_number)}

    def __init__(self, early_stopping_patience: int = 1, early_stopping_threshold: float | None = 0.0) -> None:
        self.early_stopping_patience = early_stopping_patience
        self.early_stopping_threshold: float = early_stopping_threshold or 0.0
        self.early_stopping_patience_counter: int = 0
        self.best: float | None = None

    def on_train_begin(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step == 0:  # a new run, not a resumed one
            self.best, self.early_stopping_patience_counter = None, 0
        if behaviour.current().early_stopping_checks_arguments:
            _check_early_stopping(args)
        elif args.eval_strategy == "no":
            logger.warning(
                "EarlyStoppingCallback needs evaluations, but eval_strategy is 'no', so it will never stop this run. "
                "Set eval_strategy to 'steps' or 'epoch'."
            )

    def on_evaluate(
        self,
        args: "TrainingArguments",
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        name = args.metric_for_best_model or "loss"
        name = name if name.startswith("eval_") else f"eval_{name}"
        value = (metrics or {}).get(name)
        if value is None:
            logger.warning(
                "EarlyStoppingCallback expected the metric %s (metric_for_best_model), but this evaluation only has: "
                "%s. Skipping this evaluation.",
                name,
                ", ".join(sorted(metrics or {})),
            )
            return
        if math.isnan(value):
            logger.warning(
                "EarlyStoppingCallback: %s is NaN at step %d, which counts as no improvement.", name, state.global_step
            )
        self.check_metric_value(args, state, control, value)
        if self.early_stopping_patience_counter >= self.early_stopping_patience:
            control.should_training_stop = True
            if state.is_world_process_zero:
                self._tell_why(args, state, name)

    def check_metric_value(
        self, args: "TrainingArguments", state: TrainerState, control: TrainerControl, metric_value: float
    ) -> None:
        """Count an evaluation without an improvement, or start counting again. May be overridden."""
        if self._improved(args, metric_value):
            self.best, self.early_stopping_patience_counter = metric_value, 0
        else:
            self.early_stopping_patience_counter += 1

    def _tell_why(self, args: "TrainingArguments", state: TrainerState, name: str) -> None:
        count, least = self.early_stopping_patience_counter, self.early_stopping_threshold
        gain = f" by more than {least:g}" if least else ""
        best = "" if self.best is None else f"; the best is {self.best:.6g}"
        evaluations = "the last evaluation" if count == 1 else f"the last {count} evaluations"
        tell(
            args,
            logger,
            f"Early stopping at step {state.global_step}: {name} has not improved{gain} in {evaluations}{best}.",
        )

    def _improved(self, args: "TrainingArguments", value: float) -> bool:
        if math.isnan(value):
            return False
        if self.best is None or math.isnan(self.best):  # another trainer may have left a NaN
            return True
        greater = args.greater_is_better
        if greater is None:
            greater = higher_is_better(args.metric_for_best_model or "loss")
        gain = value - self.best if greater else self.best - value
        return gain > self.early_stopping_threshold

    def state(self) -> dict[str, Any]:
        return {
            "args": {
                "early_stopping_patience": self.early_stopping_patience,
                "early_stopping_threshold": self.early_stopping_threshold,
            },
            "attributes": {
                "early_stopping_patience_counter": self.early_stopping_patience_counter,
                "best": self.best,
            },
        }


def _check_early_stopping(args: "TrainingArguments") -> None:
    """Raise the errors that a script may rely on."""
    if args.metric_for_best_model is None:
        raise EarlyStoppingError("EarlyStoppingCallback requires metric_for_best_model, such as 'eval_loss'")
    if args.eval_strategy == "no":
        raise EarlyStoppingError("EarlyStoppingCallback requires evaluations: eval_strategy='steps' or 'epoch'")
