"""From a model's outputs to the loss of an update.

The rule for accumulation, the only one there is: **the update is that of the undivided batch**. A micro-batch weighs as
much as it has items in it: label entries that are not -100 (without the first of each row, for models that compare
position i with label i+1), or samples where there are no labels. Its mean loss enters with the weight n_j / N.

A criterion (or compute_loss_func) that says more of itself is believed. Labels equal to its `ignore_index` are no
items, in place of -100. With class weights (`weight` beside `ignore_index`, as a weighted cross entropy has them) its
mean is a weighted one, so an item counts as much as the weight of its class. With `reduction` "sum" the loss of the
update is the sum of those of its micro-batches, and nothing is divided.

A loss function that reads `num_items_in_batch` (N, the items of the whole update) is taken to have divided by it; one
that does not read it is taken to return the mean over its micro-batch. The shape of `forward` plays no part.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ModelError

NUM_ITEMS = "num_items_in_batch"


def _called(function: Any) -> Any:
    """What a call ends in: of a layer, whose own __call__ takes anything, it is forward, or construct on MindSpore."""
    forward = getattr(function, "forward", None) or getattr(function, "construct", None)
    return forward if callable(forward) else function


def _code_of(function: Any) -> Any:
    function = _called(function)
    function = inspect.unwrap(getattr(function, "__func__", function))
    while hasattr(function, "func"):  # functools.partial
        function = inspect.unwrap(function.func)
    if not hasattr(function, "__code__"):
        function = type(function).__call__
    return getattr(function, "__code__", None)


def accepts(function: Callable, name: str) -> bool:
    """Whether a function takes an argument of that name, by itself or through **kwargs."""
    try:
        parameters = inspect.signature(_called(function)).parameters
    except (TypeError, ValueError):
        return False
    return name in parameters or any(p.kind == p.VAR_KEYWORD for p in parameters.values())


def reads(function: Callable, name: str = NUM_ITEMS) -> bool:
    """Whether the body of a function uses that argument, or hands its **kwargs on."""
    code = _code_of(function)
    if code is None or not accepts(function, name):
        return False
    names = {name}
    if code.co_flags & inspect.CO_VARKEYWORDS and name not in code.co_varnames:
        count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
        names.add(code.co_varnames[count])
    return _loads(code, names)


def mentions(function: Callable, names: set[str]) -> bool:
    """Whether the body of a function uses any of these names, as a variable, an attribute or a method."""
    code = _code_of(function)
    return code is not None and _loads(code, names)


def minds_processes(function: Callable) -> bool:
    """Whether a function asks how many processes there are: what it returns is then meant for several."""
    return mentions(function, {"num_processes", "world_size", "get_world_size", "dataset_world_size"})


def _loads(code: Any, names: set[str]) -> bool:
    import dis

    for instruction in dis.get_instructions(code):
        if instruction.opname.startswith("LOAD_"):
            value = instruction.argval
            if value in names or (isinstance(value, tuple) and names & set(value)):
                return True
    return any(_loads(inner, names) for inner in code.co_consts if inspect.iscode(inner))


def setting(function: Any, name: str) -> Any:
    """What a loss function says of itself: an attribute, or a keyword of functools.partial; None when nothing."""
    value = getattr(function, name, None)
    return getattr(function, "keywords", {}).get(name) if value is None else value


def weigh_labels(labels: Any, weights: Any, ignore_index: int, shifted: bool) -> float:
    """The weights of the classes of all labels that take part in the loss, together. Labels and weights are arrays."""
    labels = labels[..., 1:] if shifted and labels.ndim > 1 else labels
    known = (labels != ignore_index) & (labels >= 0) & (labels < len(weights))  # of others the criterion will complain
    return float(weights[labels[known]].sum())


def find_loss(outputs: Any, inputs: Any) -> Any:
    """The loss in what a model returned: a dict, a tuple, an object, or the scalar itself."""
    if isinstance(outputs, Mapping):
        loss = outputs.get("loss")
    elif isinstance(outputs, (tuple, list)):
        loss = outputs[0] if outputs else None
    else:
        loss = getattr(outputs, "loss", None)
        if loss is None and hasattr(outputs, "shape"):
            loss = outputs
    if loss is None:
        names = list(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__
        given = list(inputs) if isinstance(inputs, Mapping) else type(inputs).__name__
        raise ModelError(
            f"the model returned no loss. It returned {names} for inputs {given}. Either the batch needs labels that "
            "its forward takes, or pass criterion= (a function of outputs and labels), compute_loss_func=, or "
            "override compute_loss."
        )
    if getattr(loss, "ndim", 0) != 0 and tuple(loss.shape) != (1,):
        raise ModelError(
            f"the model's first output has shape {tuple(loss.shape)}, so it is not a loss, which is one number. Pass "
            "criterion= (a function of outputs and labels), compute_loss_func=, or override compute_loss."
        )
    return loss


def logits_of(outputs: Any) -> Any:
    """What a criterion sees: the logits where outputs name them, otherwise the outputs."""
    if isinstance(outputs, Mapping):
        return outputs["logits"] if "logits" in outputs else next(iter(outputs.values()))
    if isinstance(outputs, (tuple, list)):
        return outputs[0] if len(outputs) == 1 else outputs
    return getattr(outputs, "logits", outputs)


def split_labels(inputs: Any, label_names: list[str]) -> tuple[Any, Any]:
    """Inputs without their labels, and the labels: one, or a tuple in the order of the names."""
    if isinstance(inputs, Mapping):
        names = [name for name in label_names if name in inputs]
        rest: Any = {key: value for key, value in inputs.items() if key not in names}
        labels = tuple(inputs[name] for name in names)
        return rest, (labels[0] if len(labels) == 1 else labels or None)
    if isinstance(inputs, (tuple, list)) and len(inputs) > 1:
        rest = inputs[:-1]
        return (rest[0] if len(rest) == 1 else rest), inputs[-1]
    return inputs, None
