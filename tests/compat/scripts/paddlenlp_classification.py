"""Text classification as PaddleNLP's guide teaches it, with a Layer of its own in place of a downloaded model."""

import os
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import paddle
from paddle.metric import Accuracy
from paddlenlp.data import DataCollatorWithPadding
from paddlenlp.trainer import (
    EarlyStoppingCallback,
    PdArgumentParser,
    Trainer,
    TrainingArguments,
    get_last_checkpoint,
    set_seed,
)
from paddlenlp.utils.log import logger


@dataclass
class DataArguments:
    train_path: str = field(default=None, metadata={"help": "Lines of text, tab, label."})
    dev_path: str = field(default=None, metadata={"help": "Lines of text, tab, label."})
    max_seq_length: int = field(default=16, metadata={"help": "Longer texts are cut."})


@dataclass
class ModelArguments:
    hidden_size: int = field(default=16, metadata={"help": "Width of the model."})
    export_model_dir: str = field(default=None, metadata={"help": "Where the inference model goes."})


class Texts(paddle.io.Dataset):
    def __init__(self, path, convert):
        with open(path, encoding="utf-8") as file:
            rows = [line.rstrip("\n").split("\t") for line in file]
        self.rows = [convert({"text": text, "label": int(label)}) for text, label in rows]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class Letters:
    """A tokenizer of single letters, with the two methods that a collator needs."""

    pad_token_id, pad_token_type_id, padding_side = 0, 0, "right"
    model_input_names = ["input_ids"]

    def __call__(self, text, max_seq_len):
        return {"input_ids": [1 + ord(letter) % 199 for letter in text[:max_seq_len]]}

    def pad(self, rows, padding=True, max_length=None, pad_to_multiple_of=None, return_tensors=None, **options):
        longest = max(len(row["input_ids"]) for row in rows)
        batch = {"input_ids": [row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows]}
        batch |= {key: [row[key] for row in rows] for key in rows[0] if key != "input_ids"}
        tensors = {"pd": paddle.to_tensor, "np": np.asarray}[return_tensors or "np"]
        return {key: tensors(value) for key, value in batch.items()}

    def save_pretrained(self, folder):
        with open(os.path.join(folder, "letters.txt"), "w") as file:
            file.write("one letter, one token")


class Classifier(paddle.nn.Layer):
    def __init__(self, hidden_size, num_classes):
        super().__init__()
        self.embedding = paddle.nn.Embedding(200, hidden_size)
        self.output = paddle.nn.Linear(hidden_size, num_classes)

    def forward(self, input_ids):
        return self.output(self.embedding(input_ids).mean(axis=1))


def convert_example(example, tokenizer, max_seq_length):
    encoded = tokenizer(text=example["text"], max_seq_len=max_seq_length)
    encoded["labels"] = example["label"]
    return encoded


def main():
    parser = PdArgumentParser((ModelArguments, DataArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    paddle.set_device(training_args.device)
    training_args.print_config(model_args, "Model")
    training_args.print_config(data_args, "Data")
    set_seed(training_args.seed)
    last_checkpoint = None
    if os.path.isdir(training_args.output_dir) and training_args.do_train and not training_args.overwrite_output_dir:
        last_checkpoint = get_last_checkpoint(training_args.output_dir)
        if last_checkpoint is not None and training_args.resume_from_checkpoint is None:
            logger.info(f"going on from {last_checkpoint}")
    tokenizer = Letters()
    convert = partial(convert_example, tokenizer=tokenizer, max_seq_length=data_args.max_seq_length)
    train_dataset, dev_dataset = Texts(data_args.train_path, convert), Texts(data_args.dev_path, convert)
    model = Classifier(model_args.hidden_size, 2)

    def compute_metrics(p):
        preds = p.predictions[0] if isinstance(p.predictions, tuple) else p.predictions
        metric = Accuracy()
        metric.reset()
        result = metric.compute(paddle.to_tensor(preds), paddle.to_tensor(p.label_ids))
        metric.update(result)
        return {"accuracy": float(metric.accumulate())}

    trainer = Trainer(
        model=model,
        criterion=paddle.nn.loss.CrossEntropyLoss(),
        args=training_args,
        data_collator=DataCollatorWithPadding(tokenizer),
        train_dataset=train_dataset if training_args.do_train else None,
        eval_dataset=dev_dataset if training_args.do_eval else None,
        tokenizer=tokenizer,
        compute_metrics=compute_metrics,
        callbacks=[EarlyStoppingCallback(early_stopping_patience=9)] if training_args.load_best_model_at_end else None,
    )
    checkpoint = training_args.resume_from_checkpoint or last_checkpoint
    if training_args.do_train:
        train_result = trainer.train(resume_from_checkpoint=checkpoint)
        metrics = train_result.metrics
        trainer.save_model()
        trainer.log_metrics("train", metrics)
        trainer.save_metrics("train", metrics)
        trainer.save_state()
    if training_args.do_eval:
        eval_metrics = trainer.evaluate()
        trainer.log_metrics("eval", eval_metrics)
        trainer.save_metrics("eval", eval_metrics)
    if training_args.do_predict:
        test_ret = trainer.predict(dev_dataset)
        trainer.log_metrics("test", test_ret.metrics)
        if test_ret.label_ids is None:
            paddle.save(test_ret.predictions, os.path.join(training_args.output_dir, "test_results.pdtensor"))


if __name__ == "__main__":
    main()
