"""What was passed to Trainer.__init__, by name. Other libraries' Trainers have other orders, and other names."""

import difflib
import inspect
from dataclasses import dataclass, fields
from typing import Any

from .. import behaviour
from ..arguments import TrainingArguments
from ..backends import loading
from ..errors import ArgumentError, InvalidTypeError, UnknownArgumentError
from . import map_function
from .validation import has_length


@dataclass
class TrainerInit:
    """The parameters of the Trainer."""

    model: Any
    args: Any
    data_collator: Any
    train_dataset: Any
    eval_dataset: Any
    tokenizer: Any
    model_init: Any
    criterion: Any
    processing_class: Any
    compute_loss_func: Any
    compute_metrics: Any
    callbacks: Any
    optimizers: Any
    optimizer_cls_and_kwargs: Any
    preprocess_logits_for_metrics: Any
    map_fn: Any


def normalize_init_args(cls: type, values: dict[str, Any]) -> TrainerInit:
    """The parameters from the local variables of Trainer.__init__, in whichever library's order they were passed."""
    if values["unknown"]:
        raise unknown_parameter(cls, next(iter(values["unknown"])))
    given = TrainerInit(**{field.name: values[field.name] for field in fields(TrainerInit)})
    if values["positional"]:
        _take_positional(given, values["positional"])
    if is_paddle_order(given.args, given.data_collator):
        _from_paddle_order(given)
    if given.map_fn is None and map_function.is_map_function(given.data_collator):  # third in place of a collator
        given.map_fn, given.data_collator = given.data_collator, None
    return given


# What other libraries call a parameter of the Trainer.
_COMMON_MISTAKES = {
    "train_dataset": ("training_dataset", "train_data", "train_set", "train_ds", "dataset", "data", "train_dataloader"),
    "eval_dataset": ("validation_dataset", "val_dataset", "valid_dataset", "dev_dataset", "test_dataset", "eval_data"),
    "data_collator": ("collate_fn", "collator"),
    "compute_metrics": ("metrics", "metric"),
    "optimizers": ("optimizer", "lr_scheduler", "scheduler"),
    "criterion": ("loss_fn", "loss", "loss_function"),
    "args": ("arguments", "training_args", "training_arguments", "config"),
}


def unknown_parameter(cls: type, name: str) -> UnknownArgumentError:
    """An error for a keyword that Trainer does not have."""
    known = [p for p in inspect.signature(cls).parameters if p not in ("positional", "unknown", "args", "kwargs")]
    near = [target for target, habits in _COMMON_MISTAKES.items() if name in habits]
    near += difflib.get_close_matches(name, [*known, "args"], n=1, cutoff=0.6)
    if near:
        hint = f"did you mean '{near[0]}'?"
    elif name in {field.name for field in fields(TrainingArguments)}:
        hint = f"it is an argument of TrainingArguments: TrainingArguments({name}=...)."
    else:
        hint = f"it has {', '.join(known)}."
    return UnknownArgumentError(f"{cls.__name__} has no parameter '{name}'; {hint}")


def _take_positional(given: TrainerInit, positional: tuple[Any, ...]) -> None:
    """Name what a script passes by position after model_init, if the order is known."""
    order = behaviour.current().positional_parameters
    if order is None:
        raise ArgumentError(
            "Trainer accepts positional arguments up to model_init only, since the order of the others differs "
            "between trainers. Pass compute_metrics, callbacks, optimizers and the rest by keyword."
        )
    names = order()
    if len(positional) > len(names):
        raise InvalidTypeError(f"Trainer has {7 + len(names)} parameters, but {7 + len(positional)} were given.")
    for name, value in zip(names, positional):
        if getattr(given, name) not in (None, (None, None)):
            raise InvalidTypeError(f"Trainer got {name} twice: by position and by name.")
        setattr(given, name, value)


def is_criterion(value: Any) -> bool:
    """Whether the second positional argument is a criterion, rather than the arguments."""
    if hasattr(value, "output_dir") or isinstance(value, (dict, str)):
        return False
    return loading.name_of(value) is not None or callable(value)


def is_paddle_order(second: Any, third: Any) -> bool:
    """Whether the arguments are third, after a criterion or None in its place."""
    return is_criterion(second) if second is not None else hasattr(third, "output_dir")


def _from_paddle_order(given: TrainerInit) -> None:
    """The order with a criterion: model, criterion, args, data_collator, train_dataset, eval_dataset, tokenizer."""
    given.criterion, given.args, given.data_collator = given.args, given.data_collator, None
    # A collator in fourth place, and the rest after it.
    if given.train_dataset is None or callable(given.train_dataset):
        given.data_collator, given.train_dataset = given.train_dataset, given.eval_dataset
        given.eval_dataset, given.tokenizer, given.model_init = given.tokenizer, given.model_init, None


def describe(trainer: Any) -> str:
    """A Trainer in one line, for repr(): what it trains, on what, where. It may be half made."""
    core = trainer.__dict__.get("_oneloop")
    model, args = trainer.__dict__.get("model"), trainer.__dict__.get("args")
    known = [type(model).__name__ if model is not None else "no model"]
    if core is not None and model is not None:
        known.append(f"{core.backend.models.num_parameters(model):,} parameters")
        known.append(f"{core.backend.NAME} on {args.device}")
    for name in ("train_dataset", "eval_dataset"):
        data = trainer.__dict__.get(name)
        if data is not None:
            size = f"{len(data):,} samples" if has_length(data) and not isinstance(data, dict) else type(data).__name__
            known.append(f"{name}: {size}")
    if args is not None:
        known.append(f"output_dir={str(args.output_dir)!r}")
    return f"<{type(trainer).__name__}: {', '.join(known)}>"
