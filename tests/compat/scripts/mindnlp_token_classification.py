"""Token classification under MindNLP 0.5: labels aligned with tokens, padded by the collator, prediction at the end."""

import sys

import mindnlp
import mindspore
import numpy as np
from datasets import load_dataset
from mindnlp.transformers import AutoTokenizer, BertConfig, BertForTokenClassification
from transformers import DataCollatorForTokenClassification, Trainer, TrainingArguments, set_seed

assert mindspore.__version__ and mindnlp.__version__
set_seed(7)
label_list = ["O", "PER", "LOC"]
raw = load_dataset("json", data_files={"train": "train_ner.json", "validation": "dev_ner.json"})
tokenizer = AutoTokenizer.from_pretrained("bert")


def tokenize_and_align_labels(examples):
    tokenized = tokenizer(examples["tokens"], truncation=True, is_split_into_words=True)
    tokenized["labels"] = [
        [-100 if word is None else label_list.index(tags[word]) for word in tokenized.word_ids(batch_index=i)]
        for i, tags in enumerate(examples["ner_tags"])
    ]
    return tokenized


tokenized = raw.map(tokenize_and_align_labels, batched=True, remove_columns=raw["train"].column_names)
config = BertConfig(
    vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=32, num_labels=len(label_list), id2label=dict(enumerate(label_list)),
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip


def compute_metrics(p):
    predictions, labels = p
    kept = labels != -100
    return {"accuracy": float((np.argmax(predictions, axis=2)[kept] == labels[kept]).mean())}


trainer = Trainer(
    model=BertForTokenClassification(config),
    args=TrainingArguments(
        output_dir=sys.argv[1],
        eval_strategy="steps",
        eval_steps=6,
        save_strategy="no",
        learning_rate=1e-2,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        num_train_epochs=4,
        logging_steps=1,
        report_to="none",
    ),
    train_dataset=tokenized["train"],
    eval_dataset=tokenized["validation"],
    processing_class=tokenizer,
    data_collator=DataCollatorForTokenClassification(tokenizer),
    compute_metrics=compute_metrics,
)
result = trainer.train()
trainer.save_model()
trainer.save_metrics("train", result.metrics)
predictions, labels, metrics = trainer.predict(tokenized["validation"], metric_key_prefix="predict")
trainer.save_metrics("predict", metrics)
print("first", [label_list[i] for i, label in zip(predictions[0].argmax(-1), labels[0]) if label != -100])
