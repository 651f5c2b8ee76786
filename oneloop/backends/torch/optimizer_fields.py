"""What optimizers keep for each parameter: names, shapes and types of the tensors, for the classes that oneloop knows.

Of other classes nothing is known but the rule that a state belongs to a parameter; they check what they are given when
they use it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from .._common import optimizer_checks as checks
from .._common.optimizer_checks import Kind
from . import quantized_state

Fields = dict[str, Kind | None]  # None: a number, or a tensor with one


def _like(p: torch.Tensor, dtype: Any = None) -> Kind:
    return tuple(p.shape), str(dtype or p.dtype)


def _adam(p: torch.Tensor, group: Mapping[str, Any]) -> Fields:
    fields: Fields = {"step": None, "exp_avg": _like(p), "exp_avg_sq": _like(p)}
    return fields | ({"max_exp_avg_sq": _like(p)} if group.get("amsgrad") else {})


def _sgd(p: torch.Tensor, group: Mapping[str, Any]) -> Fields:
    return {"momentum_buffer": _like(p)} if group.get("momentum") else {}


def _adagrad(p: torch.Tensor, group: Mapping[str, Any]) -> Fields:
    return {"step": None, "sum": _like(p)}


def _rmsprop(p: torch.Tensor, group: Mapping[str, Any]) -> Fields:
    fields: Fields = {"step": None, "square_avg": _like(p)}
    fields |= {"momentum_buffer": _like(p)} if (group.get("momentum") or 0) > 0 else {}
    return fields | ({"grad_avg": _like(p)} if group.get("centered") else {})


def _adafactor(p: torch.Tensor, group: Mapping[str, Any]) -> Fields:
    shape = tuple(p.shape)
    fields: Fields = {"step": None}
    if len(shape) > 1:
        fields |= {"row_var": ((*shape[:-1], 1), _FLOAT), "col_var": ((*shape[:-2], 1, shape[-1]), _FLOAT)}
    else:
        fields["variance"] = (shape, _FLOAT)
    return fields | ({"exp_avg": (shape, _FLOAT)} if (group.get("beta1") or 0) > 0 else {})


def _adafactor_of_transformers(p: torch.Tensor, group: Mapping[str, Any]) -> Fields:
    shape = tuple(p.shape)
    fields: Fields = {"step": None, "RMS": None}
    if len(shape) > 1:
        fields |= {"exp_avg_sq_row": (shape[:-1], None), "exp_avg_sq_col": ((*shape[:-2], shape[-1]), None)}
    else:
        fields["exp_avg_sq"] = (shape, None)
    return fields | ({"exp_avg": (shape, None)} if group.get("beta1") is not None else {})


def _anyprecision(p: torch.Tensor, group: Mapping[str, Any]) -> Fields:
    fields: Fields = {
        "step": None,
        "exp_avg": _like(p, group["momentum_dtype"]),
        "exp_avg_sq": _like(p, group["variance_dtype"]),
    }
    extra = {"compensation": _like(p, group["compensation_buffer_dtype"])}
    return fields | (extra if group.get("use_kahan_summation") else {})


def _muon(p: torch.Tensor, group: Mapping[str, Any]) -> Fields:
    return {"momentum_buffer": _like(p)} if group.get("use_muon") else _adam(p, group)


_FLOAT = str(torch.float32)
_KNOWN: dict[str, Callable[[torch.Tensor, Mapping[str, Any]], Fields]] = {
    "torch.optim.adamw.AdamW": _adam,
    "torch.optim.adam.Adam": _adam,
    "torch.optim.sgd.SGD": _sgd,
    "torch.optim.adagrad.Adagrad": _adagrad,
    "torch.optim.rmsprop.RMSprop": _rmsprop,
    "oneloop.backends.torch.adafactor.Adafactor": _adafactor,
    "oneloop.backends.torch.anyprecision.AnyPrecisionAdamW": _anyprecision,
    "oneloop.backends.torch.muon.MuonWithAdamW": _muon,
    "transformers.optimization.Adafactor": _adafactor_of_transformers,
}


def check_states(
    optimizer: Any, cls: type, states: Mapping[str, Mapping[str, Any]], by_name: Mapping[str, Any], source: str
) -> None:
    """Compare the states by parameter with what this class keeps, with the options of the optimizer's groups. A
    subclass may keep other fields; those that it has in common with its base class have to fit."""
    base, fields_of = next(
        ((each, _KNOWN[name]) for each in cls.__mro__ if (name := f"{each.__module__}.{each.__qualname__}") in _KNOWN),
        (None, None),
    )
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
                counter = ((), found[1] if value.dtype in (torch.float32, torch.float64) else _FLOAT)
                checks.check_tensor(f"{name}:{key}", found, kind or counter, source)
            elif kind is not None and value is not None:
                checks.check_tensor(f"{name}:{key}", ((), type(value).__name__), kind, source)
