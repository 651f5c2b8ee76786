"""MindNLP's older guide: arguments and Trainer of `mindnlp.engine`, EvalPrediction of its utils."""

import numpy as np
from stand_ins import AutoModelForSequenceClassification, AutoTokenizer, evaluate, load_dataset

from oneloop import EvalPrediction, Trainer, TrainingArguments

training_args = TrainingArguments(
    output_dir="../../output",
    num_train_epochs=3,
    learning_rate=5e-5,
    per_device_train_batch_size=16,
    per_device_eval_batch_size=16,
    evaluation_strategy="steps",
    eval_steps=100,
    save_strategy="epoch",
    logging_strategy="steps",
    logging_steps=50,
)

model = AutoModelForSequenceClassification.from_pretrained("bert-base-cased", num_labels=2)
tokenizer = AutoTokenizer.from_pretrained("bert-base-cased")
dataset = load_dataset("imdb").map(lambda examples: tokenizer(examples["text"], padding="max_length"), batched=True)
dataset_train, dataset_val = dataset["train"].select(range(640)), dataset["test"].select(range(64))

metric = evaluate.load("accuracy")


def compute_metrics(eval_pred: EvalPrediction):
    logits, labels = eval_pred
    predictions = np.argmax(logits, axis=-1)
    return metric.compute(predictions=predictions, references=labels)


trainer = Trainer(
    model=model,
    train_dataset=dataset_train,
    eval_dataset=dataset_val,
    compute_metrics=compute_metrics,
    args=training_args,
)

trainer.train()
