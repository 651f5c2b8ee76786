"""Training as MindNLP's guide of 0.4 teaches it, with a Cell of its own in place of a downloaded model."""

import sys

import mindspore
import numpy as np
from mindnlp.engine import Trainer, TrainingArguments
from mindnlp.engine.utils import EvalPrediction
from mindspore import nn
from mindspore.dataset import GeneratorDataset


class Classifier(nn.Cell):
    def __init__(self):
        super().__init__()
        self.output = nn.Dense(4, 2)
        self.loss = nn.CrossEntropyLoss()

    def construct(self, inputs, labels=None):
        logits = self.output(inputs)
        if labels is None:
            return (logits,)
        return self.loss(logits, labels), logits


def process_dataset(count, seed, batch_size=1):
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(count, 4)).astype(np.float32)
    labels = (rows[:, 0] > 0).astype(np.int32)
    dataset = GeneratorDataset(list(zip(rows, labels)), ["inputs", "labels"], shuffle=False)
    return dataset.batch(batch_size) if batch_size > 1 else dataset


def compute_metrics(eval_pred: EvalPrediction):
    logits, labels = eval_pred
    predictions = np.argmax(logits, axis=-1)
    return {"accuracy": float((predictions == labels).mean())}


mindspore.set_seed(42)
training_args = TrainingArguments(
    output_dir=sys.argv[1],
    num_train_epochs=3,
    learning_rate=5e-2,
    per_device_train_batch_size=8,
    per_device_eval_batch_size=16,
    evaluation_strategy="steps",
    eval_steps=10,
    save_strategy="epoch",
    logging_strategy="steps",
    logging_steps=5,
)
trainer = Trainer(
    model=Classifier(),
    train_dataset=process_dataset(64, 0),
    eval_dataset=process_dataset(32, 1),
    compute_metrics=compute_metrics,
    args=training_args,
)
trainer.train()
metrics = trainer.evaluate()
trainer.save_metrics("eval", metrics)
print("accuracy", metrics["eval_accuracy"])
