"""PaddleNLP's guide: fine-tuning a sentiment classifier, with a criterion beside the model."""

from dataclasses import dataclass, field
from functools import partial

import torch
from stand_ins import AutoModelForSequenceClassification, AutoTokenizer, load_dataset

from oneloop import PdArgumentParser, Trainer, TrainingArguments


@dataclass
class DataArguments:
    dataset: str = field(default=None, metadata={"help": "Name of the data set."})

    max_seq_length: int = field(default=128, metadata={"help": "Longest input after tokenization."})


parser = PdArgumentParser(TrainingArguments, DataArguments)
(training_args, data_args) = parser.parse_args_into_dataclasses()

train_dataset = load_dataset("chnsenticorp", splits=["train"])
model = AutoModelForSequenceClassification.from_pretrained(
    "ernie-3.0-medium-zh", num_classes=len(train_dataset.label_list)
)
tokenizer = AutoTokenizer.from_pretrained("ernie-3.0-medium-zh")


def convert_example(example, tokenizer):
    encoded_inputs = tokenizer(text=example["text"], max_seq_len=128, pad_to_max_seq_len=True)
    encoded_inputs["labels"] = int(example["label"])
    return encoded_inputs


train_dataset = train_dataset.map(partial(convert_example, tokenizer=tokenizer))

trainer = Trainer(
    model=model,
    criterion=torch.nn.CrossEntropyLoss(),
    args=training_args,
    train_dataset=train_dataset if training_args.do_train else None,
    tokenizer=tokenizer,
)

if training_args.do_train:
    train_result = trainer.train()
    metrics = train_result.metrics
    trainer.save_model()
    trainer.log_metrics("train", metrics)
    trainer.save_state()
