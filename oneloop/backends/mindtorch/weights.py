"""Weights and optimizer state as named arrays, to and from safetensors files."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ...errors import CheckpointError, a_type
from ...formats import safetensors_io as files
from ...formats.safetensors_io import Raw
from .._common import optimizer_checks as checks
from .._common.helpers import check_names_and_shapes
from ..torch import weights as torch_weights
from ..torch.weights import LAYOUT, group_options, load_adapter, model_tensors, optimizer_names, plain_options
from .models import unwrap
from .tensors import is_tensor, to_numpy, write

__all__ = [
    "LAYOUT",
    "copy_to",
    "group_options",
    "allows_threaded_copy",
    "load_adapter",
    "load_model",
    "load_optimizer",
    "load_tensors",
    "model_tensors",
    "optimizer_names",
    "optimizer_state",
    "raw",
    "empty_like_host",
    "save_adapter",
]

_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "master")


def _array(value: Any) -> np.ndarray:
    return to_numpy(value) if is_tensor(value) else np.asarray(value)


def copy_to(tensor: Any, buffer: np.ndarray | None) -> np.ndarray:
    """A copy on the host, in the buffer of the previous save if it fits."""
    array = _array(tensor)
    if buffer is None or buffer.shape != array.shape or buffer.dtype != array.dtype:
        buffer = empty_like_host(array)
    np.copyto(buffer, array)
    return buffer


def allows_threaded_copy(tensor: Any) -> bool:
    """Whether threads may copy this tensor: never, as on MindSpore."""
    return False


def empty_like_host(tensor: Any) -> np.ndarray:
    """An uninitialised buffer for copies of a tensor."""
    array = _array(tensor)
    return np.empty(array.shape, array.dtype)


def raw(tensor: Any) -> Raw:
    """A tensor as the bytes to store."""
    return files.from_numpy(_array(tensor))


def save_adapter(model: nn.Module, directory: Path, tensors: dict[str, Any] | None = None) -> None:
    """Write the files of an adapter."""
    torch_weights.save_adapter(model, directory, tensors, raw)


def load_tensors(path: Path) -> dict[str, np.ndarray]:
    """Arrays over the mapped file."""
    try:
        return {name: stored.array() for name, stored in files.read(path).items()}
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path} cannot be read as safetensors: {error}") from error


def load_model(model: nn.Module, tensors: dict[str, Any], tied: dict[str, str], source: str) -> None:
    """Copy weights into the model; one error lists every name and shape that does not match."""
    base = unwrap(model)
    values = tensors | {name: tensors[first] for name, first in tied.items() if first in tensors}
    own = {name: value for name, value in base.state_dict().items() if is_tensor(value)}
    places = {(value.data_ptr(), tuple(value.shape)): name for name, value in own.items() if name in values}
    for name, value in own.items():  # files of other writers omit tied names without listing them
        twin = places.get((value.data_ptr(), tuple(value.shape)))
        if name not in values and twin is not None:
            values[name] = values[twin]
    check_names_and_shapes(values, own, source)
    for name, value in own.items():
        write(value, _array(values[name]))


def optimizer_state(optimizer: Any, model: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """State by parameter name, and the groups as plain data."""
    names = optimizer_names(optimizer, model)
    found = {}
    for p, state in optimizer.state.items():
        for key, value in state.items():
            if not is_tensor(value) and not isinstance(value, np.ndarray):
                raise CheckpointError(
                    f"{type(optimizer).__name__} keeps {a_type(value)} under {key!r}, but a checkpoint under "
                    "mindnlp supports only arrays. Use optim='adamw_torch' or 'sgd', or save_only_model=True."
                )
            found[f"{names[id(p)]}:{key}"] = value
    data = {"class": type(optimizer).__name__, "groups": group_options(optimizer, names), "values": {}}
    return found, checks.with_stateless_parameters(data, {key.rsplit(":", 1)[0] for key in found})


def load_optimizer(optimizer: Any, model: nn.Module, tensors: dict[str, Any], data: Any, source: str) -> None:
    """Restore state by name."""
    names = optimizer_names(optimizer, model)
    by_name = {names[id(p)]: p for group in optimizer.param_groups for p in group["params"]}
    checks.check_class(data, type(optimizer), source)
    checks.check_names(data["groups"], by_name, source)
    checks.check_complete(data, checks.by_parameter(tensors, by_name, source), source)
    for key, value in tensors.items():
        name, word = key.rsplit(":", 1)
        if word == "step":
            checks.check_count(value, key, source)
        elif word in _MOMENTS:
            checks.check_tensor(key, (tuple(value.shape), None), (tuple(by_name[name].shape), None), source)
    on_host = getattr(optimizer, "holds_arrays", False)
    optimizer.state.clear()
    for key, value in tensors.items():
        name, word = key.rsplit(":", 1)
        array = np.array(_array(value), order="C")  # a copy, since the array that was read maps the file
        p = by_name[name]
        optimizer.state[p][word] = array if on_host else torch.tensor(array).to(p.device)
    stored = {name: group for group in data["groups"] for name in group["names"]}
    for group in optimizer.param_groups:
        if group["params"]:
            source_group = stored[names[id(group["params"][0])]]
            checks.check_options(source_group, plain_options(group), source)
            for key in source_group.keys() & group.keys() - {"params"}:
                value = source_group[key]
                group[key] = tuple(value) if isinstance(group[key], tuple) else value
