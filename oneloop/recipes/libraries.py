"""The library that has models and tokenizers on each framework."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..backends import registry
from ..errors import ArgumentError, MissingPackageError, ModelError, OneloopError, UnsupportedError
from ..formats.reading import json_object
from .files import package
from .tasks import Task


@dataclass(frozen=True)
class Library:
    """`module` has the Auto classes; `first` is imported before it."""

    framework: str
    distribution: str
    module: str
    install: str
    first: str = ""
    shifts_labels: bool = True  # language models compare position i with label i + 1; otherwise with label i
    reads_saved_models: bool = True  # from_pretrained reads what a Trainer has saved; otherwise in another layout
    options: Mapping[str, str] = field(default_factory=dict)  # options of from_pretrained -> their names there

    @property
    def is_installed(self) -> bool:
        """Whether the framework and the library are, without importing them."""
        try:
            return registry.get(self.framework).is_installed and find_spec(self.first or self.distribution) is not None
        except (ImportError, ValueError):
            return False


LIBRARIES = (
    Library("torch", "transformers", "transformers", "pip install 'oneloop[torch,transformers]'"),
    Library(
        "paddle",
        "paddleformers",
        "paddleformers.transformers",
        "pip install paddlepaddle paddleformers",
        shifts_labels=False,
        reads_saved_models=False,
    ),
    Library(
        "paddle",
        "paddlenlp",
        "paddlenlp.transformers",
        "pip install paddlepaddle paddlenlp==2.8.1 'huggingface_hub<0.27' 'aistudio-sdk<0.3' 'pyarrow<21'",
        shifts_labels=False,
        options={"num_labels": "num_classes"},
    ),
    Library(
        "mindspore",
        "mindnlp",
        "transformers",
        # mindnlp patches what it stands on by inner names, so it works with few releases.
        "pip install mindspore==2.7.0 mindnlp==0.5.1 transformers==4.56.2 accelerate==1.10.1 peft==0.17.1 "
        "diffusers==0.35.1 'datasets<4' 'pyarrow<21' 'safetensors<0.8'",
        first="mindnlp",
    ),
)


def choose(framework: str | None) -> Library:
    """The library of a framework, or the first that is installed; an error has the command that installs it."""
    fits = [each for each in LIBRARIES if framework in (None, each.framework)]
    found = next((each for each in fits if each.is_installed), None)
    if found is not None:
        return found
    commands = " or ".join(f"`{each.install}`" for each in fits)
    what = (
        "no framework with a library of models is" if framework is None else f"no library of models for {framework} is"
    )
    raise MissingPackageError(f"{what} installed. Run {commands}.")


def load(library: Library, name: str) -> Any:
    """A class of the library."""
    try:
        if library.first:
            importlib.import_module(library.first)
        module = importlib.import_module(library.module)
    except ImportError as error:
        raise MissingPackageError(
            f"{library.distribution} is installed, but cannot be imported: {error}. The releases that work together: "
            f"`{library.install}`."
        ) from error
    found = getattr(module, name, None)
    if found is None:
        raise UnsupportedError(
            f"{library.distribution} has no {name}, so it cannot do this task. Use another framework."
        )
    return found


def check_name(name: str) -> None:
    """Raise an error for a path without a folder, which would be looked for on the Hub."""
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith("/")
    if is_path and not Path(name).is_dir():
        raise ModelError(f"there is no folder {name} with a model (looked for in {Path.cwd()}). Correct the path.")


def tokenizer(library: Library, name: str) -> Any:
    """The tokenizer in a folder or on the Hub."""
    return _loaded("the tokenizer of", name, lambda: load(library, "AutoTokenizer").from_pretrained(name))


def config(library: Library, name: str) -> Any:
    """The configuration of a model."""
    return _loaded("the model", name, lambda: load(library, "AutoConfig").from_pretrained(name))


def model(library: Library, task: Task, name: str, options: Mapping[str, Any], from_scratch: bool = False) -> Any:
    """A model for a task."""
    cls = load(library, task.auto)
    own = {library.options.get(key, key): value for key, value in options.items()}

    def make() -> Any:
        try:
            return cls.from_config(config(library, name)) if from_scratch else cls.from_pretrained(name, **own)
        except (AttributeError, KeyError) as error:
            if library.framework != "paddle":
                raise
            # Paddle's libraries look for a class of this name in the model's module.
            raise UnsupportedError(
                f"{library.distribution} has no {task.auto} for {name} ({_reason(error)}). Use a model of another kind "
                "or another framework."
            ) from error

    return _loaded("the model", name, make)


def _loaded(what: str, name: str, load: Any) -> Any:
    try:
        return load()
    except (OneloopError, MemoryError):
        raise
    except Exception as error:  # each library has its own for files that are missing, damaged or of another kind
        where = "" if Path(name).is_dir() else f" (there is no folder {name} in {Path.cwd()}, so the Hub was asked)"
        raise ModelError(f"{what} {name} cannot be loaded{where}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__


# -- adapters

LORA = {"r": 8, "alpha": 16, "dropout": 0.0, "target_modules": None}


def lora_options(given: bool | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Options of a LoRA adapter by the names of PEFT; None: all weights are trained."""
    if not given:
        return None
    options = {} if given is True else dict(given)
    unknown = sorted(set(options) - set(LORA))
    if unknown:
        raise ArgumentError(f"lora: unknown option {unknown[0]!r}; expected {', '.join(LORA)}.")
    found = {**LORA, **options}
    named = {"r": found["r"], "lora_alpha": found["alpha"], "lora_dropout": found["dropout"]}
    return named | ({"target_modules": found["target_modules"]} if found["target_modules"] else {})


def with_adapter(library: Library, task: Task, model: Any, options: Mapping[str, Any]) -> Any:
    """The model with a new LoRA adapter."""
    if library.framework == "paddle":
        raise UnsupportedError("lora: adapters need PEFT, which needs PyTorch. Remove it, or use torch.")
    peft = package("peft", "lora")
    try:
        return peft.get_peft_model(model, peft.LoraConfig(task_type=task.adapter, **options))
    except ValueError as error:  # a model whose layers PEFT does not know
        raise ArgumentError(f"lora: {error} Name them: `lora: {{target_modules: [...]}}`.") from error


def trained(library: Library, task: Task, folder: Path, options: Mapping[str, Any]) -> Any:
    """A trained model in a folder, whole or as an adapter of its base."""
    adapter = json_object(folder / "adapter_config.json") if (folder / "adapter_config.json").exists() else None
    if adapter is None:
        return model(library, task, str(folder), options)
    base = adapter.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ModelError(f"{folder / 'adapter_config.json'} names no base model, so the adapter cannot be loaded.")
    peft = package("peft", f"loading the adapter in {folder}")
    whole = model(library, task, base, options)
    return _loaded("the adapter in", str(folder), lambda: peft.PeftModel.from_pretrained(whole, str(folder)))


def limit(config: Any, tokenizer: Any) -> int | None:
    """The most tokens that a model accepts, if it says so."""
    known = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions")]
    known.append(getattr(tokenizer, "model_max_length", None))
    # Tokenizers without a limit report a number as large as 1e30.
    return min((each for each in known if isinstance(each, int) and 0 < each < 1 << 24), default=None)
