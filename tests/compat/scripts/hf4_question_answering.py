"""Question answering as transformers 4.x taught it, with a Trainer of its own in the module beside it."""

import logging
import os
import sys
from dataclasses import dataclass, field

from datasets import load_dataset
from qa_trainer import QuestionAnsweringTrainer
from transformers import (
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    DataCollatorWithPadding,
    EvalPrediction,
    HfArgumentParser,
    TrainingArguments,
    default_data_collator,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint
from transformers.utils import check_min_version, send_example_telemetry

check_min_version("4.25.0")
logger = logging.getLogger(__name__)


@dataclass
class ModelArguments:
    model_name_or_path: str = field(metadata={"help": "Path of a model."})


@dataclass
class DataTrainingArguments:
    train_file: str | None = field(default=None, metadata={"help": "A json file."})
    validation_file: str | None = field(default=None, metadata={"help": "A json file."})
    max_seq_length: int = field(default=32, metadata={"help": "Longer contexts are cut."})
    pad_to_max_length: bool = field(default=True, metadata={"help": "Pad all to max_seq_length."})


def main():
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    send_example_telemetry("run_qa", model_args, data_args)
    last_checkpoint = None
    if os.path.isdir(training_args.output_dir) and training_args.do_train and not training_args.overwrite_output_dir:
        last_checkpoint = get_last_checkpoint(training_args.output_dir)
    set_seed(training_args.seed)
    raw_datasets = load_dataset(
        "json",
        data_files={"train": data_args.train_file, "validation": data_args.validation_file},
        field="data",
    )
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path, use_fast=True)
    model = AutoModelForQuestionAnswering.from_pretrained(model_args.model_name_or_path)
    column_names = raw_datasets["train"].column_names

    def features(examples, keep):
        tokenized = tokenizer(
            examples["question"],
            examples["context"],
            truncation="only_second",
            max_length=data_args.max_seq_length,
            return_offsets_mapping=True,
            padding="max_length",
        )
        starts, ends = [], []
        for i, answer in enumerate(examples["answer"]):
            begin = examples["context"][i].index(answer)
            found = [
                j
                for j, (first, last) in enumerate(tokenized["offset_mapping"][i])
                if tokenized.sequence_ids(i)[j] == 1 and first >= begin and last <= begin + len(answer)
            ]
            starts.append(found[0] if found else 0)
            ends.append(found[-1] if found else 0)
        tokenized["start_positions"], tokenized["end_positions"] = starts, ends
        if not keep:
            tokenized.pop("offset_mapping")
        return tokenized

    with training_args.main_process_first(desc="train dataset map pre-processing"):
        train_dataset = raw_datasets["train"].map(
            lambda rows: features(rows, False), batched=True, remove_columns=column_names
        )
    eval_examples = raw_datasets["validation"]
    with training_args.main_process_first(desc="validation dataset map pre-processing"):
        eval_dataset = eval_examples.map(lambda rows: features(rows, True), batched=True, remove_columns=column_names)

    def post_processing_function(examples, features, predictions, stage="eval"):
        starts, ends = predictions
        answers = []
        for i, example in enumerate(examples):
            first, last = int(starts[i].argmax()), int(ends[i].argmax())
            offsets = features[i]["offset_mapping"]
            answers.append(example["context"][offsets[first][0] : offsets[last][1]])
        return EvalPrediction(predictions=answers, label_ids=[example["answer"] for example in examples])

    def compute_metrics(p: EvalPrediction):
        return {"exact_match": 100.0 * sum(a == b for a, b in zip(p.predictions, p.label_ids)) / len(p.label_ids)}

    trainer = QuestionAnsweringTrainer(
        model=model,
        args=training_args,
        train_dataset=train_dataset if training_args.do_train else None,
        eval_dataset=eval_dataset if training_args.do_eval else None,
        eval_examples=eval_examples if training_args.do_eval else None,
        tokenizer=tokenizer,
        data_collator=default_data_collator if data_args.pad_to_max_length else DataCollatorWithPadding(tokenizer),
        post_process_function=post_processing_function,
        compute_metrics=compute_metrics,
    )
    if training_args.do_train:
        train_result = trainer.train(resume_from_checkpoint=last_checkpoint)
        trainer.save_model()
        trainer.log_metrics("train", train_result.metrics)
        trainer.save_metrics("train", train_result.metrics)
        trainer.save_state()
    if training_args.do_eval:
        metrics = trainer.evaluate()
        metrics["eval_samples"] = len(eval_dataset)
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)
    if training_args.do_predict:
        results = trainer.predict(eval_dataset, eval_examples)
        trainer.log_metrics("predict", results.metrics)
        trainer.save_metrics("predict", results.metrics)


if __name__ == "__main__":
    sys.exit(main())
