"""When to evaluate, what to keep of it, and which model is the best."""

from dataclasses import dataclass

from ..enums import IntervalStrategy
from . import values
from .fields import Group, declare

arg = declare("Evaluation")
# A metric whose name ends so is better when it is lower. Short ones must be a whole word: "power" ends in "wer".
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
        "no", "When to evaluate while training.", aliases=("evaluation_strategy",), enum=IntervalStrategy
    )
    eval_steps: float | None = arg(
        None,
        "Steps between evaluations; below 1 it is a ratio of all steps.",
        convert=values.to_steps,
        shown="logging_steps",
    )
    eval_delay: float = arg(0, "No evaluation before this epoch, or step, by eval_strategy.", low=0, none=True)
    eval_on_start: bool = arg(False, "Evaluate once before the first step.")
    eval_accumulation_steps: int | None = arg(
        None, "Steps that stay on the device before they move to the host.", low=1, shown="moved as they come"
    )
    eval_do_concat_batches: bool = arg(True, "False hands the outputs to compute_metrics as a list of batches.")
    eval_use_gather_object: bool = arg(
        False, "With several processes: outputs that are not tensors are gathered too, with it or without."
    )
    minimum_eval_times: int | None = arg(
        None, "Lowers eval_steps until there are at least so many; -1 or 0: off.", low=-1
    )
    prediction_loss_only: bool = arg(False, "Keep the loss alone, no outputs.")
    include_for_metrics: list[str] = arg(
        list, "What compute_metrics gets besides: inputs, loss.", choices=("inputs", "loss"), none=True
    )
    batch_eval_metrics: bool = arg(
        False, "Call compute_metrics after each batch, with compute_result=True after the last; no outputs are kept."
    )
    load_best_model_at_end: bool = arg(
        False, "Keep the model of the best evaluation and load it at the end, whatever save_strategy says.", none=True
    )
    metric_for_best_model: str | None = arg(None, "The metric that says which evaluation is best.", shown="loss")
    greater_is_better: bool | None = arg(None, "Whether more of it is better.", shown="by the metric's name")

    def check(self) -> None:
        if self.eval_strategy == "steps" and self.eval_steps == 0:
            raise values.wrong("eval_steps", 0, "at least 1 with eval_strategy='steps', or a ratio between 0 and 1")
