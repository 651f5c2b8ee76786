"""A recipe: keys of a YAML or JSON file, or options of the command line, with all training arguments beside them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..arguments import TrainingArguments
from ..backends import registry
from ..errors import ArgumentError
from ..parser import ArgumentParser
from ..parser.files import read_json, read_yaml
from .tasks import TASKS


def _key(help: str, default: Any = None, choices: Sequence[str] | None = None) -> Any:
    return field(default=default, metadata={"help": help, **({"choices": choices} if choices else {})})


@dataclass
class Recipe:
    """What to train, and on what data; options of a recipe."""

    task: str | None = _key("What the model learns; required.", choices=[*TASKS])
    model: str | None = _key("A folder with a model and its tokenizer, or a name on the Hub; required.")
    data: dict[str, Any] | list[str] | str | None = _key(
        "Data files or folders; several, or NAME=FILE for each dataset of a mixture; required."
    )
    eval_data: list[str] | str | None = _key("Data files to evaluate on; default: a part of the data.")
    eval_split: float = _key("The part of the data to evaluate on, if there is no eval_data; 0: none.", 0.1)
    columns: dict[str, str] | list[str] | None = _key(
        "ROLE=COLUMN for each column that is not recognised by its name, such as text=review label=stars."
    )
    labels: list[str] | None = _key("The labels in their order; default: those of the model, or of the data, sorted.")
    bad_rows: str = _key("What to do about rows that cannot be used.", "stop", choices=("stop", "skip"))
    tokenizer: str | None = _key("A folder or name of a tokenizer other than the model's.")
    framework: str | None = _key("The framework; default: the first that is installed.", choices=registry.released())
    from_scratch: bool = _key("Make a new model from the configuration, with random weights.", False)
    lora: bool | dict[str, Any] | None = _key(
        'Train a LoRA adapter instead of all weights: true, or options such as {"r": 8, "alpha": 16}.'
    )
    search: dict[str, Any] | None = _key(
        'Search for arguments first: a list of values for each, or {"low": 1e-5, "high": 1e-3, "log": true}.'
    )
    trials: int = _key("Trials of the search.", 10)
    trl: dict[str, Any] | None = _key('For dpo: more arguments of TRL\'s configuration, such as {"beta": 0.2}.')
    samples: int = _key("Texts that a generative model writes after training.", 3)
    max_new_tokens: int = _key("Tokens of each such text.", 64)


@dataclass(frozen=True)
class Given:
    """A recipe as it was given: its own keys, the training arguments by the names used, and their fields."""

    recipe: Recipe
    arguments: dict[str, Any]
    set_fields: set[str]
    script: bool = False


def parser() -> ArgumentParser:
    """The parser of `oneloop train`."""
    made = ArgumentParser(
        Recipe,
        TrainingArguments,
        prog="oneloop train",
        description="Trains a model from a recipe. Its keys are also options, which override it.",
    )
    made.add_argument("recipe_file", nargs="?", metavar="RECIPE", help="a YAML or JSON file; `oneloop init` writes one")
    made.add_argument(
        "--script", action="store_true", help="print the Python script that does the same, and do not train"
    )
    return made


def read(words: Sequence[str]) -> Given:
    """The recipe of a command line."""
    found = parser()
    file = _file_of(words)
    given, fields, options = found.parse_given(words, None if file is None else _contents(file))
    own = {name: value for name, value in given.items() if found.owner(name) is Recipe}
    rest = {name: value for name, value in given.items() if name not in own}
    recipe = Recipe(**own)
    _check(recipe)
    return Given(recipe, rest, fields, options.script)


def _file_of(words: Sequence[str]) -> str | None:
    """The recipe is the first word; anywhere else it would be a value of the option before it."""
    if words and not words[0].startswith("-"):
        return words[0]
    misplaced = [word for word in words if word.endswith((".yaml", ".yml"))]
    if misplaced:
        raise ArgumentError(f"the recipe comes first: oneloop train {misplaced[0]} ...")
    return None


def _contents(file: str) -> dict[str, Any]:
    path = Path(file)
    if path.suffix.lower() not in (".yaml", ".yml", ".json"):
        raise ArgumentError(
            f"{file} is not a recipe: expected a .yaml or .json file, or options such as --task ... first."
        )
    try:
        return read_json(path) if path.suffix.lower() == ".json" else read_yaml(path)
    except OSError as error:
        raise ArgumentError(
            f"the recipe {file} cannot be read: {error.strerror}. `oneloop init` writes one."
        ) from error


def _check(recipe: Recipe) -> None:
    if recipe.task not in TASKS:
        listed = "".join(f"\n  {task.name:22} {task.summary}" for task in TASKS.values())
        raise ArgumentError(f"{'unknown' if recipe.task else 'no'} task {recipe.task or ''}. Tasks:{listed}".strip())
    for name in ("model", "data"):
        if not getattr(recipe, name):
            raise ArgumentError(f"the recipe has no {name}: pass --{name} ..., or write `{name}:` into the file.")
    if recipe.trials < 1 or recipe.samples < 0 or recipe.max_new_tokens < 1:
        raise ArgumentError("trials and max_new_tokens have to be at least 1, and samples at least 0.")
    if recipe.lora and recipe.from_scratch:
        raise ArgumentError("lora trains an adapter of a trained model, but from_scratch has none. Remove one of them.")
    if recipe.trl and not TASKS[recipe.task].trl:
        raise ArgumentError(f"trl: {recipe.task} does not use TRL. Remove it.")
    if recipe.search and TASKS[recipe.task].trl:
        raise ArgumentError(f"search: {recipe.task} uses a trainer of TRL, which cannot search. Remove it.")
    if recipe.from_scratch and recipe.task != "pretrain":
        raise ArgumentError("from_scratch is for pretrain: other tasks start from a trained model.")


def sources(recipe: Recipe) -> dict[str, list[str]]:
    """The files of each dataset; one dataset has the name ""."""
    data = recipe.data
    if isinstance(data, str):
        data = [data]
    if isinstance(data, list) and data and all("=" in str(each).split("/")[0] for each in data):
        pairs = [str(each).split("=", 1) for each in data]
        data = {name: [file for other, file in pairs if other == name] for name, _ in pairs}
    if not isinstance(data, dict):
        return {"": _paths("data", data)}
    if "" in data or not all(isinstance(name, str) for name in data):
        raise ArgumentError("data: each dataset of a mixture needs a name, as in `wiki: wiki.jsonl`.")
    return {name: _paths(f"data: {name}", files) for name, files in data.items()}


def eval_files(recipe: Recipe) -> list[str]:
    return _paths("eval_data", recipe.eval_data) if recipe.eval_data else []


def _paths(name: str, value: Any) -> list[str]:
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not listed or not all(isinstance(each, str) and each for each in listed):
        raise ArgumentError(f"{name}: expected a file or a list of files, found {value!r}.")
    return listed


def column_names(value: Any) -> dict[str, str]:
    """`columns` as a mapping; on the command line it is ROLE=COLUMN."""
    if isinstance(value, list):
        pairs = [str(each).partition("=") for each in value]
        if not all(role and sign and name for role, sign, name in pairs):
            raise ArgumentError(f"columns: expected ROLE=COLUMN, as in text=review; found {value}.")
        value = {role: name for role, _, name in pairs}
    if value and not all(isinstance(role, str) and isinstance(name, str) for role, name in value.items()):
        raise ArgumentError("columns: expected the name of a column for each role.")
    return dict(value or {})
