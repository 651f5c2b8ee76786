"""Fine-tuning as MindNLP 0.4 taught it, with the models of 0.5: mindspore.dataset, a map function, an adapter."""

import sys

import mindspore
import numpy as np
from mindnlp.dataset import BaseMapFunction, load_dataset
from mindnlp.engine import Trainer, TrainingArguments
from mindnlp.engine.callbacks import TrainerCallback
from mindnlp.peft import LoraConfig, TaskType, get_peft_model
from mindnlp.transformers import AutoTokenizer, BertConfig, BertForSequenceClassification
from mindspore.dataset import transforms

output_dir = sys.argv[1]
tokenizer = AutoTokenizer.from_pretrained("bert")
splits = load_dataset("csv", data_files={"train": "train.csv", "validation": "dev.csv", "test": "dev.csv"})


def label_of(label):
    return np.array(int(str(label) == "bad"), dtype=np.int64)


def process_dataset(dataset, batch_size, shuffle=False):
    def tokenize(text):
        tokenized = tokenizer(str(text), truncation=True, max_length=12)
        return tokenized["input_ids"], tokenized["token_type_ids"], tokenized["attention_mask"]

    if shuffle:
        dataset = dataset.shuffle(64)
    dataset = dataset.map([tokenize], "text", ["input_ids", "token_type_ids", "attention_mask"])
    dataset = dataset.map([label_of, transforms.TypeCast(mindspore.int32)], "label", "labels")
    pad_info = {"input_ids": (None, tokenizer.pad_token_id), "token_type_ids": (None, 0), "attention_mask": (None, 0)}
    return dataset.padded_batch(batch_size, pad_info=pad_info)


class MapFunction(BaseMapFunction):
    def __call__(self, text, label):
        tokenized = tokenizer(str(text), max_length=12, padding="max_length", truncation=True)
        return tokenized["input_ids"], tokenized["attention_mask"], label_of(label)


class Count(TrainerCallback):
    def __init__(self):
        self.logs = 0

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs += "loss" in logs


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    return {"accuracy": float((np.argmax(logits, axis=-1) == labels).mean())}


def small():
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32, initializer_range=0.3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForSequenceClassification(config)


args = TrainingArguments(
    output_dir=output_dir,
    evaluation_strategy="epoch",
    save_strategy="epoch",
    logging_strategy="epoch",
    load_best_model_at_end=True,
    num_train_epochs=2.0,
    learning_rate=2e-2,
)
args = args.set_optimizer(name="adamw", learning_rate=2e-2, beta1=0.8)
trainer = Trainer(
    model=small(),
    args=args,
    train_dataset=process_dataset(splits["train"], 6, shuffle=True),
    eval_dataset=process_dataset(splits["validation"], 5),
    compute_metrics=compute_metrics,
    callbacks=[count := Count()],
)
trainer.train()
metrics = trainer.evaluate(process_dataset(splits["test"], 4))
trainer.save_metrics("eval", metrics | {"steps": trainer.state.global_step, "logs": count.logs})

peft_config = LoraConfig(task_type=TaskType.SEQ_CLS, r=4, lora_alpha=8, lora_dropout=0.0)
mapped = Trainer(
    get_peft_model(small(), peft_config),
    TrainingArguments(f"{output_dir}/adapter", per_device_train_batch_size=8, max_steps=8, logging_steps=4),
    MapFunction(["text", "label"], ["input_ids", "attention_mask", "labels"]),
    load_dataset("csv", data_files="train.csv", split="train"),
)
mapped.train()
mapped.save_model()
