"""Masked language modelling as transformers 4.x taught it, with arguments of its own and a callback."""

import math
import sys
from dataclasses import dataclass, field

import transformers
from datasets import load_dataset
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    HfArgumentParser,
)
from transformers.integrations import TensorBoardCallback
from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState
from transformers.training_args import TrainingArguments


@dataclass
class PretrainingArguments(transformers.TrainingArguments):
    """The library's arguments and two more."""

    mlm_probability: float = field(default=0.15, metadata={"help": "The share of tokens to guess."})
    learning_rate: float = field(default=1e-3, metadata={"help": "Larger than usual."})


@dataclass
class DataArguments:
    train_file: str = field(metadata={"help": "A text file."})
    model_dir: str = field(metadata={"help": "Path of a model."})
    line_by_line: bool = field(default=True, metadata={"help": "Each line is a sample."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Use so many of them."})


class Counting(TrainerCallback):
    """Counts the events of a run."""

    def __init__(self):
        self.steps = 0

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs):
        assert kwargs["model"] is not None and isinstance(args, TrainingArguments)
        self.steps += 1
        if state.global_step >= 6:
            control.should_training_stop = True
        return control


def main():
    parser = HfArgumentParser([PretrainingArguments, DataArguments])
    training_args, data_args, rest = parser.parse_args_into_dataclasses(return_remaining_strings=True)
    assert rest == ["--unknown", "word"], rest
    transformers.logging.set_verbosity_error()
    transformers.set_seed(training_args.seed)
    tokenizer = AutoTokenizer.from_pretrained(data_args.model_dir)
    model = AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(data_args.model_dir))
    data = load_dataset("text", data_files={"train": data_args.train_file})["train"]
    with training_args.main_process_first(local=False, desc="tokenizing"):
        data = data.map(
            lambda rows: tokenizer(rows["text"], truncation=True, return_special_tokens_mask=True),
            batched=True,
            remove_columns=["text"],
        )
    collator = DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm_probability=training_args.mlm_probability)
    counting = Counting()
    trainer = transformers.Trainer(
        model=model, args=training_args, data_collator=collator, train_dataset=data, callbacks=[counting]
    )
    trainer.remove_callback(TensorBoardCallback)
    output = trainer.train()
    assert counting.steps == trainer.state.global_step == 6
    trainer.save_model(training_args.output_dir)
    metrics = dict(output.metrics, perplexity=math.exp(output.training_loss), rate=training_args.learning_rate)
    trainer.save_metrics("train", metrics)


if __name__ == "__main__":
    sys.exit(main())
