"""The reference of transformers' Trainer: every parameter of its constructor, and a script around it."""

import numpy as np
import torch
from stand_ins import AutoModelForSequenceClassification, AutoTokenizer, load_dataset
from torch.optim.lr_scheduler import LambdaLR

from oneloop import (
    DataCollatorWithPadding,
    EvalPrediction,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()

tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
dataset = load_dataset("imdb").map(lambda examples: tokenizer(examples["text"]), batched=True)
train_dataset, test_dataset = dataset["train"].select(range(96)), dataset["test"].select(range(32))
eval_dataset = {"seen": train_dataset.select(range(20)), "new": test_dataset}


class Events(TrainerCallback):
    def __init__(self):
        self.seen = []

    def on_step_end(self, args, state, control, **kwargs):
        self.seen.append(("step", state.global_step))

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        self.seen.append(("evaluate", state.global_step))


def compute_metrics(prediction: EvalPrediction) -> dict:
    return {"accuracy": float(np.mean(prediction.predictions == prediction.label_ids))}


def preprocess_logits_for_metrics(logits, labels):
    return logits.argmax(-1)


model = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased")
events = Events()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = LambdaLR(optimizer, lambda step: 0.95**step)

trainer = Trainer(
    model=model,
    args=args,
    data_collator=DataCollatorWithPadding(tokenizer),
    train_dataset=train_dataset,
    eval_dataset=eval_dataset,
    tokenizer=tokenizer,
    model_init=None,
    compute_metrics=compute_metrics,
    callbacks=[events],
    optimizers=(optimizer, scheduler),
    preprocess_logits_for_metrics=preprocess_logits_for_metrics,
)

if args.do_train:
    result = trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    trainer.save_model()
    trainer.log_metrics("train", result.metrics)
    trainer.save_metrics("train", result.metrics)
    trainer.save_state()
if args.do_eval:
    metrics = trainer.evaluate()
    trainer.log_metrics("eval", metrics)
    trainer.save_metrics("eval", metrics)
if args.do_predict:
    predicted = trainer.predict(test_dataset)
    trainer.save_metrics("test", predicted.metrics)
