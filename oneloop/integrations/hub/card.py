"""The model card: what the model is, how it was trained and how well it did, as README.md with metadata on top."""

import hashlib
import json
import re
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ...backends import registry

# The lines of an evaluation that say how fast it was, not how good the model is.
SPEED = ("_runtime", "_per_second", "_compilation_time")
ALWAYS = (
    *("learning_rate", "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"),
    *("seed", "optim", "lr_scheduler_type", "num_train_epochs"),
)
_SIGNATURE = re.compile(r"\n<!-- A card that oneloop wrote: ([0-9a-f]{16}) -->\n$")
PACKAGES = ("transformers", "datasets", "tokenizers", "peft")


def words(value: Any) -> list[str]:
    """None, a word or several, as a list."""
    return [] if value is None else [value] if isinstance(value, str) else list(value)


def write(facts: dict[str, Any], arguments: dict[str, Any], defaults: dict[str, Any], history: list[dict]) -> str:
    """The text of README.md. `facts`: what create_model_card was told, and what the model says of itself."""
    name = facts["model_name"]
    parts = [_metadata(facts, history), f"# {name}\n", _about(facts)]
    last = last_evaluation(history)
    if last:
        rows = [(key, shown(value)) for key, value in last.items() if _tells(key)]
        parts.append("## Evaluation\n\n" + _table(("metric", "value"), rows))
    used = {
        key: value
        for key, value in arguments.items()
        if key in ALWAYS or (value != defaults.get(key) and not key.startswith(("hub_", "push_to", "output_dir")))
    }
    parts.append("## Arguments\n\nThose that differ from the defaults of oneloop, and those one always asks for.\n")
    parts.append(_table(("argument", "value"), [(key, f"`{value}`") for key, value in sorted(used.items())]))
    course = _course(history)
    if course:
        parts.append("## Course\n\n" + course)
    parts.append("## Versions\n\n" + _versions(facts["framework"]))
    return _signed("\n".join(parts))


def _signed(text: str) -> str:
    return f"{text}\n<!-- A card that oneloop wrote: {hashlib.sha256(text.encode()).hexdigest()[:16]} -->\n"


def is_ours(text: str) -> bool:
    """Whether a card is one of these, and nobody has changed it since."""
    found = _SIGNATURE.search(text)
    return found is not None and _signed(text[: found.start()]) == text


def _metadata(facts: dict[str, Any], history: list[dict]) -> str:
    """YAML; its values are written as JSON, which is YAML too."""
    tags = list(dict.fromkeys([*words(facts.get("tags")), "generated_from_trainer", "oneloop"]))
    fields = {
        "language": words(facts.get("language")),
        "license": facts.get("license"),
        "library_name": facts.get("library_name"),
        "base_model": facts.get("finetuned_from"),
        "pipeline_tag": next(iter(words(facts.get("tasks"))), None),
        "datasets": words(facts.get("dataset_tags")),
        "metrics": sorted({key.removeprefix("eval_") for key in last_evaluation(history) if _tells(key)} - {"loss"}),
        "tags": tags,
        "model-index": _index(facts, history),
    }
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items() if value]
    return "\n".join(["---", *lines, "---\n"])


def _index(facts: dict[str, Any], history: list[dict]) -> list[dict]:
    """Results as the Hub's tables read them; they need a task and a data set."""
    tasks, sets = words(facts.get("tasks")), words(facts.get("dataset_tags"))
    scores = {key.removeprefix("eval_"): value for key, value in last_evaluation(history).items() if _tells(key)}
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
    text = f"A `{facts['class']}` of {facts['framework']}"
    text += f", trained from [{base}](https://huggingface.co/{base})" if base else ", trained"
    text += f" on {', '.join(sets)}" if sets else ""
    return (
        f"{text} with oneloop. The training run wrote this card; what the model is for, its limits and its data are "
        "yours to add.\n"
    )


def last_evaluation(history: list[dict]) -> dict[str, Any]:
    found = [entry for entry in history if any(key.startswith("eval_") for key in entry)]
    return {key: value for key, value in found[-1].items() if key.startswith("eval_")} if found else {}


def _tells(key: str) -> bool:
    return not key.endswith(SPEED)


def shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _course(history: list[dict]) -> str:
    """One row an evaluation, with the training loss that was logged last before it."""
    rows, loss = [], None
    columns = list(dict.fromkeys(k for e in history for k in e if k.startswith("eval_") and _tells(k)))
    for entry in history:
        loss = entry.get("loss", loss)
        if any(key in entry for key in columns):
            rows.append(
                (
                    shown(entry.get("epoch", "")),
                    str(entry.get("step", "")),
                    "" if loss is None else shown(loss),
                    *(shown(entry.get(key, "")) for key in columns),
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
