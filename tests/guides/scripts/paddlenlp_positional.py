"""PaddleNLP's order of the Trainer's parameters (model, criterion, args, ...), with evaluation and prediction."""

from functools import partial

import numpy as np
import torch
from stand_ins import AutoModelForSequenceClassification, AutoTokenizer, load_dataset

from oneloop import DataCollatorWithPadding, PdArgumentParser, Trainer, TrainingArguments

parser = PdArgumentParser((TrainingArguments,))
(training_args,) = parser.parse_args_into_dataclasses()

tokenizer = AutoTokenizer.from_pretrained("ernie-3.0-medium-zh")


def convert_example(example, tokenizer):
    encoded_inputs = tokenizer(text=example["text"], max_seq_len=128)
    encoded_inputs["labels"] = int(example["label"])
    return encoded_inputs


convert = partial(convert_example, tokenizer=tokenizer)
train_dataset, dev_dataset = (load_dataset("chnsenticorp", splits=[name]).map(convert) for name in ("train", "dev"))
model = AutoModelForSequenceClassification.from_pretrained("ernie-3.0-medium-zh", num_classes=2)


def compute_metrics(p):
    return {"accuracy": float((np.argmax(p.predictions, axis=1) == p.label_ids).mean())}


trainer = Trainer(
    model,
    torch.nn.CrossEntropyLoss(),
    training_args,
    DataCollatorWithPadding(tokenizer),
    train_dataset,
    dev_dataset,
    tokenizer,
    compute_metrics=compute_metrics,
)

if training_args.do_train:
    train_result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    trainer.save_model()
    trainer.log_metrics("train", train_result.metrics)
    trainer.save_metrics("train", train_result.metrics)
    trainer.save_state()
if training_args.do_eval:
    eval_metrics = trainer.evaluate()
    trainer.log_metrics("eval", eval_metrics)
    trainer.save_metrics("eval", eval_metrics)
if training_args.do_predict:
    prediction = trainer.predict(dev_dataset)
