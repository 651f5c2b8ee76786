"""A job: a recipe with everything decided, so that it can be run, written as a script, or shown."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import ArgumentError, DataError, UnsupportedError
from . import columns as column_roles
from . import defaults, libraries
from .files import Found, find_all, require
from .libraries import Library
from .recipe import Given, column_names, eval_files, sources
from .rows import Selected, labels_of, select, split_rows
from .tasks import TASKS, Form, Task
from .tasks.base import constants
from .tasks.language import shift_labels

_MEASURED = 2000  # rows whose tokens are counted to find max_length
_MOST_LABELS = 100  # beyond that, labels that hardly repeat are taken for a mistake


@dataclass
class Job:
    """What to do, all of it decided. Everything here is plain data except the task, its form and the library."""

    task: Task
    form: Form
    library: Library
    model: str
    tokenizer: str
    sources: dict[str, list[str]]
    eval_files: list[str]
    eval_split: float
    columns: dict[str, str]
    bad_rows: str
    labels: list[str] | None = None
    are_labels_given: bool = False
    max_length: int | None = None  # None: packing cuts the rows
    pad_token_is_end: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)
    from_scratch: bool = False
    lora: dict[str, Any] | None = None
    search: dict[str, Any] | None = None
    trials: int = 10
    trl: dict[str, Any] = field(default_factory=dict)
    samples: int = 3
    max_new_tokens: int = 64
    said: list[tuple[str, str]] = field(default_factory=list)  # decisions: name, text

    @property
    def is_mixture(self) -> bool:
        return "" not in self.sources

    @property
    def known_labels(self) -> list[str] | None:
        """Labels that rows are checked for: those that were not found in the rows themselves."""
        return self.labels if self.are_labels_given else None

    @property
    def packs(self) -> bool:
        """Whether the Trainer packs the samples, and makes the batches itself."""
        return "max_length" in self.arguments and not self.task.trl

    @property
    def moves_labels(self) -> bool:
        """Whether the model expects each label at the position before."""
        return self.task.auto == "AutoModelForCausalLM" and not self.library.shifts_labels

    def encode(self, rows: list[dict[str, Any]], tokenizer: Any) -> list[dict[str, Any]]:
        """The samples of rows."""
        samples = _encoded(self.form, rows, tokenizer, self.constants(self.form.encode))
        return shift_labels(samples) if self.moves_labels else samples

    def constants(self, function: Any) -> dict[str, Any]:
        """Constants of this job for a function of the form."""
        return constants(function, {"labels": self.labels, "max_length": self.max_length})

    @property
    def model_options(self) -> dict[str, Any]:
        """Options of from_pretrained."""
        options = dict(self.form.model_options)
        if self.labels is not None:
            options["num_labels"] = len(self.labels)
            options["id2label"] = dict(enumerate(self.labels))
            options["label2id"] = {label: number for number, label in enumerate(self.labels)}
        return options

    def say(self, name: str, text: str) -> None:
        self.said.append((name, text))


@dataclass
class Data:
    """Rows to train, by dataset, and rows to evaluate."""

    train: dict[str, list[dict[str, Any]]]
    held_out: list[dict[str, Any]]

    @property
    def all_train(self) -> list[dict[str, Any]]:
        return [row for rows in self.train.values() for row in rows]


def resolve(given: Given) -> tuple[Job, Data, Any]:
    """Read the data, decide what is open, and say so. Returns the job, its rows and the tokenizer."""
    recipe = given.recipe
    task = TASKS[str(recipe.task)]
    found = {name: find_all(files) for name, files in sources(recipe).items()}
    first = next(iter(found.values()))
    columns = column_roles.choose(task, first, column_names(recipe.columns))
    job = Job(
        task,
        task.form_of(columns),
        _library(task, recipe.framework),
        str(recipe.model),
        recipe.tokenizer or str(recipe.model),
        sources(recipe),
        eval_files(recipe),
        0.0 if recipe.eval_data else recipe.eval_split,
        columns,
        recipe.bad_rows,
        from_scratch=recipe.from_scratch,
        lora=libraries.lora_options(recipe.lora),
        search=recipe.search,
        trials=recipe.trials,
        trl=recipe.trl or {},
        samples=recipe.samples if task.generates else 0,
        max_new_tokens=recipe.max_new_tokens,
    )
    if task.trl and job.is_mixture:
        raise UnsupportedError(f"{task.name}: TRL's trainers take one dataset. Pass the files as a list.")
    if recipe.labels is not None:
        _take_labels(job, recipe.labels)
    data = _rows(job, found)
    _decide_arguments(job, given, data)
    libraries.check_name(job.tokenizer)
    libraries.check_name(job.model)
    tokenizer, config = libraries.tokenizer(job.library, job.tokenizer), libraries.config(job.library, job.model)
    if job.form.has_labels:
        _decide_labels(job, data, config)
    if job.form.needs_word_ids and not getattr(tokenizer, "is_fast", False):
        raise UnsupportedError(
            f"{task.name} needs a tokenizer that knows the word of each token (a fast one); the "
            f"{type(tokenizer).__name__} of {job.library.distribution} does not. Use another tokenizer or framework."
        )
    _decide_padding(job, tokenizer)
    _decide_length(job, data, tokenizer, libraries.limit(config, tokenizer), given)
    return job, data, tokenizer


def _library(task: Task, framework: str | None) -> Library:
    library = libraries.choose("torch" if task.trl and framework is None else framework)
    if task.trl:
        if library.framework != "torch":
            raise UnsupportedError(f"{task.name} uses TRL, which needs PyTorch. Use framework: torch.")
        require("trl", f"the task {task.name}")
        require("datasets", f"the task {task.name}")
    return library


# -- rows


def _rows(job: Job, found: Mapping[str, Sequence[Found]]) -> Data:
    selected = {name: select(rows, job.columns, job.bad_rows, job.known_labels) for name, rows in found.items()}
    job.say("columns", ", ".join(f"{role} is {name!r}" for role, name in job.columns.items()))
    for name, each in selected.items():
        files = ", ".join(job.sources[name])
        job.say(f"data {name}".strip(), f"{files}: {len(each.rows)} rows{_left_out(each)}")
    train, held_out = {}, []
    for name, each in selected.items():
        train[name], apart = split_rows(each.rows, job.eval_split)
        held_out += apart
    if job.eval_files:
        each = select(find_all(job.eval_files), job.columns, job.bad_rows, job.known_labels)
        held_out = each.rows
        job.say("eval_data", f"{', '.join(job.eval_files)}: {len(held_out)} rows{_left_out(each)}")
    elif held_out:
        rows = sum(map(len, train.values()))
        job.say(
            "eval_split", f"{job.eval_split}: {rows} rows to train, {len(held_out)} to evaluate, by a hash of the input"
        )
    return Data(train, held_out)


def _left_out(selected: Selected) -> str:
    return f", {selected.left_out} left out" if selected.left_out else ""


# -- labels


def _take_labels(job: Job, labels: Sequence[Any]) -> None:
    if not job.form.has_labels:
        raise ArgumentError(f"labels are for classes; {job.task.name} with these columns has none. Remove them.")
    names = [str(label).lower() if isinstance(label, bool) else str(label) for label in labels]
    if len(set(names)) < max(2, len(names)):
        raise ArgumentError(f"labels: expected at least two, each once; found {', '.join(names)}.")
    job.labels, job.are_labels_given = names, True


def _decide_labels(job: Job, data: Data, config: Any) -> None:
    counts = Counter(label for row in (*data.all_train, *data.held_out) for label in labels_of(row))
    if job.labels is None:
        rows = len(data.all_train) + len(data.held_out)
        if job.form.target == "label" and len(counts) > _MOST_LABELS and len(counts) > rows / 2:
            raise DataError(
                f"the column {job.columns['label']!r} has {len(counts)} different labels in {rows} rows: is it the "
                "label? Name the column with `columns`, or use the task regression for numbers."
            )
        job.labels = _own_labels(config, counts) or _sorted(counts)
    if len(job.labels) < 2 and job.form.target == "label":
        raise DataError(f"all rows have the label {job.labels[0]!r}; a classifier needs at least two.")
    if not job.labels:
        raise DataError("no row has a label.")
    shown = ", ".join(f"{label} ({counts[label]})" for label in job.labels[:20])
    job.say("labels", shown + (f" and {len(job.labels) - 20} more" if len(job.labels) > 20 else ""))


def _own_labels(config: Any, counts: Mapping[str, int]) -> list[str] | None:
    """The labels of a model that was trained for all of them: its head knows their order."""
    names = getattr(config, "id2label", None) or {}
    own = [str(names[number]) for number in sorted(names)] if all(isinstance(n, int) for n in names) else []
    return own if own and set(counts) <= set(own) and len(set(own)) == len(own) else None


def _sorted(counts: Mapping[str, int]) -> list[str]:
    """As numbers, if all are."""
    try:
        return sorted(counts, key=int)
    except ValueError:
        return sorted(counts)


# -- arguments


def _decide_arguments(job: Job, given: Given, data: Data) -> None:
    job.arguments = dict(given.arguments)
    chosen = defaults.of_task(
        job.task, job.form, given.arguments, given.set_fields, bool(data.held_out), bool(job.lora), job.from_scratch
    )
    for name, value, why in chosen:
        if name == "packing" and job.moves_labels:
            continue
        job.arguments[name] = value
        job.say(name, f"{value} ({why})")


def _decide_padding(job: Job, tokenizer: Any) -> None:
    if getattr(tokenizer, "pad_token", None) is None:
        if getattr(tokenizer, "eos_token", None) is None:
            raise ArgumentError(f"the tokenizer of {job.tokenizer} has neither a pad token nor an end-of-text token.")
        tokenizer.pad_token = tokenizer.eos_token
        job.pad_token_is_end = True
        job.say("pad_token", f"{tokenizer.eos_token} (the tokenizer has none of its own)")


def _decide_length(job: Job, data: Data, tokenizer: Any, limit: int | None, given: Given) -> None:
    """max_length: as given, or that of the longest row, within what the model accepts."""
    length = job.arguments.pop("max_length", None)
    packing = str(job.arguments.get("packing", False)).lower() not in ("false", "no", "0", "none")
    if packing and (job.task.trl or not job.task.generates):
        raise ArgumentError(f"packing is for language models; {job.task.name} pads its rows. Remove it.")
    if packing and job.moves_labels:
        raise UnsupportedError(f"packing is not supported with models of {job.library.distribution}. Remove it.")
    if length is None:
        most = min(each for each in (job.task.longest, limit) if each)
        length = most if packing or job.task.trl else min(most, _longest(job, data, tokenizer))
        why = "rows of packed texts" if packing else "the longest row" if length < most else "longer rows are cut"
        job.say("max_length", f"{length} tokens ({why})")
    elif limit is not None and int(length) > limit:
        raise ArgumentError(f"max_length={length}, but {job.model} accepts at most {limit} tokens. Lower it.")
    job.max_length = int(length)
    if job.task.trl:
        job.arguments = {**job.arguments, "max_length": job.max_length, **job.trl}
    elif packing:
        job.arguments["max_length"] = job.max_length
        if job.task.name == "pretrain":  # the Trainer cuts texts where a row is full
            job.max_length = None


def _longest(job: Job, data: Data, tokenizer: Any) -> int:
    """Tokens of the longest of some rows, up to a multiple of 8."""
    rows = data.all_train
    step = -(-len(rows) // _MEASURED)
    given = {**constants(job.form.encode, {"labels": job.labels}), "max_length": job.task.longest}
    samples = _encoded(job.form, rows[::step], tokenizer, given)
    lengths = [len(sample[name]) for sample in samples for name in ("input_ids", "labels") if _is_list(sample, name)]
    return -(-max(lengths, default=8) // 8) * 8


def _encoded(form: Form, rows: list[dict[str, Any]], tokenizer: Any, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The samples of rows; an error names the first row that a tokenizer or its template does not accept."""
    try:
        return form.encode(rows, tokenizer, **given)
    except Exception:
        for row in rows:
            try:
                form.encode([row], tokenizer, **given)
            except Exception as error:
                shown = json.dumps(row, ensure_ascii=False)
                shown = shown if len(shown) <= 200 else shown[:200] + "…"
                raise DataError(f"a row cannot be encoded: {error} The row: {shown}") from error
        raise


def _is_list(sample: Mapping[str, Any], name: str) -> bool:
    return isinstance(sample.get(name), list)


# -- what a prediction needs to know

VERSION = 1


def facts(job: Job) -> bytes:
    """recipe.json of a trained model."""
    stored = {
        "version": VERSION,
        "task": job.task.name,
        "framework": job.library.framework,
        "base_model": job.model,
        "columns": job.columns,
        "labels": job.labels,
        "max_length": job.max_length,
        "max_new_tokens": job.max_new_tokens,
    }
    return json.dumps(stored, indent=2, ensure_ascii=False).encode() + b"\n"
