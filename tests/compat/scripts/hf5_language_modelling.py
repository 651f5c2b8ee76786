"""Causal language modelling in the spelling of transformers 5: text files, grouped into blocks."""

import logging
import math
import os
import sys
from dataclasses import dataclass, field
from itertools import chain

import datasets
import transformers
from datasets import load_dataset
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    default_data_collator,
    is_torch_xla_available,
    set_seed,
)
from transformers.testing_utils import CaptureLogger
from transformers.trainer_utils import get_last_checkpoint
from transformers.utils import check_min_version

check_min_version("4.50.0")
logger = logging.getLogger(__name__)
MODEL_TYPES = tuple(config.model_type for config in MODEL_FOR_CAUSAL_LM_MAPPING)


@dataclass
class ModelArguments:
    """A model to go on with, or the type of a new one."""

    model_name_or_path: str | None = field(default=None, metadata={"help": "Path of a model."})
    model_type: str | None = field(default=None, metadata={"help": f"One of {', '.join(MODEL_TYPES[:3])} ..."})
    config_overrides: str | None = field(default=None, metadata={"help": "n_embd=10,n_layer=2"})
    tokenizer_name: str | None = field(default=None, metadata={"help": "Path of a tokenizer."})
    dtype: str | None = field(default=None, metadata={"choices": ["auto", "bfloat16", "float16", "float32"]})


@dataclass
class DataTrainingArguments:
    """Files and blocks."""

    train_file: str | None = field(default=None, metadata={"help": "A text file to train on."})
    validation_file: str | None = field(default=None, metadata={"help": "A text file to evaluate on."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Use so many blocks."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Use so many blocks."})
    block_size: int | None = field(default=None, metadata={"help": "Tokens in a block."})
    overwrite_cache: bool = field(default=False, metadata={"help": "Tokenize anew."})
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes for it."})
    keep_linebreaks: bool = field(default=True, metadata={"help": "Keep them."})


def main():
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    logging.basicConfig(handlers=[logging.StreamHandler(sys.stdout)])
    log_level = training_args.get_process_log_level()
    datasets.utils.logging.set_verbosity(log_level)
    transformers.utils.logging.set_verbosity(log_level)
    last_checkpoint = get_last_checkpoint(training_args.output_dir) if os.path.isdir(training_args.output_dir) else None
    set_seed(training_args.seed)

    raw_datasets = load_dataset(
        "text",
        data_files={"train": data_args.train_file, "validation": data_args.validation_file},
        keep_linebreaks=data_args.keep_linebreaks,
    )
    if model_args.model_name_or_path:
        config = AutoConfig.from_pretrained(model_args.model_name_or_path)
    else:
        config = CONFIG_MAPPING[model_args.model_type]()
        config.update_from_string(model_args.config_overrides)
    tokenizer = AutoTokenizer.from_pretrained(model_args.tokenizer_name or model_args.model_name_or_path)
    if model_args.model_name_or_path:
        model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path, config=config)
    else:
        model = AutoModelForCausalLM.from_config(config)
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer))

    column_names = list(raw_datasets["train"].features)
    text_column_name = "text" if "text" in column_names else column_names[0]
    tok_logger = transformers.utils.logging.get_logger("transformers.tokenization_utils_base")

    def tokenize_function(examples):
        with CaptureLogger(tok_logger) as cl:
            output = tokenizer(examples[text_column_name])
        if "Token indices sequence length is longer than the" in cl.out:
            tok_logger.warning("this comes in blocks later")
        return output

    with training_args.main_process_first(desc="dataset map tokenization"):
        tokenized_datasets = raw_datasets.map(
            tokenize_function, batched=True, remove_columns=column_names, desc="Running tokenizer on dataset"
        )
    block_size = min(data_args.block_size or 1024, tokenizer.model_max_length)

    def group_texts(examples):
        joined = {k: list(chain(*examples[k])) for k in examples}
        total = len(joined["input_ids"]) // block_size * block_size
        result = {k: [t[i : i + block_size] for i in range(0, total, block_size)] for k, t in joined.items()}
        result["labels"] = result["input_ids"].copy()
        return result

    with training_args.main_process_first(desc="grouping texts together"):
        lm_datasets = tokenized_datasets.map(
            group_texts, batched=True, desc=f"Grouping texts in chunks of {block_size}"
        )
    train_dataset, eval_dataset = lm_datasets["train"], lm_datasets["validation"]
    if data_args.max_train_samples is not None:
        train_dataset = train_dataset.select(range(min(len(train_dataset), data_args.max_train_samples)))
    if data_args.max_eval_samples is not None:
        eval_dataset = eval_dataset.select(range(min(len(eval_dataset), data_args.max_eval_samples)))

    def preprocess_logits_for_metrics(logits, labels):
        if isinstance(logits, tuple):
            logits = logits[0]
        return logits.argmax(dim=-1)

    def compute_metrics(eval_preds):
        preds, labels = eval_preds
        return {"accuracy": float((preds[:, :-1] == labels[:, 1:]).mean())}

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=train_dataset if training_args.do_train else None,
        eval_dataset=eval_dataset if training_args.do_eval else None,
        processing_class=tokenizer,
        data_collator=default_data_collator,
        compute_metrics=compute_metrics if training_args.do_eval and not is_torch_xla_available() else None,
        preprocess_logits_for_metrics=preprocess_logits_for_metrics
        if training_args.do_eval and not is_torch_xla_available()
        else None,
    )
    if training_args.do_train:
        checkpoint = training_args.resume_from_checkpoint or last_checkpoint
        train_result = trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_model()
        metrics = train_result.metrics
        metrics["train_samples"] = min(data_args.max_train_samples or len(train_dataset), len(train_dataset))
        trainer.log_metrics("train", metrics)
        trainer.save_metrics("train", metrics)
        trainer.save_state()
    if training_args.do_eval:
        metrics = trainer.evaluate()
        metrics["eval_samples"] = len(eval_dataset)
        try:
            perplexity = math.exp(metrics["eval_loss"])
        except OverflowError:
            perplexity = float("inf")
        metrics["perplexity"] = perplexity
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)
    kwargs = {"finetuned_from": model_args.model_name_or_path, "tasks": "text-generation"}
    if training_args.push_to_hub:
        trainer.push_to_hub(**kwargs)
    else:
        trainer.create_model_card(**kwargs)


if __name__ == "__main__":
    main()
