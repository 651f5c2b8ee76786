"""The reference of transformers' Trainer, its second part: evaluation by what the model generates."""

import numpy as np
from stand_ins import AutoModelForSeq2SeqLM, AutoTokenizer, load_dataset

from oneloop import DataCollatorForSeq2Seq, HfArgumentParser, Seq2SeqTrainer, Seq2SeqTrainingArguments

(args,) = HfArgumentParser(Seq2SeqTrainingArguments).parse_args_into_dataclasses()

tokenizer = AutoTokenizer.from_pretrained("t5-small")
model = AutoModelForSeq2SeqLM.from_pretrained("t5-small")


def preprocess(examples):
    inputs = tokenizer(examples["document"], max_length=16, truncation=True, return_token_type_ids=False)
    inputs["labels"] = tokenizer(examples["summary"])["input_ids"]
    return inputs


dataset = load_dataset("echo").map(preprocess, batched=True, remove_columns=["document", "summary"])


def compute_metrics(eval_pred):
    predictions, labels = eval_pred
    pad = tokenizer.pad_token_id
    said = tokenizer.batch_decode(np.where(predictions != -100, predictions, pad), skip_special_tokens=True)
    meant = tokenizer.batch_decode(np.where(labels != -100, labels, pad), skip_special_tokens=True)
    return {
        "exact": float(np.mean([a == b for a, b in zip(said, meant)])),
        "gen_len": float(np.mean(np.count_nonzero(predictions != pad, axis=1))),
    }


trainer = Seq2SeqTrainer(
    model,
    args,
    train_dataset=dataset["train"],
    eval_dataset=dataset["test"],
    data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    tokenizer=tokenizer,
    compute_metrics=compute_metrics,
)
before = trainer.evaluate()
result = trainer.train()
after = trainer.evaluate()
predicted = trainer.predict(dataset["test"], max_length=4, num_beams=1)
