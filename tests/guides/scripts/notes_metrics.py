"""The learning notes: the same arguments written in Python, metrics of one's own, and metrics outside the Trainer."""

import numpy as np
import torch
from sklearn.metrics import accuracy_score, f1_score
from stand_ins import AutoModelForSequenceClassification, AutoTokenizer, evaluate, load_dataset

from oneloop import EvalPrediction, Trainer, TrainingArguments

training_args = TrainingArguments(
    output_dir="./results",
    overwrite_output_dir=True,
    num_train_epochs=3,
    per_device_train_batch_size=8,
    per_device_eval_batch_size=8,
    warmup_steps=500,
    weight_decay=0.01,
    logging_dir="./logs",
    logging_steps=10,
    save_steps=10,
    evaluation_strategy="steps",
    eval_steps=500,
    learning_rate=2e-5,
    load_best_model_at_end=True,
)


def compute_metrics(p: EvalPrediction):
    preds = np.argmax(p.predictions, axis=1)
    labels = p.label_ids

    accuracy = accuracy_score(labels, preds)
    f1 = f1_score(labels, preds, average="weighted")

    return {
        "accuracy": accuracy,
        "f1": f1,
    }


tokenizer = AutoTokenizer.from_pretrained("google-bert/bert-base-cased")
tokenized_datasets = load_dataset("glue", "mrpc").map(lambda examples: tokenizer(examples["text"]), batched=True)
model = AutoModelForSequenceClassification.from_pretrained("google-bert/bert-base-cased", num_labels=2)

trainer = Trainer(
    model,
    training_args,
    train_dataset=tokenized_datasets["train"],
    eval_dataset=tokenized_datasets["validation"],
    tokenizer=tokenizer,
    compute_metrics=compute_metrics,
)
trainer.train()
evaluated = trainer.evaluate()

eval_dataloader, device = trainer.get_eval_dataloader(), training_args.device

metric = evaluate.load("glue", "mrpc")
model.eval()
for batch in eval_dataloader:
    batch = {k: v.to(device) for k, v in batch.items()}
    with torch.no_grad():
        outputs = model(**batch)

    logits = outputs.logits
    predictions = torch.argmax(logits, dim=-1)
    metric.add_batch(predictions=predictions, references=batch["labels"])

computed = metric.compute()

outputs = model(**batch)
print(outputs.loss, outputs.logits.shape)
