"""Translation with Seq2SeqTrainer and generation, in the spelling of transformers 5."""

import logging
import os
import sys
from dataclasses import dataclass, field

import numpy as np
from datasets import load_dataset
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    HfArgumentParser,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint
from transformers.utils import check_min_version

check_min_version("4.50.0")
logger = logging.getLogger(__name__)


@dataclass
class ModelArguments:
    model_name_or_path: str = field(metadata={"help": "Path of a model."})
    model_revision: str = field(default="main", metadata={"help": "Its version."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Run code that comes with it."})


@dataclass
class DataTrainingArguments:
    source_lang: str = field(default=None, metadata={"help": "From this language."})
    target_lang: str = field(default=None, metadata={"help": "Into this language."})
    train_file: str | None = field(default=None, metadata={"help": "A json file with translations."})
    validation_file: str | None = field(default=None, metadata={"help": "A json file with translations."})
    test_file: str | None = field(default=None, metadata={"help": "A json file with translations."})
    max_source_length: int = field(default=32, metadata={"help": "Longer sources are cut."})
    max_target_length: int = field(default=32, metadata={"help": "Longer targets are cut."})
    val_max_target_length: int | None = field(default=None, metadata={"help": "In evaluation."})
    ignore_pad_token_for_loss: bool = field(default=True, metadata={"help": "Padding costs nothing."})
    num_beams: int | None = field(default=None, metadata={"help": "Beams of the search."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "Use so many of them."})
    source_prefix: str | None = field(default=None, metadata={"help": "Put before each source."})

    def __post_init__(self):
        if self.source_lang is None or self.target_lang is None:
            raise ValueError("both languages are needed")
        if self.val_max_target_length is None:
            self.val_max_target_length = self.max_target_length


def main():
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, Seq2SeqTrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    logging.basicConfig(handlers=[logging.StreamHandler(sys.stdout)], level=training_args.get_process_log_level())
    last_checkpoint = get_last_checkpoint(training_args.output_dir) if os.path.isdir(training_args.output_dir) else None
    set_seed(training_args.seed)
    raw_datasets = load_dataset(
        "json",
        data_files={
            "train": data_args.train_file,
            "validation": data_args.validation_file,
            "test": data_args.test_file,
        },
    )
    config = AutoConfig.from_pretrained(model_args.model_name_or_path, trust_remote_code=model_args.trust_remote_code)
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(model_args.model_name_or_path, config=config)
    prefix = data_args.source_prefix or ""
    padding = False

    def preprocess_function(examples):
        inputs = [prefix + pair[data_args.source_lang] for pair in examples["translation"]]
        targets = [pair[data_args.target_lang] for pair in examples["translation"]]
        model_inputs = tokenizer(inputs, max_length=data_args.max_source_length, padding=padding, truncation=True)
        labels = tokenizer(text_target=targets, max_length=data_args.max_target_length, truncation=True)
        model_inputs["labels"] = labels["input_ids"]
        return model_inputs

    with training_args.main_process_first(desc="dataset map pre-processing"):
        prepared = raw_datasets.map(
            preprocess_function, batched=True, remove_columns=raw_datasets["train"].column_names
        )
    predict_dataset = prepared["test"]
    if data_args.max_predict_samples is not None:
        predict_dataset = predict_dataset.select(range(min(len(predict_dataset), data_args.max_predict_samples)))
    if training_args.label_smoothing_factor > 0 and not hasattr(model, "prepare_decoder_input_ids_from_labels"):
        logger.warning("label smoothing wants prepare_decoder_input_ids_from_labels")
    label_pad_token_id = -100 if data_args.ignore_pad_token_for_loss else tokenizer.pad_token_id
    data_collator = DataCollatorForSeq2Seq(
        tokenizer,
        model=model,
        label_pad_token_id=label_pad_token_id,
        pad_to_multiple_of=8 if training_args.fp16 else None,
    )

    def compute_metrics(eval_preds):
        preds, labels = eval_preds
        if isinstance(preds, tuple):
            preds = preds[0]
        preds = np.where(preds != -100, preds, tokenizer.pad_token_id)
        decoded = tokenizer.batch_decode(preds, skip_special_tokens=True)
        labels = np.where(labels != -100, labels, tokenizer.pad_token_id)
        wanted = tokenizer.batch_decode(labels, skip_special_tokens=True)
        lengths = [np.count_nonzero(pred != tokenizer.pad_token_id) for pred in preds]
        return {
            "exact": round(float(np.mean([a.strip() == b.strip() for a, b in zip(decoded, wanted)])), 4),
            "gen_len": float(np.mean(lengths)),
        }

    trainer = Seq2SeqTrainer(
        model=model,
        args=training_args,
        train_dataset=prepared["train"] if training_args.do_train else None,
        eval_dataset=prepared["validation"] if training_args.do_eval else None,
        processing_class=tokenizer,
        data_collator=data_collator,
        compute_metrics=compute_metrics if training_args.predict_with_generate else None,
    )
    if training_args.do_train:
        train_result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint or last_checkpoint)
        trainer.save_model()
        metrics = train_result.metrics
        metrics["train_samples"] = len(prepared["train"])
        trainer.log_metrics("train", metrics)
        trainer.save_metrics("train", metrics)
        trainer.save_state()
    max_length = training_args.generation_max_length or data_args.val_max_target_length
    num_beams = data_args.num_beams if data_args.num_beams is not None else training_args.generation_num_beams
    if training_args.do_eval:
        metrics = trainer.evaluate(max_length=max_length, num_beams=num_beams, metric_key_prefix="eval")
        metrics["eval_samples"] = len(prepared["validation"])
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)
    if training_args.do_predict:
        predict_results = trainer.predict(
            predict_dataset, metric_key_prefix="predict", max_length=max_length, num_beams=num_beams
        )
        metrics = predict_results.metrics
        metrics["predict_samples"] = len(predict_dataset)
        trainer.log_metrics("predict", metrics)
        trainer.save_metrics("predict", metrics)
        if trainer.is_world_process_zero() and training_args.predict_with_generate:
            predictions = np.where(
                predict_results.predictions != -100, predict_results.predictions, tokenizer.pad_token_id
            )
            lines = tokenizer.batch_decode(predictions, skip_special_tokens=True, clean_up_tokenization_spaces=True)
            with open(os.path.join(training_args.output_dir, "generated_predictions.txt"), "w") as writer:
                writer.write("\n".join(line.strip() for line in lines))
    kwargs = {"finetuned_from": model_args.model_name_or_path, "tasks": "translation"}
    languages = [lang for lang in (data_args.source_lang, data_args.target_lang) if lang is not None]
    if languages:
        kwargs["language"] = languages
    if training_args.push_to_hub:
        trainer.push_to_hub(**kwargs)
    else:
        trainer.create_model_card(**kwargs)
    return predict_results if training_args.do_predict else {}


if __name__ == "__main__":
    main()
