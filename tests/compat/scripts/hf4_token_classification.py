"""Token classification as transformers 4.x taught it: json lines, labels aligned with the pieces of words."""

import logging
import os
import sys
from dataclasses import dataclass, field

import numpy as np
import transformers
from datasets import ClassLabel, load_dataset
from transformers import (
    AutoConfig,
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    HfArgumentParser,
    PreTrainedTokenizerFast,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint, is_main_process
from transformers.utils import check_min_version

check_min_version("4.25.0")
logger = logging.getLogger(__name__)


@dataclass
class ModelArguments:
    model_name_or_path: str = field(metadata={"help": "Path of a model."})


@dataclass
class DataTrainingArguments:
    task_name: str | None = field(default="ner", metadata={"help": "The name of the task."})
    train_file: str | None = field(default=None, metadata={"help": "A json file."})
    validation_file: str | None = field(default=None, metadata={"help": "A json file."})
    test_file: str | None = field(default=None, metadata={"help": "A json file."})
    label_all_tokens: bool = field(default=False, metadata={"help": "Label every piece of a word."})
    return_entity_level_metrics: bool = field(default=False, metadata={"help": "A figure for each label."})


def main():
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    logging.basicConfig(level=logging.INFO if is_main_process(training_args.local_rank) else logging.WARN)
    last_checkpoint = None
    if os.path.isdir(training_args.output_dir) and training_args.do_train and not training_args.overwrite_output_dir:
        last_checkpoint = get_last_checkpoint(training_args.output_dir)
    set_seed(training_args.seed)
    files = {"train": data_args.train_file, "validation": data_args.validation_file, "test": data_args.test_file}
    raw_datasets = load_dataset("json", data_files={name: path for name, path in files.items() if path})
    label_list = sorted({label for labels in raw_datasets["train"]["ner_tags"] for label in labels})
    assert not isinstance(raw_datasets["train"].features["ner_tags"], ClassLabel)
    label_to_id = {label: i for i, label in enumerate(label_list)}

    config = AutoConfig.from_pretrained(model_args.model_name_or_path, num_labels=len(label_list))
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path, add_prefix_space=False)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError("this script needs a fast tokenizer")
    model = AutoModelForTokenClassification.from_pretrained(
        model_args.model_name_or_path, config=config, ignore_mismatched_sizes=True
    )
    model.config.label2id, model.config.id2label = label_to_id, dict(enumerate(label_list))

    def tokenize_and_align_labels(examples):
        tokenized = tokenizer(examples["tokens"], truncation=True, is_split_into_words=True)
        tokenized["labels"] = []
        for i, tags in enumerate(examples["ner_tags"]):
            ids, previous = [], None
            for word in tokenized.word_ids(batch_index=i):
                if word is None or (word == previous and not data_args.label_all_tokens):
                    ids.append(-100)
                else:
                    ids.append(label_to_id[tags[word]])
                previous = word
            tokenized["labels"].append(ids)
        return tokenized

    with training_args.main_process_first(desc="train dataset map pre-processing"):
        prepared = raw_datasets.map(tokenize_and_align_labels, batched=True)
    collator = DataCollatorForTokenClassification(tokenizer, pad_to_multiple_of=8 if training_args.fp16 else None)

    def compute_metrics(p):
        predictions, labels = p
        predictions = np.argmax(predictions, axis=2)
        kept = labels != -100
        figures = {"accuracy": float((predictions == labels)[kept].mean())}
        if data_args.return_entity_level_metrics:
            for name, label in label_to_id.items():
                chosen = kept & (labels == label)
                figures[f"{name}_recall"] = float((predictions == labels)[chosen].mean())
        return figures

    trainer = transformers.Trainer(
        model=model,
        args=training_args,
        train_dataset=prepared["train"] if training_args.do_train else None,
        eval_dataset=prepared["validation"] if training_args.do_eval else None,
        tokenizer=tokenizer,
        data_collator=collator,
        compute_metrics=compute_metrics,
    )
    if training_args.do_train:
        train_result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint or last_checkpoint)
        metrics = train_result.metrics
        trainer.save_model()
        metrics["train_samples"] = len(prepared["train"])
        trainer.log_metrics("train", metrics)
        trainer.save_metrics("train", metrics)
        trainer.save_state()
    if training_args.do_eval:
        metrics = trainer.evaluate()
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)
    if training_args.do_predict:
        predictions, labels, metrics = trainer.predict(prepared["test"], metric_key_prefix="predict")
        predictions = np.argmax(predictions, axis=2)
        true = [
            [label_list[p] for p, label in zip(row, wanted) if label != -100]
            for row, wanted in zip(predictions, labels)
        ]
        trainer.log_metrics("predict", metrics)
        trainer.save_metrics("predict", metrics)
        if trainer.is_world_process_zero():
            with open(os.path.join(training_args.output_dir, "predictions.txt"), "w") as writer:
                for row in true:
                    writer.write(" ".join(row) + "\n")
    trainer.create_model_card(tasks="token-classification", dataset_tags=data_args.task_name)


if __name__ == "__main__":
    sys.exit(main())
