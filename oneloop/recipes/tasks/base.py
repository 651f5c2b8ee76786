"""What a task is, as data. The functions of a task are complete in themselves: `--script` prints their source."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Form:
    """One kind of rows that a task accepts.

    `encode(rows, tokenizer, ...)` makes samples of rows; rows without the target, as in a prediction, are accepted.
    `compute_metrics(output, ...)` is that of the Trainer. `decode(outputs, rows, ...)` makes predictions of what the
    model returned. Each is called with those of the constants `labels` and `max_length` that it has as parameters.
    """

    inputs: tuple[str, ...]
    encode: Callable[..., list[dict[str, Any]]]
    target: str = ""  # a role; "": the inputs are all there is
    other_targets: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()  # inputs that rows may have, all of them or none
    compute_metrics: Callable[..., dict[str, float]] | None = None
    decode: Callable[..., list[dict[str, Any]]] | None = None
    prompt: Callable[..., list[int]] | None = None  # prompt(row, tokenizer): the tokens that generation begins with
    metric: str = "loss"  # for the best model
    model_options: Mapping[str, Any] = field(default_factory=dict)  # of from_pretrained
    needs_word_ids: bool = False  # of the tokenizer: which word a token belongs to

    @property
    def roles(self) -> tuple[str, ...]:
        return (*self.inputs, *self.optional, *self.targets)

    @property
    def required(self) -> tuple[str, ...]:
        return (*self.inputs, *self.targets)

    @property
    def targets(self) -> tuple[str, ...]:
        return (self.target, *self.other_targets) if self.target else ()

    @property
    def direction(self) -> str:
        """Whether the best model has the least or the greatest metric."""
        return "minimize" if self.metric in ("loss", "rmse") else "maximize"

    @property
    def has_labels(self) -> bool:
        return self.target in ("label", "labels", "tags")


@dataclass(frozen=True)
class Default:
    """A training argument that a task sets, and why."""

    value: Any
    why: str
    with_lora: Any = None


@dataclass(frozen=True)
class Task:
    """A task by its name in recipes."""

    name: str
    summary: str
    auto: str  # transformers' class for its models
    forms: tuple[Form, ...]
    collator: str  # a class of oneloop, made with the tokenizer
    card: str  # the task's name in a model card
    adapter: str  # the task's name in PEFT
    defaults: Mapping[str, Default]
    longest: int = 512  # tokens, if the data has longer rows
    generates: bool = False
    trl: str = ""  # TRL's trainer that does it: "DPO" for DPOTrainer and DPOConfig

    def form_of(self, columns: Mapping[str, str]) -> Form:
        """The form with these roles."""
        return next(form for form in self.forms if set(form.required) <= set(columns) <= set(form.roles))


def constants(function: Callable[..., Any], available: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the constants that a function of a form has as parameters."""
    code = function.__code__
    names: Sequence[str] = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return {name: value for name, value in available.items() if name in names}


FINE_TUNING = {
    "num_train_epochs": Default(3, "usual for fine-tuning"),
    "learning_rate": Default(3e-5, "for all weights", with_lora=3e-4),
    "per_device_train_batch_size": Default(16, "usual for short texts"),
    "per_device_eval_batch_size": Default(32, "without gradients there is room for more"),
    "warmup_ratio": Default(0.06, "a new head starts with large gradients"),
    "weight_decay": Default(0.01, "usual for AdamW"),
}
GENERATIVE = {
    "num_train_epochs": Default(3, "usual for fine-tuning"),
    "learning_rate": Default(2e-5, "for all weights", with_lora=2e-4),
    "per_device_train_batch_size": Default(8, "language models need memory"),
    "per_device_eval_batch_size": Default(8, "as in training"),
    "lr_scheduler_type": Default("cosine", "usual for language models"),
    "warmup_ratio": Default(0.03, "usual for language models"),
    "prediction_loss_only": Default(True, "evaluations keep no logits of the whole vocabulary"),
}
