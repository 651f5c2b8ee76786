"""The model card: what the model is, how it was trained and evaluated, as README.md with YAML metadata."""

import hashlib
import json
import re
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ...backends import registry
from ...secrets import clean_text

# Evaluation values about speed, not about the quality of the model.
SPEED = ("_runtime", "_per_second", "_compilation_time")
ALWAYS = (
    *("learning_rate", "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"),
    *("seed", "optim", "lr_scheduler_type", "num_train_epochs"),
)
# Arguments that say where something is, on the machine or on the Hub.
PLACES = ("hub_", "push_to", "output_dir", "logging_dir", "resume_from_checkpoint")
_SIGNATURE = re.compile(r"\n<!-- A card that oneloop wrote: ([0-9a-f]{16}) -->\n$")
PACKAGES = ("transformers", "datasets", "tokenizers", "peft")


def library_of(model: Any) -> str | None:
    """The library with which a model on the Hub is loaded; None if it is none of those that the Hub knows."""
    if getattr(model, "peft_config", None):
        return "peft"
    packages = {cls.__module__.partition(".")[0] for cls in type(model).__mro__}
    return "transformers" if "transformers" in packages else None


def words(value: Any) -> list[str]:
    """None, a string or several, as a list."""
    return [] if value is None else [value] if isinstance(value, str) else list(value)


def write(facts: dict[str, Any], arguments: dict[str, Any], defaults: dict[str, Any], history: list[dict]) -> str:
    """The text of README.md. `facts`: the arguments of create_model_card, and properties of the model."""
    name = facts["model_name"]
    parts = [_metadata(facts, history), f"# {name}\n", _about(facts)]
    last = last_evaluation(history)
    if last:
        rows = [(key, format_cell(value)) for key, value in last.items() if _is_result(key)]
        parts.append("## Evaluation\n\n" + _table(("metric", "value"), rows))
    used = {
        key: value
        for key, value in arguments.items()
        if key in ALWAYS or (value != defaults.get(key) and not key.startswith(PLACES))
    }
    parts.append("## Arguments\n\nArguments that differ from the defaults of oneloop, and the most common ones.\n")
    parts.append(_table(("argument", "value"), [(key, f"`{value}`") for key, value in sorted(used.items())]))
    course = _training_table(history)
    if course:
        parts.append("## Training results\n\n" + course)
    parts.append("## Versions\n\n" + _versions(facts["framework"]))
    return _signed(clean_text("\n".join(parts)))


def _signed(text: str) -> str:
    return f"{text}\n<!-- A card that oneloop wrote: {hashlib.sha256(text.encode()).hexdigest()[:16]} -->\n"


def is_ours(text: str) -> bool:
    """Whether this card was generated here and has not been edited since."""
    found = _SIGNATURE.search(text)
    return found is not None and _signed(text[: found.start()]) == text


def _metadata(facts: dict[str, Any], history: list[dict]) -> str:
    """YAML metadata; values are written as JSON, which is valid YAML."""
    tags = list(dict.fromkeys([*words(facts.get("tags")), "generated_from_trainer", "oneloop"]))
    fields = {
        "language": words(facts.get("language")),
        "license": facts.get("license"),
        "library_name": facts.get("library_name"),
        "base_model": facts.get("finetuned_from"),
        "pipeline_tag": next(iter(words(facts.get("tasks"))), None),
        "datasets": words(facts.get("dataset_tags")),
        "metrics": sorted(
            {key.removeprefix("eval_") for key in last_evaluation(history) if _is_result(key)} - {"loss"}
        ),
        "tags": tags,
        "model-index": _index(facts, history),
    }
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items() if value]
    return "\n".join(["---", *lines, "---\n"])


def _index(facts: dict[str, Any], history: list[dict]) -> list[dict]:
    """Results in the Hub's model-index format, which requires a task and a dataset."""
    tasks, sets = words(facts.get("tasks")), words(facts.get("dataset_tags"))
    scores = {key.removeprefix("eval_"): value for key, value in last_evaluation(history).items() if _is_result(key)}
    if not tasks or not sets or not scores:
        return []
    names = words(facts.get("dataset")) or sets
    config = words(facts.get("dataset_args"))
    results = [
        {
            "task": {"type": task, "name": task.replace("-", " ").capitalize()},
            "dataset": {"name": title, "type": kind, **({"args": config[0]} if config else {})},
            "metrics": [{"name": key, "type": key, "value": value} for key, value in scores.items()],
        }
        for task in tasks
        for title, kind in zip(names, sets)
    ]
    return [{"name": facts["model_name"], "results": results}]


def _about(facts: dict[str, Any]) -> str:
    base, sets = facts.get("finetuned_from"), words(facts.get("dataset")) or words(facts.get("dataset_tags"))
    text = f"A {facts['framework']} `{facts['class']}`"
    folder = facts.get("finetuned_from_folder")
    link = f"[{base}](https://huggingface.co/{base})" if base else f"`{folder}`" if folder else ""
    text += f", fine-tuned from {link}" if link else ", trained"
    text += f" on {', '.join(sets)}" if sets else ""
    return (
        f"{text} with oneloop. This card was generated by the training run; please add the model's intended use, its "
        "limitations and its training data.\n"
    )


def last_evaluation(history: list[dict]) -> dict[str, Any]:
    found = [entry for entry in history if any(key.startswith("eval_") for key in entry)]
    return {key: value for key, value in found[-1].items() if key.startswith("eval_")} if found else {}


def _is_result(key: str) -> bool:
    return not key.endswith(SPEED)


def format_cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _training_table(history: list[dict]) -> str:
    """One row per evaluation, with the last training loss logged before it."""
    rows, loss = [], None
    columns = list(dict.fromkeys(k for e in history for k in e if k.startswith("eval_") and _is_result(k)))
    for entry in history:
        loss = entry.get("loss", loss)
        if any(key in entry for key in columns):
            rows.append(
                (
                    format_cell(entry.get("epoch", "")),
                    str(entry.get("step", "")),
                    "" if loss is None else format_cell(loss),
                    *(format_cell(entry.get(key, "")) for key in columns),
                )
            )
    return _table(("epoch", "step", "training loss", *columns), rows) if rows else ""


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _versions(framework: str) -> str:
    found = [f"- Python {sys.version.split()[0]}"]
    for name in ("oneloop", *registry.get(framework).distributions, *PACKAGES):
        try:
            found.append(f"- {name} {version(name)}")
        except PackageNotFoundError:
            continue
    return "\n".join(found) + "\n"
