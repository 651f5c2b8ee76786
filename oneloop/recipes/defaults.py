"""Training arguments that a recipe sets where nothing is given, each with the reason."""

from collections.abc import Iterator, Mapping
from typing import Any

from .tasks import Form, Task

Default = tuple[str, Any, str]  # name, value, why

# An argument that is not set, since another one has been given in its place.
_REPLACED_BY = {
    "num_train_epochs": ("max_steps",),
    "warmup_ratio": ("warmup_steps",),
    "logging_steps": ("logging_strategy",),
    "save_total_limit": ("save_strategy",),
}


def of_task(
    task: Task, form: Form, given: Mapping[str, Any], fields: set[str], has_eval: bool, lora: bool, from_scratch: bool
) -> list[Default]:
    """Those that are not among the fields that were given."""
    every = [*_training(task, lora, from_scratch), *_evaluation(form, given, has_eval)]
    return [
        (name, value, why)
        for name, value, why in every
        if name not in fields and not any(other in fields for other in _REPLACED_BY.get(name, ()))
    ]


def _training(task: Task, lora: bool, from_scratch: bool) -> Iterator[Default]:
    yield "output_dir", f"outputs/{task.name}", "the name of the task"
    for name, default in task.defaults.items():
        if lora and default.with_lora is not None:
            yield name, default.with_lora, "for a LoRA adapter"
        elif from_scratch and name == "learning_rate":
            yield name, 5e-4, "for random weights"
        else:
            yield name, default.value, default.why
    yield "logging_steps", 0.02, "50 logs"


def _evaluation(form: Form, given: Mapping[str, Any], has_eval: bool) -> Iterator[Default]:
    by_steps = "eval_steps" in given
    usual = "steps" if by_steps else "epoch"
    when = str(given.get("eval_strategy", given.get("evaluation_strategy", usual)))
    yield "save_strategy", "steps" if "save_steps" in given else "epoch", "a checkpoint for each epoch"
    yield "save_total_limit", 2, "the newest checkpoint and the best"
    if has_eval:
        yield "eval_strategy", when, "every eval_steps" if by_steps else "once per epoch"
    if has_eval and when != "no":
        yield "load_best_model_at_end", True, "the best model is the result"
        yield "metric_for_best_model", form.metric, "by evaluation"
        yield "greater_is_better", form.direction == "maximize", "follows from the metric"
