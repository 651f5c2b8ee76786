"""Predictions of a model that a recipe has trained."""

import json
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..data import collators
from ..errors import ModelError
from ..formats.durable import replace_file
from ..formats.reading import read_json
from ..formats.terminal import printable
from ..public import Trainer, TrainingArguments
from . import columns as column_roles
from . import generation, libraries
from .files import find_all
from .job import VERSION
from .roles import ROLES
from .rows import Selected, select
from .tasks import TASKS, Form, Task
from .tasks.base import constants
from .training import RECIPE


def run(
    folder: str,
    files: list[str],
    output: str | None = None,
    columns: Mapping[str, str] | None = None,
    bad_rows: str = "stop",
    batch_size: int = 8,
    device: str | None = None,
) -> int:
    """Write a JSON object for each row: its inputs and the prediction. To stdout, or to a file."""
    model_folder = Path(folder)
    recipe = _recipe(model_folder)
    task = TASKS[recipe["task"]]
    form = task.form_of(recipe["columns"])
    found = find_all(files)
    names = column_roles.inputs_of(form, {**recipe["columns"], **(columns or {})}, found)
    selected = select(found, names, bad_rows, recipe["labels"], optional=form.roles[len(form.inputs) :])
    library = libraries.choose(recipe["framework"])
    tokenizer = libraries.tokenizer(library, folder)
    model = libraries.trained(library, task, model_folder, _model_options(form, recipe["labels"]))
    with tempfile.TemporaryDirectory() as scratch:
        given: dict[str, Any] = {"device": device} if device else {}
        args = TrainingArguments(scratch, per_device_eval_batch_size=batch_size, report_to="none", **given)
        collator = getattr(collators, task.collator)(tokenizer) if task.collator else None
        trainer = Trainer(model, args, data_collator=collator, processing_class=tokenizer)
        if not library.reads_saved_models:
            trainer._load_from_checkpoint(folder)
        predictions, metrics = _predict(trainer, task, form, selected, recipe)
    lines = [
        json.dumps({**row, **prediction}, ensure_ascii=False) + "\n"
        for row, prediction in zip(selected.rows, predictions)
    ]
    if output is None:
        sys.stdout.writelines(lines)
    else:
        replace_file(Path(output), "".join(lines).encode())
        print(printable(f"{len(lines)} predictions: {output}"), file=sys.stderr)
    for name, value in metrics.items():
        print(printable(f"{name}: {value:.6g}"), file=sys.stderr)
    return 0


def _predict(
    trainer: Any, task: Task, form: Form, selected: Selected, recipe: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    rows = selected.rows
    if task.generates:
        size = trainer.args.per_device_eval_batch_size
        texts = generation.write_texts(trainer, form, rows, recipe["max_new_tokens"], size)
        return [{"prediction": text} for text in texts], {}
    tokenizer, known = trainer.processing_class, {"labels": recipe["labels"], "max_length": recipe["max_length"]}
    # Labels of some rows alone would make batches of two kinds.
    is_labelled = all(form.target in row for row in rows)
    inputs = rows if is_labelled else [{k: v for k, v in row.items() if k != form.target} for row in rows]
    samples = form.encode(inputs, tokenizer, **constants(form.encode, known))
    result = trainer.predict(samples)
    if form.decode is None:
        raise ModelError(f"{task.name} has no predictions.")
    if task.name == "token-classification":
        known["word_ids"] = _word_ids(rows, tokenizer, recipe["max_length"])
    decoded = form.decode(result.predictions, rows, **constants(form.decode, known))
    metrics = {}
    if is_labelled and form.compute_metrics is not None:
        metrics = form.compute_metrics(result, **constants(form.compute_metrics, known))
    return decoded, metrics


def _word_ids(rows: list[dict[str, Any]], tokenizer: Any, max_length: int) -> list[list[int | None]]:
    options = {"is_split_into_words": True, "truncation": True, "max_length": max_length}
    return [tokenizer(row["words"], **options).word_ids() for row in rows]


def _model_options(form: Form, labels: list[str] | None) -> dict[str, Any]:
    return {**form.model_options, **({"num_labels": len(labels)} if labels else {})}


# -- recipe.json, which may be damaged or made by somebody else


def _recipe(folder: Path) -> dict[str, Any]:
    """The facts about a trained model; of a checkpoint, those beside it."""
    if not folder.is_dir():
        raise ModelError(f"there is no directory {folder}. Pass the output_dir of `oneloop train`.")
    found = next((each / RECIPE for each in (folder, folder.parent) if (each / RECIPE).exists()), None)
    if found is None:
        raise ModelError(f"{folder} has no {RECIPE}: it is no model of a run of `oneloop train` that came to its end.")
    stored = read_json(found, 1 << 24)
    wrong = _problem(stored)
    if wrong:
        raise ModelError(f"{found} is damaged, or of another version of oneloop: {wrong}. Train the model again.")
    return stored


def _problem(stored: Any) -> str:
    if not isinstance(stored, dict):
        return "expected an object"
    if stored.get("version") != VERSION:
        return f"version is {stored.get('version')!r}, expected {VERSION}"
    task, columns, labels = stored.get("task"), stored.get("columns"), stored.get("labels")
    if not isinstance(task, str) or task not in TASKS:
        return f"unknown task {str(task)[:40]!r}"
    if not isinstance(columns, dict) or not _are_texts(columns.values()) or not set(columns) <= set(ROLES):
        return "columns are not names by role"
    if not any(set(form.required) <= set(columns) <= set(form.roles) for form in TASKS[task].forms):
        return f"the columns are not those of {task}"
    if labels is not None and not (isinstance(labels, list) and _are_texts(labels)):
        return "labels are not a list of words"
    if TASKS[task].form_of(columns).has_labels and not labels:
        return "there are no labels"
    for name in ("max_length", "max_new_tokens"):
        value = stored.get(name)
        if not (type(value) is int and 0 < value < 1 << 24) and not (name == "max_length" and value is None):
            return f"{name} is not a number of tokens"
    if stored.get("framework") not in {each.framework for each in libraries.LIBRARIES}:
        return "unknown framework"
    return ""


def _are_texts(values: Iterable[Any]) -> bool:
    return all(isinstance(each, str) for each in values)
