"""Translation under MindNLP 0.5: Seq2SeqTrainer, labels padded by its collator, evaluation by generated text."""

import sys

import mindnlp
import mindspore
import numpy as np
from datasets import load_dataset
from transformers import (
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
)

assert mindspore.__version__ and mindnlp.__version__
raw = load_dataset("json", data_files={"train": "train_translation.json", "validation": "dev_translation.json"})
tokenizer = AutoTokenizer.from_pretrained("t5")


def preprocess_function(examples):
    sources = ["the " + each["en"] for each in examples["translation"]]
    targets = [each["de"] for each in examples["translation"]]
    return tokenizer(sources, text_target=targets, max_length=16, truncation=True)


tokenized = raw.map(preprocess_function, batched=True, remove_columns=["translation"])
config = T5Config(
    vocab_size=len(tokenizer), d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0.0,
    decoder_start_token_id=tokenizer.pad_token_id, pad_token_id=tokenizer.pad_token_id,
    eos_token_id=tokenizer.eos_token_id,
)  # fmt: skip
model = T5ForConditionalGeneration(config)


def compute_metrics(eval_preds):
    predictions, labels = eval_preds
    decoded = tokenizer.batch_decode(np.where(predictions != -100, predictions, tokenizer.pad_token_id), True)
    expected = tokenizer.batch_decode(np.where(labels != -100, labels, tokenizer.pad_token_id), True)
    lengths = [np.count_nonzero(row != tokenizer.pad_token_id) for row in predictions]
    same = [one == other for one, other in zip(decoded, expected)]
    return {"exact": float(np.mean(same)), "gen_len": float(np.mean(lengths))}


trainer = Seq2SeqTrainer(
    model=model,
    args=Seq2SeqTrainingArguments(
        output_dir=sys.argv[1],
        eval_strategy="epoch",
        save_strategy="epoch",
        learning_rate=1e-2,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        num_train_epochs=2,
        predict_with_generate=True,
        generation_max_length=8,
        logging_steps=1,
        save_total_limit=1,
        report_to="none",
    ),
    train_dataset=tokenized["train"],
    eval_dataset=tokenized["validation"],
    processing_class=tokenizer,
    data_collator=DataCollatorForSeq2Seq(tokenizer=tokenizer, model=model),
    compute_metrics=compute_metrics,
)
trainer.train()
trainer.save_metrics("eval", trainer.evaluate(max_length=8, num_beams=1))
predicted = trainer.predict(tokenized["validation"], num_beams=2)
trainer.save_metrics("predict", predicted.metrics)
print("text", tokenizer.batch_decode(np.where(predicted.predictions < 0, 0, predicted.predictions), True)[0])
