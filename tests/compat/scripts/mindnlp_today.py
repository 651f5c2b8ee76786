"""Fine-tuning as MindNLP's guide of today teaches it: mindnlp first, then transformers, a small model."""

import sys

import mindnlp
import mindspore
import numpy as np
from datasets import load_dataset
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

assert mindspore.__version__ and mindnlp.__version__
dataset = load_dataset("csv", data_files={"train": "train.csv", "test": "dev.csv"})
tokenizer = AutoTokenizer.from_pretrained("bert")


def tokenize_function(examples):
    encoded = tokenizer(examples["text"], padding="max_length", truncation=True, max_length=12)
    encoded["labels"] = [int(label == "bad") for label in examples["label"]]
    return encoded


tokenized = dataset.map(tokenize_function, batched=True, remove_columns=["text", "label"])
config = BertConfig(
    vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
)
model = BertForSequenceClassification(config)


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    return {"accuracy": float((np.argmax(logits, axis=-1) == labels).mean())}


training_args = TrainingArguments(
    output_dir=sys.argv[1],
    eval_strategy="epoch",
    save_strategy="epoch",
    learning_rate=2e-2,
    per_device_train_batch_size=8,
    per_device_eval_batch_size=8,
    num_train_epochs=2,
    logging_steps=3,
)
trainer = Trainer(
    model=model,
    args=training_args,
    train_dataset=tokenized["train"],
    eval_dataset=tokenized["test"],
    compute_metrics=compute_metrics,
)
trainer.train()
trainer.save_metrics("eval", trainer.evaluate())
print("trained by", type(trainer).__module__, "with", type(trainer).training_step.__module__)
