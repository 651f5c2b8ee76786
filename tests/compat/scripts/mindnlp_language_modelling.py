"""Causal language modelling under MindNLP 0.5: blocks of text, labels from the collator, accumulation, perplexity."""

import math
import sys

import mindnlp
import mindspore
from datasets import load_dataset
from transformers import (
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
)

assert mindspore.__version__ and mindnlp.__version__
block_size = 16
raw = load_dataset("text", data_files={"train": "train.txt", "validation": "dev.txt"})
tokenizer = AutoTokenizer.from_pretrained("bert")


def tokenize_function(examples):
    return tokenizer(examples["text"])


def group_texts(examples):
    joined = {name: sum(examples[name], []) for name in examples}
    total = len(joined["input_ids"]) // block_size * block_size
    return {name: [ids[i : i + block_size] for i in range(0, total, block_size)] for name, ids in joined.items()}


tokenized = raw.map(tokenize_function, batched=True, remove_columns=["text"])
blocks = tokenized.map(group_texts, batched=True)
config = GPT2Config(
    vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2, n_positions=block_size, bos_token_id=2, eos_token_id=3,
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
)  # fmt: skip
trainer = Trainer(
    model=GPT2LMHeadModel(config),
    args=TrainingArguments(
        output_dir=sys.argv[1],
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        learning_rate=2e-2,
        weight_decay=0.01,
        warmup_ratio=0.1,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_train_epochs=3,
        logging_steps=1,
        save_total_limit=2,
        report_to="none",
    ),
    train_dataset=blocks["train"],
    eval_dataset=blocks["validation"],
    data_collator=DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm=False),
    callbacks=[EarlyStoppingCallback(early_stopping_patience=2)],
)
before = trainer.evaluate()["eval_loss"]
trainer.train()
metrics = trainer.evaluate()
metrics |= {"before": before, "perplexity": math.exp(metrics["eval_loss"])}
trainer.log_metrics("eval", metrics)
trainer.save_metrics("eval", metrics)
trainer.save_model()
trainer.save_state()
