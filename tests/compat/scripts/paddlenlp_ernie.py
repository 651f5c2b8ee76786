"""Fine-tuning as PaddleNLP's guide teaches it, with one of its models, made small from a configuration."""

from functools import partial

import paddle
from paddlenlp.data import DataCollatorWithPadding
from paddlenlp.datasets import load_dataset
from paddlenlp.trainer import PdArgumentParser, Trainer, TrainingArguments, get_last_checkpoint
from paddlenlp.transformers import ErnieConfig, ErnieForSequenceClassification, ErnieTokenizer
from paddlenlp.utils.log import logger

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def read(path):
    with open(path, encoding="utf-8") as file:
        for line in file:
            text, label = line.rstrip("\n").split("\t")
            yield {"text": text, "label": int(label)}


def convert_example(example, tokenizer):
    encoded = tokenizer(text=example["text"], max_seq_len=16)
    encoded["labels"] = example["label"]
    return encoded


(training_args,) = PdArgumentParser(TrainingArguments).parse_args_into_dataclasses()
paddle.set_device(training_args.device)
with open("vocab.txt", "w") as file:
    file.write("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *LETTERS, *(f"##{c}" for c in LETTERS)]))
tokenizer = ErnieTokenizer("vocab.txt")
config = ErnieConfig(
    vocab_size=tokenizer.vocab_size,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    num_labels=2,
)
model = ErnieForSequenceClassification(config)
train_dataset = load_dataset(read, path="train.tsv", lazy=False).map(partial(convert_example, tokenizer=tokenizer))
dev_dataset = load_dataset(read, path="dev.tsv", lazy=False).map(partial(convert_example, tokenizer=tokenizer))
trainer = Trainer(
    model=model,
    criterion=paddle.nn.loss.CrossEntropyLoss(),
    args=training_args,
    data_collator=DataCollatorWithPadding(tokenizer),
    train_dataset=train_dataset if training_args.do_train else None,
    eval_dataset=dev_dataset if training_args.do_eval else None,
    tokenizer=tokenizer,
)
if training_args.do_train:
    train_result = trainer.train()
    trainer.save_model()
    trainer.log_metrics("train", train_result.metrics)
    trainer.save_state()
if training_args.do_eval:
    trainer.save_metrics("eval", trainer.evaluate())
logger.info(f"the last checkpoint is {get_last_checkpoint(training_args.output_dir)}")
