"""When to evaluate, what to keep of it, and how to choose the best model."""

from dataclasses import dataclass

from ..enums import IntervalStrategy
from . import values
from .fields import Group, declare

arg = declare("Evaluation")
# A metric with one of these endings is better when lower. Short ones must be a whole word: "power" ends in "wer".
LOWER_ENDINGS = ("loss", "perplexity", "error", "error_rate", "distance")
LOWER_WORDS = (
    "ppl",
    "nll",
    "wer",
    "cer",
    "ter",
    "mer",
    "eer",
    "mae",
    "mse",
    "rmse",
    "mape",
    "bpc",
    "bpb",
    "fid",
    "err",
)


def higher_is_better(metric: str) -> bool:
    metric = metric.lower()
    return not (metric.endswith(LOWER_ENDINGS) or metric.split("_")[-1] in LOWER_WORDS)


@dataclass
class Evaluation(Group):
    eval_strategy: str = arg(
        "no", "When to evaluate during training.", aliases=("evaluation_strategy",), enum=IntervalStrategy
    )
    eval_steps: float | None = arg(
        None,
        "Steps between evaluations; a value below 1 is a ratio of all steps.",
        convert=values.to_steps,
        shown="logging_steps",
    )
    eval_delay: float = arg(0, "Epochs or steps (by eval_strategy) before the first evaluation.", low=0, none=True)
    eval_on_start: bool = arg(False, "Evaluate once before the first step.")
    eval_accumulation_steps: int | None = arg(
        None,
        "Prediction steps to accumulate on the device before moving outputs to the host.",
        low=1,
        shown="every step",
    )
    eval_do_concat_batches: bool = arg(True, "False passes the outputs to compute_metrics as a list of batches.")
    eval_use_gather_object: bool = arg(
        False, "No effect: outputs that are not tensors are always gathered from all processes."
    )
    minimum_eval_times: int | None = arg(
        None, "Lower eval_steps so that there are at least this many evaluations; -1 or 0: off.", low=-1
    )
    prediction_loss_only: bool = arg(False, "Return only the loss, no outputs.")
    include_for_metrics: list[str] = arg(
        list, "Extra inputs of compute_metrics: inputs, loss.", choices=("inputs", "loss"), none=True
    )
    batch_eval_metrics: bool = arg(
        False, "Call compute_metrics after each batch, with compute_result=True after the last; no outputs are kept."
    )
    load_best_model_at_end: bool = arg(
        False, "Load the best model at the end of training, with any save_strategy.", none=True
    )
    metric_for_best_model: str | None = arg(None, "Metric used to compare models.", shown="loss")
    greater_is_better: bool | None = arg(
        None, "Whether a greater metric_for_best_model is better.", shown="from the metric's name"
    )

    def check(self) -> None:
        if self.eval_strategy == "steps" and self.eval_steps == 0:
            raise values.invalid("eval_steps", 0, "at least 1 with eval_strategy='steps', or a ratio between 0 and 1")
