"""The learning notes: arguments from the command line in two dataclasses, then a Trainer with everything passed."""
# ruff: noqa: UP045 (the notes write Optional)

from dataclasses import dataclass, field
from typing import Literal, Optional

import numpy as np
from stand_ins import AutoModelForSequenceClassification, AutoTokenizer, SwanLabCallback, evaluate, load_dataset

from oneloop import DataCollatorWithPadding, HfArgumentParser, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("google-bert/bert-base-cased")


def tokenize_function(examples):
    return tokenizer(examples["text"], padding="max_length", truncation=True, max_length=512)


model = AutoModelForSequenceClassification.from_pretrained("google-bert/bert-base-cased", num_labels=5)


@dataclass
class ModelArguments:
    """About the model."""

    model_name_or_path: Optional[str] = field(default="BertModel/")
    tokenizer_name: Optional[str] = field(default="BertModel/")
    load_plm: Optional[str] = field(default="CLModel/BertContrastive.aol")
    load_model: Optional[str] = field(default="Ranking/ROUTE/PointBertSessionSearch.aol")
    ltr: Literal["point", "pair"] = field(default="point")


@dataclass
class DataArguments:
    """About the data."""

    data_path: str = field(default="data/aol/", metadata={"help": "Path to the data."})
    task: str = field(default="aol")


def main():
    parser = HfArgumentParser((TrainingArguments, ModelArguments))
    training_args, model_args = parser.parse_args_into_dataclasses()
    return training_args, model_args


training_args, model_args = main()

tokenized_datasets = load_dataset("glue", "mrpc").map(tokenize_function, batched=True)
data_collator = DataCollatorWithPadding(tokenizer=tokenizer)
swanlab_callback = SwanLabCallback(project="notes", experiment_name="mrpc")


def compute_metrics(eval_preds):
    metric = evaluate.load("glue", "mrpc")
    logits, labels = eval_preds
    predictions = np.argmax(logits, axis=-1)
    return metric.compute(predictions=predictions, references=labels)


trainer = Trainer(
    model,
    training_args,
    train_dataset=tokenized_datasets["train"],
    eval_dataset=tokenized_datasets["validation"],
    data_collator=data_collator,
    tokenizer=tokenizer,
    callbacks=[swanlab_callback],
    compute_metrics=compute_metrics,
)
result = trainer.train()
