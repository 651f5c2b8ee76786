"""Runs a job: encodes the rows, makes the Trainer, trains, and writes the results."""

import functools
import json
import math
from pathlib import Path
from typing import Any

from ..data import collators
from ..distributed.world import world
from ..errors import DataError
from ..formats.durable import replace_file
from ..formats.terminal import printable
from ..public import Trainer, TrainingArguments
from ..randomness import set_seed
from ..report import write_page
from ..secrets import clean_text
from . import example, generation, libraries, script, searching
from .job import Data, Job, facts

RECIPE = "recipe.json"
SAMPLES = "samples.jsonl"
CARD = "README.md"


def show(text: str) -> None:
    """Print text that may come from files."""
    print(printable(clean_text(text)), flush=True)


def run(job: Job, data: Data, tokenizer: Any) -> int:
    """Train, evaluate, save, and report."""
    args = TrainingArguments(**job.arguments)
    is_main = args.process_index == 0
    train, held_out = encode(job, data, tokenizer)
    if is_main:
        _announce(job, train, held_out, tokenizer)
    trainer = build(job, args, train, held_out, tokenizer)
    if job.search is not None:
        _search(job, trainer)
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    has_card = (Path(args.output_dir) / CARD).exists()
    trainer.save_model()
    if is_main and not has_card:  # PEFT has written one, without metrics
        (Path(args.output_dir) / CARD).unlink(missing_ok=True)
    metrics = trainer.evaluate() if held_out else {}
    if "eval_loss" in metrics and job.task.generates:
        metrics["eval_perplexity"] = math.exp(min(metrics["eval_loss"], 700))
    if metrics:
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)
    if is_main:
        _finish(job, trainer, data)
    return 0


def run_script(job: Job, data: Data, tokenizer: Any) -> int:
    """Train with a Trainer of TRL, by the script of the job. Imports of the Trainer have been redirected."""
    train, held_out = encode(job, data, tokenizer)
    is_main = world().is_main
    if is_main:
        _announce(job, train, held_out, tokenizer)
    names: dict[str, Any] = {"__name__": "recipe"}
    exec(compile(script.write(job), "<recipe>", "exec"), names)
    trainer = names["main"]()
    if is_main:
        _finish(job, trainer, data)
    return 0


# -- data


def encode(job: Job, data: Data, tokenizer: Any) -> tuple[Any, list[dict[str, Any]]]:
    """The samples to train, or those of each dataset of a mixture, and the samples to evaluate."""
    train = {name: job.encode(rows, tokenizer) for name, rows in data.train.items()}
    for name, samples in train.items():
        if not samples:
            raise DataError(f"no row {f'of {name} ' * bool(name)}is left to train on. Add rows, or raise max_length.")
    held_out = job.encode(data.held_out, tokenizer)
    return (train if job.is_mixture else train[""]), held_out


def _announce(job: Job, train: Any, held_out: list[Any], tokenizer: Any) -> None:
    show(f"{job.task.name}: {job.model} ({job.library.distribution} on {job.library.framework})")
    width = max(len(name) for name, _ in job.said)
    for name, text in job.said:
        show(f"  {name:{width}}  {text}")
    samples = train if isinstance(train, list) else [sample for each in train.values() for sample in each]
    show(f"{len(samples)} examples to train, {len(held_out)} to evaluate. The first, as the model sees it:")
    show("\n".join(example.lines(samples[0], tokenizer, job.labels)))


# -- the Trainer


def build(job: Job, args: Any, train: Any, held_out: list[Any], tokenizer: Any) -> Any:
    """The Trainer of a job."""
    searching.check(job.search)
    model_init = functools.partial(make_model, job, tokenizer)
    set_seed(args.seed)
    metrics, form = None, job.form
    if form.compute_metrics is not None:
        metrics = functools.partial(form.compute_metrics, **job.constants(form.compute_metrics))
    return Trainer(
        None if job.search else model_init(),
        args,
        data_collator=None if job.packs else getattr(collators, job.task.collator)(tokenizer),
        train_dataset=train,
        eval_dataset=held_out or None,
        processing_class=tokenizer,
        model_init=model_init if job.search else None,
        compute_metrics=metrics,
    )


def make_model(job: Job, tokenizer: Any) -> Any:
    """The model to train."""
    model = libraries.model(job.library, job.task, job.model, job.model_options, job.from_scratch)
    if model.config.pad_token_id is None:
        model.config.pad_token_id = tokenizer.pad_token_id
    return model if job.lora is None else libraries.with_adapter(job.library, job.task, model, job.lora)


def _search(job: Job, trainer: Any) -> None:
    metric = f"eval_{job.form.metric}"
    assert job.search is not None
    best = trainer.hyperparameter_search(
        functools.partial(searching.suggest, space=job.search),
        compute_objective=lambda metrics: metrics[metric],
        direction=job.form.direction,
        n_trials=job.trials,
        backend="optuna",
    )
    if trainer.is_world_process_zero():
        show(f"search: the best of {job.trials} trials has {metric} {best.objective:.6g} with {best.hyperparameters}")
    for name, value in best.hyperparameters.items():
        setattr(trainer.args, name, value)


# -- afterwards


def _finish(job: Job, trainer: Any, data: Data) -> None:
    folder = Path(trainer.args.output_dir)
    replace_file(folder / RECIPE, facts(job))
    if job.task.trl:  # its trainers have a card of their own
        trainer.create_model_card(dataset_name=", ".join(_names(job)))
    else:
        base = None if job.from_scratch else job.model
        trainer.create_model_card(tasks=job.task.card, finetuned_from=base, dataset=_names(job))
    show(f"model, metrics and model card: {folder}")
    show(f"report: {write_page(folder)}")
    if job.samples and _is_sharded(trainer):
        show("samples: none, since the weights are divided among processes; `oneloop predict` writes texts")
    elif job.samples:
        _write_samples(job, trainer, data, folder / SAMPLES)
    show(f"predict: oneloop predict {folder} --data FILE")


def _is_sharded(trainer: Any) -> bool:
    """Whether the main process alone has not all weights."""
    axes = ("tensor_parallel_size", "sequence_parallel_size", "expert_parallel_size")
    divided = any((getattr(trainer.args, name, 1) or 1) > 1 for name in axes)
    return divided or bool(trainer.args.world_size > 1 and (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled))


def _names(job: Job) -> list[str]:
    return [Path(file).name for files in job.sources.values() for file in files]


def _write_samples(job: Job, trainer: Any, data: Data, path: Path) -> None:
    """Texts for the first rows to evaluate, or to train."""
    rows = (data.held_out or data.all_train)[: job.samples]
    texts = list(generation.write_texts(trainer, job.form, rows, job.max_new_tokens))
    stored = [{**row, "prediction": text} for row, text in zip(rows, texts)]
    replace_file(path, "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in stored).encode())
    show(f"samples: {path}")
    for row, text in zip(rows, texts):
        asked = next(str(row[role]) for role in job.form.inputs)
        show(f"  {asked[:200]!r}\n    -> {text[:500]!r}")
