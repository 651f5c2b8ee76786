"""Helpers shared by the backends: nested values, calls of a model, and checks of names and shapes. No framework."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...errors import ArgumentError, CheckpointError, DataError, ModelError, a_type

# -- nested values


def map_tensors(value: Any, is_tensor: Callable[[Any], bool], function: Callable[[Any], Any]) -> Any:
    """Apply the function to every tensor in nested dicts, lists and tuples."""
    if is_tensor(value):
        return function(value)
    if isinstance(value, dict):
        return type(value)({key: map_tensors(inner, is_tensor, function) for key, inner in value.items()})
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(map_tensors(inner, is_tensor, function) for inner in value)
    return value


def split(value: Any, parts: int, rows: int, is_array: Callable[[Any], bool]) -> list[Any]:
    """A batch split into parts along its first axis; values without that axis are in all parts."""
    edges = [rows * part // parts for part in range(parts + 1)]
    if isinstance(value, dict):
        columns = {key: split(inner, parts, rows, is_array) for key, inner in value.items()}
        return [type(value)({key: column[part] for key, column in columns.items()}) for part in range(parts)]
    if isinstance(value, (tuple, list)):
        inners = [split(inner, parts, rows, is_array) for inner in value]
        return [type(value)(column[part] for column in inners) for part in range(parts)]
    if is_array(value) and len(value.shape) > 0 and value.shape[0] == rows:
        return [value[start:end] for start, end in zip(edges, edges[1:])]
    return [value] * parts


# -- scalars


def total(values: np.ndarray) -> float:
    """The sum of scalars."""
    return float(values.sum())


# -- calls of a model


def parameter_names(function: Any) -> list[str] | None:
    """Names that a model's forward function accepts; None if it accepts anything (only *args or **kwargs)."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)] or None


def label_names(names: list[str] | None, model_name: str = "") -> list[str]:
    """Which of the parameters of a model are its labels: of one for question answering, the positions too. In any other
    they are, if it has no other labels."""
    names = names or []
    labels = [name for name in names if "label" in name]
    positions = ["start_positions", "end_positions"]
    if all(name in names for name in positions) and (not labels or "QuestionAnswering" in model_name):
        return [name for name in names if name in (*positions, *labels)]
    return labels or ["labels"]


def call(model: Callable, inputs: Any) -> Any:
    """A mapping by keyword, a tuple or list by position, anything else as the only argument."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, (list, tuple)):
        return model(*inputs)
    return model(inputs)


def explain_call(model: Any, forward: Any, is_defined: bool, inputs: Any, error: Exception) -> None:
    """Raise a ModelError if the call itself failed, rather than something inside the model."""
    name = getattr(forward, "__name__", "forward").replace("_forward_unimplemented", "forward")  # torch's own
    if not is_defined:
        raise ModelError(f"{type(model).__name__} has no {name} method. Define {name}(self, ...).") from error
    signature = inspect.signature(forward)
    named = isinstance(inputs, Mapping)
    try:
        if named:
            signature.bind(**inputs)
        else:
            signature.bind(*(inputs if isinstance(inputs, (list, tuple)) else (inputs,)))
    except TypeError as reason:
        has = f"the columns {', '.join(inputs)}" if named else f"{len(inputs)} elements without names"
        labels = [column for column in label_names(list(inputs)) if column not in signature.parameters] if named else []
        raise DataError(
            f"the model's {name} does not accept this batch: {reason}. The batch has {has}; "
            f"{type(model).__name__}.{name} accepts {', '.join(signature.parameters)}. " + _advice(str(reason), labels)
        ) from error


def _advice(reason: str, labels: list[str]) -> str:
    """What to do about a batch that a model does not accept."""
    if labels and any(f"'{label}'" in reason for label in labels):
        return (
            f"To compute the loss from the outputs and the {labels[0]}, pass criterion= (such as a cross entropy) or "
            f"compute_loss_func=. Otherwise let the model accept {labels[0]} and return its loss."
        )
    return (
        "Name the columns of the samples as the model does: with remove_unused_columns=True, columns with other names "
        "are removed before. Strings and None are not converted to arrays. Or pass a data_collator that creates such "
        "batches."
    )


# -- exports


def arrays(outputs: Any, to_numpy: Callable[[Any], Any]) -> list[Any]:
    """The outputs of a model as a flat list of arrays; to_numpy returns None for what is not a tensor."""
    array = to_numpy(outputs)
    if array is not None:
        return [array]
    values = outputs.values() if isinstance(outputs, Mapping) else outputs
    return [inner for value in values if value is not None for inner in arrays(value, to_numpy)]


def compare_outputs(expected: list[Any], found: list[Any], tolerance: float = 1e-4) -> None:
    """Raise an error if the exported model computes something else than the model."""
    close = len(expected) == len(found) and all(
        one.shape == other.shape and np.allclose(one, other, rtol=tolerance, atol=tolerance)
        for one, other in zip(expected, found)
    )
    if close:
        return
    if any(np.isnan(each).any() for each in expected if each.dtype.kind == "f"):
        raise ModelError(
            "the outputs of the model itself are NaN for the batch that the exported model is compared on: its weights "
            "are not finite, or the batch is not. Export a checkpoint from before, or correct the data."
        )
    raise ModelError(
        "the outputs of the exported model differ from the model's: its forward depends on Python values that "
        "the export has frozen. Use tensor operations there, or an input_spec with fixed sizes."
    )


# -- checkpoints


def preview(names: list[str], between: str = ", ", limit: int = 6) -> str:
    """The first names of a list and the total count, for messages."""
    return between.join(names[:limit]) + (f"{between}... ({len(names)} in all)" if len(names) > limit else "")


def check_names_and_shapes(stored: Mapping[str, Any], own: Mapping[str, Any], source: str) -> None:
    """Compare the weights of a file with those of the model; one error lists every name and shape that does not
    match."""
    problems = find_mismatch(stored, own)
    if problems is not None:
        raise CheckpointError(
            f"the weights in {source} do not match the model: {problems}. Create the model that they were saved from, "
            "or remove resume_from_checkpoint."
        )


def find_mismatch(stored: Mapping[str, Any], own: Mapping[str, Any]) -> str | None:
    """The names and shapes that do not match; None if all do."""
    missing = [name for name in own if name not in stored]
    extra = [name for name in stored if name not in own]
    shapes = [
        f"{name} has shape {tuple(stored[name].shape)}, the model expects {tuple(own[name].shape)}"
        for name in stored
        if name in own and tuple(stored[name].shape) != tuple(own[name].shape)
    ]
    shapes += [
        f"{name} is {stored[name].dtype}, the model has {own[name].dtype}"
        for name in stored
        if name in own and kind_of(stored[name]) != kind_of(own[name])
    ]
    problems = [f"missing: {preview(missing)}"] * bool(missing)
    problems += [f"not in the model: {preview(extra)}"] * bool(extra) + [preview(shapes, "; ")] * bool(shapes)
    return "; ".join(problems) or None


def kind_of(tensor: Any) -> str:
    """Whether the values of a tensor are floating-point numbers, integers, truth values or complex numbers. Within a
    kind, values are converted: the model may be in another precision than the file."""
    name = str(getattr(tensor, "dtype", "float")).lower().rpartition(".")[2]
    if name.startswith(("f", "bf")):
        return "float"
    return "bool" if "bool" in name else "complex" if name.startswith("c") else "int"


def check_optimizer_names(stored: set[str], own: set[str], source: str) -> None:
    """Compare the parameters of an optimizer state with those of this run's optimizer."""
    if stored != own:
        raise CheckpointError(
            f"the optimizer state in {source} belongs to other parameters. Only there: "
            f"{preview(sorted(stored - own)) or 'none'}; only in this run: {preview(sorted(own - stored)) or 'none'}. "
            "Use the same model and the same frozen layers, or load the weights yourself and call train() without "
            "resume_from_checkpoint."
        )


# -- optimizers


def optimizer_options(text: Any) -> dict[str, Any]:
    """optim_args with parsed values: "key=value, key=value", or a dict."""
    return {key: parse_option_value(value) for key, value in options_from_text(text).items()}


def options_from_text(text: Any) -> dict[str, str]:
    """optim_args: "key=value, key=value", or a dict."""
    if not text:
        return {}
    if isinstance(text, dict):
        return {key: str(value) for key, value in text.items()}
    pairs = [pair.strip() for pair in text.replace(" ", "").split(",") if pair.strip()]
    if any("=" not in pair for pair in pairs):
        raise ArgumentError(f"Invalid optim_args={text!r}: expected 'name=value,name=value'")
    return dict(pair.split("=", 1) for pair in pairs)


def parse_option_value(text: str) -> Any:
    """A value of optim_args: a bool, None, a number, a tuple "(a|b)", or a string."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.lower() == "none":
        return None
    if text.startswith("(") and text.endswith(")"):
        return tuple(parse_option_value(part) for part in text[1:-1].split("|"))
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def parameter_groups(
    named: list[tuple[str, Any]], decay: set[str], weight_decay: float, always_two: bool = False
) -> list[dict[str, Any]]:
    """Two groups: with and without weight decay.

    Empty ones are dropped, and without decay there is only one, which is faster; unless `always_two`.
    """
    if not weight_decay and not always_two:
        return [{"params": [p for _, p in named], "weight_decay": 0.0}]
    groups = [
        {"params": [p for name, p in named if name in decay], "weight_decay": weight_decay},
        {"params": [p for name, p in named if name not in decay], "weight_decay": 0.0},
    ]
    return [group for group in groups if always_two or group["params"]]


def joined_groups(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups without empty ones; those with the same options are one."""
    joined: list[dict[str, Any]] = []
    for group in filter(lambda each: each["params"], groups):
        options = {key: value for key, value in group.items() if key != "params"}
        same = next((each for each in joined if {**each, "params": None} == {**options, "params": None}), None)
        if same is None:
            joined.append({"params": list(group["params"])} | options)
        else:
            same["params"].extend(group["params"])
    return joined


def is_factory(value: Any) -> bool:
    """Whether this is an optimizer factory: called without arguments it returns a function
    of the model and the options, which returns the optimizer. A class whose instances are such functions, or a function
    without required parameters; optimizers of MindSpore can be called as well, but have a construct method."""
    if isinstance(value, type):
        return any("__call__" in vars(cls) for cls in value.__mro__) and not (
            hasattr(value, "step") or hasattr(value, "construct")
        )
    if not inspect.isroutine(value):
        return False
    parameters = inspect.signature(value).parameters.values()
    return all(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


def from_factory(factory: Any, model: Any, options: dict[str, Any], is_optimizer: Callable[[Any], bool]) -> Any:
    """The optimizer of a factory."""
    optimizer = factory()(model, **options)
    if not is_optimizer(optimizer):
        raise ArgumentError(
            f"the optimizer factory {getattr(factory, '__name__', factory)} returned {a_type(optimizer)}; "
            "expected an optimizer over the model's parameters."
        )
    return optimizer


def given_groups(options: dict[str, Any]) -> tuple[list[dict[str, Any]] | None, dict[str, Any]]:
    """The parameter groups that the options of an optimizer contain (None: they contain none), and the other options.

    Three names are in use for them, the last of which counts.
    """
    options, given = dict(options), None
    for name in ("params", "model", "optimizer_dict"):
        given = options.pop(name, given)
    if given is None:
        return None, options
    parameters = given.parameters() if hasattr(given, "parameters") else given
    groups = list(parameters)
    if not groups or not isinstance(groups[0], dict):
        groups = [{"params": groups}]
    return [{"weight_decay": 0.0} | group | {"params": list(group["params"])} for group in groups], options
