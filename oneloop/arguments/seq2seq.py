"""Arguments of Seq2SeqTrainer: evaluation by generation."""

import os
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from . import values
from .docstrings import describe
from .fields import Group, declare, rules_of
from .training import TrainingArguments

arg = declare("Sequence to sequence")


def to_generation_config(name: str, value: Any) -> Any:
    """A name or path, or the object itself."""
    if isinstance(value, str | os.PathLike):
        return values.to_text(name, value)
    if isinstance(value, type | bool | int | float):
        raise values.invalid(name, value, "a model's name or path, or a GenerationConfig object")
    return value


@dataclass(repr=False)
class Generation(Group):
    sortish_sampler: bool = arg(False, "Training data sorted by length within shuffled chunks.")
    predict_with_generate: bool = arg(False, "Evaluate and predict with generate(), for metrics such as BLEU.")
    generation_max_length: int | None = arg(
        None, "With predict_with_generate: maximum length of the output.", low=1, shown="from the model"
    )
    generation_num_beams: int | None = arg(
        None, "With predict_with_generate: number of beams.", low=1, shown="from the model"
    )
    generation_config: object | None = arg(
        None,
        "With predict_with_generate: a GenerationConfig, or a model's name or path to load it from.",
        convert=to_generation_config,
        shown="from the model",
    )


if TYPE_CHECKING:
    from .signatures import GenerationFields
else:
    GenerationFields = Generation


class Seq2SeqTrainingArguments(GenerationFields, TrainingArguments):
    """TrainingArguments, plus options for generation during evaluation."""

    def check_together(self) -> None:
        super().check_together()
        if self.sortish_sampler and self.train_sampling_strategy != "random":
            raise ArgumentError(
                f"sortish_sampler=True and train_sampling_strategy='{self.train_sampling_strategy}' are two orders of "
                "the same data; expected one. Remove the other."
            )
        if self.sortish_sampler and self.data_order != "oneloop":
            raise ArgumentError(
                f"sortish_sampler=True and data_order={self.data_order!r} are two orders of the same data; expected "
                "one. Remove the other."
            )


dataclass(repr=False)(Seq2SeqTrainingArguments)
describe(Seq2SeqTrainingArguments)

TrainingArguments.__elsewhere__ = {
    item.name: "Seq2SeqTrainingArguments"
    for item in fields(Seq2SeqTrainingArguments)
    if (rules_of(item) or {}).get("group") == "Sequence to sequence"
}
