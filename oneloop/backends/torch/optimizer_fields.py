"""The state that optimizers keep for each parameter: names, shapes and types of the tensors, for the classes that
oneloop knows.

Of other classes nothing is known but the rule that a state belongs to a parameter; they check what they are given when
they use it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ... import libraries
from .._common import optimizer_checks as checks
from .._common.optimizer_checks import Kind
from . import quantized_state

Fields = dict[str, Kind | None]  # None: a number, or a tensor with one
FLOAT = str(torch.float32)


def like(p: torch.Tensor, dtype: Any = None) -> Kind:
    return tuple(p.shape), str(dtype or p.dtype)


def adam_fields(p: torch.Tensor, group: Mapping[str, Any]) -> Fields:
    fields: Fields = {"step": None, "exp_avg": like(p), "exp_avg_sq": like(p)}
    return fields | ({"max_exp_avg_sq": like(p)} if group.get("amsgrad") else {})


def _sgd(p: torch.Tensor, group: Mapping[str, Any]) -> Fields:
    return {"momentum_buffer": like(p)} if group.get("momentum") else {}


def _adagrad(p: torch.Tensor, group: Mapping[str, Any]) -> Fields:
    return {"step": None, "sum": like(p)}


def _rmsprop(p: torch.Tensor, group: Mapping[str, Any]) -> Fields:
    fields: Fields = {"step": None, "square_avg": like(p)}
    fields |= {"momentum_buffer": like(p)} if (group.get("momentum") or 0) > 0 else {}
    return fields | ({"grad_avg": like(p)} if group.get("centered") else {})


def _in_library(shapes: libraries.StateShapes) -> Callable[[torch.Tensor, Mapping[str, Any]], Fields]:
    """Of an optimizer that another library has: shapes alone are known."""

    def fields_of(p: torch.Tensor, group: Mapping[str, Any]) -> Fields:
        found = shapes(tuple(p.shape), group)
        return {key: None if shape is None else (shape, None) for key, shape in found.items()}

    return fields_of


_KNOWN: dict[str, Callable[[torch.Tensor, Mapping[str, Any]], Fields]] = {
    "torch.optim.adamw.AdamW": adam_fields,
    "torch.optim.adam.Adam": adam_fields,
    "torch.optim.sgd.SGD": _sgd,
    "torch.optim.adagrad.Adagrad": _adagrad,
    "torch.optim.rmsprop.RMSprop": _rmsprop,
}


def _known(cls: type) -> tuple[type | None, Callable[[torch.Tensor, Mapping[str, Any]], Fields] | None]:
    """The class, or its nearest base class, whose fields are known, and the function that lists them."""
    for each in cls.__mro__:
        name = f"{each.__module__}.{each.__qualname__}"
        fields_of = _KNOWN.get(name)
        if name in libraries.OPTIMIZER_STATES:
            fields_of = _in_library(libraries.OPTIMIZER_STATES[name])
        if fields_of is not None or "state_fields" in vars(each):
            return each, fields_of or each.state_fields  # type: ignore[attr-defined]
    return None, None


def check_states(
    optimizer: Any, cls: type, states: Mapping[str, Mapping[str, Any]], by_name: Mapping[str, Any], source: str
) -> None:
    """Compare the states by parameter with what this class keeps, with the options of the optimizer's groups. A
    subclass may keep other fields; those that it has in common with its base class have to fit."""
    base, fields_of = _known(cls)
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    for name, state in states.items():
        for key, value in state.items():
            if key == "step":
                checks.check_count(value, f"{name}:{key}", source)
            if quantized_state.is_quantized(value):
                shapes = tuple(value.shape), tuple(by_name[name].shape)
                checks.check_tensor(f"{name}:{key}", (shapes[0], None), (shapes[1], None), source)
        if fields_of is None or not state:
            continue
        p = by_name[name]
        expected = fields_of(p, groups[id(p)])
        if base is cls:
            checks.check_fields(name, set(state), set(expected), cls.__name__, source)
        for key, kind in expected.items():
            value = state.get(key)
            if isinstance(value, torch.Tensor):
                found = (tuple(value.shape), str(value.dtype))
                counter = ((), found[1] if value.dtype in (torch.float32, torch.float64) else FLOAT)
                checks.check_tensor(f"{name}:{key}", found, kind or counter, source)
            elif kind is not None and value is not None:
                checks.check_tensor(f"{name}:{key}", ((), type(value).__name__), kind, source)
