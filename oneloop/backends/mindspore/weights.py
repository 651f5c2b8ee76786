"""Weights and optimizer state as named tensors, to and from safetensors files."""

from pathlib import Path
from typing import Any, NoReturn

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from safetensors.numpy import load_file

from ...errors import CheckpointError, UnsupportedError
from ...formats.safetensors_io import Raw, from_numpy, read_header
from .._common import optimizer_checks as checks
from .._common.helpers import check_names_and_shapes, kind_of, preview
from .models import unwrap
from .optimizers import is_optimizer, parameters_of

LAYOUT = "ms"


def _every_name(cell: nn.Cell) -> list[tuple[str, Any]]:
    """All weights and buffers under all their names, including tied ones."""
    found: list[tuple[str, Any]] = []

    def walk(inner: nn.Cell, prefix: str) -> None:
        for name, p in inner._params.items():
            if p is not None:
                found.append((prefix + name, p if p.inited_param is None else p.inited_param))
        for name, buffer in inner._buffers.items():
            if buffer is not None and name not in inner._non_persistent_buffers_set:
                found.append((prefix + name, buffer))
        for name, child in inner._cells.items():
            if child is not None:
                walk(child, f"{prefix}{name}.")

    walk(cell, "")
    return found


def model_tensors(model: Any) -> tuple[dict[str, ms.Tensor], dict[str, str]]:
    """Every weight and buffer once, and the other names of each (tied weights)."""
    first: dict[int, str] = {}
    tensors: dict[str, ms.Tensor] = {}
    tied: dict[str, str] = {}
    for name, value in _every_name(unwrap(model)):
        if id(value) in first:
            tied[name] = first[id(value)]
        else:
            first[id(value)] = name
            tensors[name] = value
    return tensors, tied


def copy_to(tensor: Any, buffer: np.ndarray | None) -> np.ndarray:
    """A copy on the host, in the buffer of the previous save if it fits: `asnumpy` shares the memory that the next
    update overwrites."""
    array = _host(tensor)
    if buffer is None or buffer.shape != array.shape or buffer.dtype != array.dtype:
        buffer = empty_like_host(array)
    np.copyto(buffer, array)
    return buffer


def allows_threaded_copy(tensor: Any) -> bool:
    """The training thread alone waits for the kernels that it has launched."""
    return False


def empty_like_host(tensor: Any) -> np.ndarray:
    """An uninitialised buffer for copies of a tensor."""
    array = _host(tensor)
    return np.empty(array.shape, array.dtype)


def _host(tensor: Any) -> np.ndarray:
    if isinstance(tensor, np.ndarray):
        return tensor
    if tensor.dtype == ms.bfloat16:
        raise CheckpointError("bfloat16 weights cannot be saved on MindSpore yet; train in float32 or with fp16=True.")
    return tensor.asnumpy()


def raw(tensor: Any) -> Raw:
    """A tensor on the host as the bytes to store."""
    return from_numpy(_host(tensor))


def load_tensors(path: Path) -> dict[str, np.ndarray]:
    read_header(path)  # a regular file with offsets that fit
    try:
        return load_file(str(path))
    except Exception as error:
        raise CheckpointError(f"{path} cannot be read as safetensors: {error}") from error


def put(target: Any, value: Any) -> None:
    """Write values into a tensor in place. `set_data` and `load_param_into_net` would replace its memory, and an
    optimizer that has made a step would keep updating the old one."""
    ops.assign(target, ms.Tensor(np.ascontiguousarray(_host(value)).reshape(target.shape), target.dtype))


def load_model(model: Any, tensors: dict[str, Any], tied: dict[str, str], source: str) -> None:
    """Copy weights into the model; one error lists every name and shape that does not match."""
    own = dict(_every_name(unwrap(model)))
    values = tensors | {name: tensors[first] for name, first in tied.items() if first in tensors}
    by_place = {id(value): name for name, value in own.items() if name in values}
    for name, value in own.items():  # files of other writers omit tied names
        if name not in values and id(value) in by_place:
            values[name] = values[by_place[id(value)]]
    check_names_and_shapes(values, own, source)
    for name, target in own.items():
        put(target, values[name])


def save_adapter(model: Any, directory: Path, tensors: Any = None) -> NoReturn:
    raise UnsupportedError("adapters are supported on PyTorch only, not on MindSpore.")


def load_adapter(model: Any, directory: Path) -> NoReturn:
    raise UnsupportedError("adapters are supported on PyTorch only, not on MindSpore.")


# -- optimizers


def optimizer_names(optimizer: Any, model: Any) -> dict[int, str]:
    """id of a parameter -> the name its state is stored under."""
    names = {id(p): name for name, p in unwrap(model).parameters_and_names()}
    for i, p in enumerate(parameters_of(optimizer)):
        names.setdefault(id(p), f"parameter.{i}")
    return names


def _fields(optimizer: Any, model: Any) -> dict[str, Any]:
    """Every tensor of the optimizer's state by the name it is stored under: "weight:exp_avg" for one of a parameter,
    ":state_step" for one of all parameters. Learning rates are not state: they are stored with their groups."""
    names, members = optimizer_names(optimizer, model), parameters_of(optimizer)
    known = {id(p) for p in members} | {id(rate) for rate in _rate_parameters(optimizer)}
    found: dict[str, Any] = {}
    for field, value in vars(optimizer).items():
        if isinstance(value, ms.ParameterTuple) and len(value) == len(members):
            for p, state in zip(members, value, strict=True):
                if id(state) not in known:
                    known.add(id(state))
                    found[f"{names[id(p)]}:{field}"] = state
    for name, value in optimizer._params.items():
        if value is not None and id(value) not in known:
            found[f":{name}"] = value
    return found


def _steps(optimizer: Any, model: Any, fields: dict[str, Any]) -> dict[str, int]:
    """Index of each parameter in `steps`, where our own optimizers count its updates."""
    names = optimizer_names(optimizer, model)
    if not fields or not isinstance(getattr(optimizer, "steps", None), list):
        return {}
    return {f"{names[id(p)]}:step": place for place, p in enumerate(parameters_of(optimizer))}


def _rate_parameters(optimizer: Any) -> list[ms.Parameter]:
    rates: list[Any] = list(getattr(optimizer, "lrs", None) or ())
    rates += [group["lr"] for group in getattr(optimizer, "param_groups", ())]
    rate = getattr(optimizer, "learning_rate", None)
    rates += list(rate) if isinstance(rate, (list, tuple)) else [rate]
    return [rate for rate in rates if isinstance(rate, ms.Parameter)]


def _plain(value: Any) -> Any:
    """JSON for a value of a parameter group."""
    if isinstance(value, ms.Tensor):
        return float(value.asnumpy()) if value.size == 1 else {"unsaved": "Tensor"}
    if isinstance(value, (tuple, list)):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, (int, float, str, bool, type(None))) else {"unsaved": str(type(value))}


def optimizer_state(optimizer: Any, model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """State by parameter name: tensors, and plain data for everything else."""
    if not is_optimizer(optimizer):
        raise CheckpointError(
            f"{type(optimizer).__name__} keeps no per-parameter state as MindSpore's optimizers do, so it cannot "
            "be stored in a checkpoint. Use save_only_model=True to save without it."
        )
    names = optimizer_names(optimizer, model)
    groups = getattr(optimizer, "param_groups", None) or [
        {"params": parameters_of(optimizer), "lr": optimizer.learning_rate}
    ]
    described = [
        {"names": [names[id(p)] for p in group["params"]]}
        | {key: _plain(value) for key, value in group.items() if key not in ("params", "max_exp_avg_sq")}
        for group in groups
    ]
    tensors = _fields(optimizer, model)
    counts = _steps(optimizer, model, tensors)
    tensors |= {name: np.array(optimizer.steps[place], dtype=np.float32) for name, place in counts.items()}
    return tensors, {"class": type(optimizer).__name__, "groups": described, "values": {}}


def load_optimizer(
    optimizer: Any, model: Any, tensors: dict[str, np.ndarray], data: dict[str, Any], source: str
) -> None:
    """Restore state by name, in place."""
    names = optimizer_names(optimizer, model)
    own = {names[id(p)] for p in parameters_of(optimizer)}
    checks.check_class(data, type(optimizer), source)
    checks.check_names(data["groups"], own, source)
    fields = _fields(optimizer, model)
    counts = _steps(optimizer, model, fields)
    if fields.keys() | counts.keys() != tensors.keys():
        missing, others = sorted({*fields, *counts} - {*tensors}), sorted({*tensors} - {*fields, *counts})
        raise CheckpointError(
            f"the optimizer state in {source} is not that of this run's {type(optimizer).__name__}. Missing: "
            f"{preview(missing) or 'none'}; not known: {preview(others) or 'none'}. Use the optimizer and the options "
            "that the checkpoint was written with."
        )
    for name, target in fields.items():
        found = tuple(tensors[name].shape), kind_of(tensors[name])
        checks.check_tensor(name, found, (tuple(target.shape), kind_of(target)), source)
    for name in counts:
        checks.check_count(tensors[name], name, source)
    _check_options(optimizer, names, data["groups"], source)
    for name, target in fields.items():
        put(target, tensors[name])
    for name, place in counts.items():
        optimizer.steps[place] = int(tensors[name])
    stored_groups = {name: group for group in data["groups"] for name in group["names"]}
    for group in getattr(optimizer, "param_groups", ()):
        if not group["params"]:
            continue
        for key, value in stored_groups[names[id(group["params"][0])]].items():
            if key in group and key not in ("names", "lr") and not isinstance(value, dict):
                group[key] = tuple(value) if isinstance(value, list) else value


def _check_options(optimizer: Any, names: dict[int, str], groups: list[dict[str, Any]], source: str) -> None:
    own = [[names[id(p)] for p in group["params"]] for group in getattr(optimizer, "param_groups", ())]
    checks.check_division(groups, own, source)
    stored = {name: group for group in groups for name in group["names"]}
    for group in getattr(optimizer, "param_groups", ()):
        if group["params"]:
            current = {key: _plain(value) for key, value in group.items() if key not in ("params", "max_exp_avg_sq")}
            checks.check_options(stored[names[id(group["params"][0])]], current, source)
