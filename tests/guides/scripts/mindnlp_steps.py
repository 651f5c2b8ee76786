"""MindNLP's newer guide, step by step: arguments, model with a data type, Trainer, metrics."""

import numpy as np
import torch
from stand_ins import AutoModelForSequenceClassification, AutoTokenizer, evaluate, load_dataset

from oneloop import Trainer, TrainingArguments

training_args = TrainingArguments(
    output_dir="./output",
    num_train_epochs=3,
    learning_rate=5e-5,
    per_device_train_batch_size=16,
    per_device_eval_batch_size=16,
    eval_strategy="steps",
    eval_steps=100,
    save_strategy="epoch",
    logging_strategy="steps",
    logging_steps=50,
)

half_model = AutoModelForSequenceClassification.from_pretrained(
    "bert-base-uncased", num_labels=2, ms_dtype=torch.float16
)

model = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased", num_labels=2)

tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
dataset = load_dataset("imdb").map(lambda examples: tokenizer(examples["text"]), batched=True)
train_dataset = dataset["train"].select(range(640))
eval_dataset = dataset["test"].select(range(64))

metric = evaluate.load("accuracy")


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    predictions = np.argmax(logits, axis=-1)
    return metric.compute(predictions=predictions, references=labels)


trainer = Trainer(
    model=model,
    args=training_args,
    train_dataset=train_dataset,
    eval_dataset=eval_dataset,
    compute_metrics=compute_metrics,
    processing_class=tokenizer,
)
start = trainer.evaluate()

trainer.train()
