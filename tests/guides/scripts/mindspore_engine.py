"""MindNLP's older guide on MindSpore itself: a Cell, and data sets of mindspore.dataset that are already batched."""

import numpy as np
from mindspore_stand_ins import dataset_train, dataset_val, evaluate, model

from oneloop import EvalPrediction, Trainer, TrainingArguments

training_args = TrainingArguments(
    output_dir="../../output",
    num_train_epochs=3,
    learning_rate=5e-5,
    per_device_train_batch_size=1,
    per_device_eval_batch_size=1,
    evaluation_strategy="steps",
    eval_steps=100,
    save_strategy="epoch",
    logging_strategy="steps",
    logging_steps=50,
)

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
