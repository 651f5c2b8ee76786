# ruff: noqa: UP045
"""Text classification as transformers 4.x taught it: three dataclasses, csv files, full command line."""

import json
import logging
import os
import random
import sys
from dataclasses import dataclass, field
from typing import Optional

import datasets
import numpy as np
import transformers
from datasets import load_dataset
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    EvalPrediction,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint
from transformers.utils import check_min_version, send_example_telemetry
from transformers.utils.versions import require_version

check_min_version("4.25.0")
require_version("datasets>=1.8.0", "To fix: pip install -r requirements.txt")

logger = logging.getLogger(__name__)


@dataclass
class DataTrainingArguments:
    """The data and how much of it."""

    train_file: Optional[str] = field(default=None, metadata={"help": "A csv file to train on."})
    validation_file: Optional[str] = field(default=None, metadata={"help": "A csv file to evaluate on."})
    test_file: Optional[str] = field(default=None, metadata={"help": "A csv file to predict."})
    max_seq_length: int = field(default=128, metadata={"help": "Longer texts are cut."})
    overwrite_cache: bool = field(default=False, metadata={"help": "Tokenize anew."})
    pad_to_max_length: bool = field(default=True, metadata={"help": "Pad all to max_seq_length."})
    max_train_samples: Optional[int] = field(default=None, metadata={"help": "Use so many of them."})
    max_eval_samples: Optional[int] = field(default=None, metadata={"help": "Use so many of them."})

    def __post_init__(self):
        if self.train_file is None:
            raise ValueError("a training file is needed")


@dataclass
class ModelArguments:
    """The model and its tokenizer."""

    model_name_or_path: str = field(metadata={"help": "Path of a model."})
    config_name: Optional[str] = field(default=None, metadata={"help": "Path of a configuration."})
    tokenizer_name: Optional[str] = field(default=None, metadata={"help": "Path of a tokenizer."})
    cache_dir: Optional[str] = field(default=None, metadata={"help": "Where downloads go."})
    use_fast_tokenizer: bool = field(default=True, metadata={"help": "A fast tokenizer."})


def main():
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        model_args, data_args, training_args = parser.parse_json_file(json_file=os.path.abspath(sys.argv[1]))
    else:
        model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    send_example_telemetry("run_classification", model_args, data_args)

    logging.basicConfig(
        format="%(asctime)s - %(levelname)s - %(name)s - %(message)s", handlers=[logging.StreamHandler(sys.stdout)]
    )
    if training_args.should_log:
        transformers.utils.logging.set_verbosity_info()
    log_level = training_args.get_process_log_level()
    logger.setLevel(log_level)
    datasets.utils.logging.set_verbosity(log_level)
    transformers.utils.logging.set_verbosity(log_level)
    transformers.utils.logging.enable_default_handler()
    transformers.utils.logging.enable_explicit_format()
    logger.warning(
        f"Process rank: {training_args.local_rank}, device: {training_args.device}, n_gpu: {training_args.n_gpu}, "
        f"distributed training: {training_args.parallel_mode.value == 'distributed'}, 16-bits: {training_args.fp16}"
    )
    logger.info(f"Training parameters {training_args}")

    last_checkpoint = None
    if os.path.isdir(training_args.output_dir) and training_args.do_train and not training_args.overwrite_output_dir:
        last_checkpoint = get_last_checkpoint(training_args.output_dir)
        if last_checkpoint is None and len(os.listdir(training_args.output_dir)) > 0:
            raise ValueError(f"{training_args.output_dir} is not empty")
        elif last_checkpoint is not None and training_args.resume_from_checkpoint is None:
            logger.warning(f"going on from {last_checkpoint}")

    set_seed(training_args.seed)
    data_files = {"train": data_args.train_file, "validation": data_args.validation_file}
    if training_args.do_predict:
        data_files["test"] = data_args.test_file
    raw_datasets = load_dataset("csv", data_files=data_files, cache_dir=model_args.cache_dir)
    label_list = sorted(raw_datasets["train"].unique("label"))
    num_labels = len(label_list)

    config = AutoConfig.from_pretrained(
        model_args.config_name or model_args.model_name_or_path, num_labels=num_labels, finetuning_task="own"
    )
    tokenizer = AutoTokenizer.from_pretrained(
        model_args.tokenizer_name or model_args.model_name_or_path, use_fast=model_args.use_fast_tokenizer
    )
    model = AutoModelForSequenceClassification.from_pretrained(
        model_args.model_name_or_path,
        from_tf=bool(".ckpt" in model_args.model_name_or_path),
        config=config,
        ignore_mismatched_sizes=True,
    )
    label_to_id = {label: index for index, label in enumerate(label_list)}
    model.config.label2id = label_to_id
    model.config.id2label = {index: label for label, index in config.label2id.items()}
    padding = "max_length" if data_args.pad_to_max_length else False
    max_seq_length = min(data_args.max_seq_length, tokenizer.model_max_length)

    def preprocess_function(examples):
        result = tokenizer(examples["text"], padding=padding, max_length=max_seq_length, truncation=True)
        if "label" in examples:
            result["label"] = [label_to_id[label] for label in examples["label"]]
        return result

    with training_args.main_process_first(desc="dataset map pre-processing"):
        raw_datasets = raw_datasets.map(
            preprocess_function,
            batched=True,
            load_from_cache_file=not data_args.overwrite_cache,
            desc="Running tokenizer on dataset",
        )
    train_dataset = eval_dataset = None
    if training_args.do_train:
        train_dataset = raw_datasets["train"]
        if data_args.max_train_samples is not None:
            train_dataset = train_dataset.select(range(min(len(train_dataset), data_args.max_train_samples)))
        for index in random.sample(range(len(train_dataset)), 2):
            logger.info(f"Sample {index} of the training set: {train_dataset[index]}.")
    if training_args.do_eval:
        eval_dataset = raw_datasets["validation"]
        if data_args.max_eval_samples is not None:
            eval_dataset = eval_dataset.select(range(min(len(eval_dataset), data_args.max_eval_samples)))

    def compute_metrics(p: EvalPrediction):
        preds = p.predictions[0] if isinstance(p.predictions, tuple) else p.predictions
        return {"accuracy": (np.argmax(preds, axis=1) == p.label_ids).astype(np.float32).mean().item()}

    if data_args.pad_to_max_length:
        data_collator = default_data_collator
    elif training_args.fp16:
        data_collator = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8)
    else:
        data_collator = None

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        compute_metrics=compute_metrics,
        tokenizer=tokenizer,
        data_collator=data_collator,
        callbacks=[EarlyStoppingCallback(early_stopping_patience=50)] if training_args.load_best_model_at_end else None,
    )
    if training_args.do_train:
        checkpoint = None
        if training_args.resume_from_checkpoint is not None:
            checkpoint = training_args.resume_from_checkpoint
        elif last_checkpoint is not None:
            checkpoint = last_checkpoint
        train_result = trainer.train(resume_from_checkpoint=checkpoint)
        metrics = train_result.metrics
        metrics["train_samples"] = len(train_dataset)
        trainer.save_model()
        trainer.log_metrics("train", metrics)
        trainer.save_metrics("train", metrics)
        trainer.save_state()
    if training_args.do_eval:
        logger.info("*** Evaluate ***")
        metrics = trainer.evaluate(eval_dataset=eval_dataset)
        metrics["eval_samples"] = len(eval_dataset)
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)
    if training_args.do_predict:
        predict_dataset = raw_datasets["test"].remove_columns("label")
        predictions = trainer.predict(predict_dataset, metric_key_prefix="predict").predictions
        predictions = np.argmax(predictions, axis=1)
        output_predict_file = os.path.join(training_args.output_dir, "predict_results.txt")
        if trainer.is_world_process_zero():
            with open(output_predict_file, "w") as writer:
                writer.write("index\tprediction\n")
                for index, item in enumerate(predictions):
                    writer.write(f"{index}\t{label_list[item]}\n")
    kwargs = {"finetuned_from": model_args.model_name_or_path, "tasks": "text-classification", "language": "en"}
    if training_args.push_to_hub:
        trainer.push_to_hub(**kwargs)
    else:
        trainer.create_model_card(**kwargs)
    with open(os.path.join(training_args.output_dir, "script.json"), "w") as file:
        json.dump({"trainer": f"{type(trainer).__module__}", "steps": trainer.state.global_step}, file)


def _mp_fn(index):
    main()


if __name__ == "__main__":
    main()
