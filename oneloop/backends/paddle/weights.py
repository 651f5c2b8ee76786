"""Weights and optimizer state as named tensors, to and from safetensors files.

Paddle names parameters by the order of their creation, so state is stored under the names in the model.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn

from ...errors import CheckpointError
from ...formats.safetensors_io import Raw, read
from ...formats.schema import check, number, record
from ...formats.structure import WEIGHTS
from .._common import optimizer_checks as checks
from .._common.helpers import check_names_and_shapes, find_mismatch, kind_of
from . import adapters
from .models import unwrap
from .optimizers import attached_schedule, groups

LAYOUT = "np"  # the only value that every from_pretrained of Paddle's models accepts; there are some that reject "pd"


_MASTER = "master_weight"
# Options that optimizers keep under these names with an underscore, and groups by themselves.
_OPTIONS = ("beta1", "beta2", "epsilon", "momentum", "use_nesterov", "rho", "centered", "lazy_mode", "amsgrad")

_DTYPES = {
    paddle.float64: "F64",
    paddle.float32: "F32",
    paddle.float16: "F16",
    paddle.bfloat16: "BF16",
    paddle.float8_e4m3fn: "F8_E4M3",
    paddle.float8_e5m2: "F8_E5M2",
    paddle.int64: "I64",
    paddle.int32: "I32",
    paddle.int16: "I16",
    paddle.int8: "I8",
    paddle.uint8: "U8",
    paddle.bool: "BOOL",
}
_BY_NAME = {name: dtype for dtype, name in _DTYPES.items()}
_WITHOUT_NUMPY = {
    paddle.bfloat16: paddle.int16,
    paddle.float8_e4m3fn: paddle.int8,
    paddle.float8_e5m2: paddle.int8,
}


@dataclass
class Copy:
    """The values of a tensor on the host. NumPy has no bfloat16, so the dtype is stored separately."""

    dtype: Any
    array: np.ndarray


def model_tensors(model: nn.Layer) -> tuple[dict[str, paddle.Tensor], dict[str, str]]:
    """Every weight and buffer once, and the other names of each (tied weights)."""
    adapters.warn_about_layout(unwrap(model))
    first: dict[Any, str] = {}
    tensors: dict[str, paddle.Tensor] = {}
    tied: dict[str, str] = {}
    for name, value in unwrap(model).state_dict().items():
        key = _place(value)
        if key in first:
            tied[name] = first[key]
        else:
            first[key] = name
            tensors[name] = value.detach()
    return tensors, tied


def _place(value: paddle.Tensor) -> Any:
    """The address of the values: equal for tied weights only."""
    return (value.data_ptr(), value.dtype, tuple(value.shape)) if all(value.shape) else id(value)


def copy_to(tensor: paddle.Tensor, buffer: Copy | None) -> Copy:
    """A copy on the host, in the buffer of the previous save if it fits."""
    source = _host(tensor)
    if buffer is None or buffer.array.shape != source.shape or buffer.dtype != tensor.dtype:
        buffer = empty_like_host(tensor)
    np.copyto(buffer.array, source)
    return buffer


def allows_threaded_copy(tensor: paddle.Tensor) -> bool:
    """Reading a tensor takes the GIL under a lock of Paddle's: see tensors.from_numpy."""
    return False


def empty_like_host(tensor: paddle.Tensor) -> Copy:
    """An uninitialised buffer for copies of a tensor."""
    return Copy(tensor.dtype, np.empty_like(_host(tensor)))


def _host(tensor: paddle.Tensor) -> np.ndarray:
    """The values in host memory, without a copy."""
    tensor = tensor.detach().contiguous()
    if not tensor.place.is_cpu_place():
        return tensor.numpy()
    size = _WITHOUT_NUMPY.get(tensor.dtype)  # types that NumPy lacks are read as integers of their size
    return np.from_dlpack(tensor if size is None else tensor.view(size))


def raw(tensor: paddle.Tensor | Copy) -> Raw:
    """A tensor, or a copy of one, as the bytes to store."""
    if tensor.dtype not in _DTYPES:
        raise CheckpointError(
            f"cannot store a tensor of type {tensor.dtype} in a safetensors file; convert it to another type"
        )
    array = tensor.array if isinstance(tensor, Copy) else np.array(_host(tensor))
    return Raw(_DTYPES[tensor.dtype], tuple(array.shape), np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def load_tensors(path: Path) -> dict[str, paddle.Tensor]:
    """Copies of the tensors in a file. The safetensors library's own reader for Paddle fails on empty tensors."""
    try:
        return {name: from_raw(one) for name, one in read(path).items()}
    except Exception as error:
        raise CheckpointError(f"{path} cannot be read as safetensors: {error}") from error


def from_raw(stored: Raw) -> paddle.Tensor:
    dtype = _BY_NAME[stored.dtype]
    plain = _WITHOUT_NUMPY.get(dtype, dtype)
    array = np.frombuffer(stored.data, dtype=str(plain).removeprefix("paddle.")).reshape(stored.shape)
    tensor = paddle.to_tensor(array, place="cpu")
    return tensor if plain == dtype else tensor.view(dtype)


def load_model(model: nn.Layer, tensors: dict[str, paddle.Tensor], tied: dict[str, str], source: str) -> None:
    """Copy weights into the model; one error lists every name and shape that does not match."""
    own = unwrap(model).state_dict()
    values = tensors | {name: tensors[first] for name, first in tied.items() if first in tensors}
    # Files of other writers omit tied names without listing them.
    by_place = {_place(value): name for name, value in own.items() if name in values}
    for name, value in own.items():
        if name not in values and _place(value) in by_place:
            values[name] = values[by_place[_place(value)]]
    if find_mismatch(values, own) and type(unwrap(model)).set_state_dict is not nn.Layer.set_state_dict:
        unwrap(model).set_state_dict(values)  # a model's own may give its buffers the shapes of the file
        own = unwrap(model).state_dict()
    check_names_and_shapes(values, own, source)
    for name, target in own.items():
        assign(target, values[name])


def assign(target: paddle.Tensor, value: paddle.Tensor) -> None:
    """Copy values into a tensor, which keeps its dtype and device."""
    target.set_value(value if value.dtype == target.dtype else value.astype(target.dtype))


def save_adapter(model: nn.Layer, directory: Path, tensors: Any = None) -> None:
    """Save an adapter without its base model. It is never sharded."""
    adapters.save(unwrap(model), directory, raw, LAYOUT)


def load_adapter(model: nn.Layer, directory: Path) -> None:
    """Load the adapter from where save_adapter, or its own library, wrote it."""
    whole = directory / WEIGHTS
    if whole.is_file() and not (directory / adapters.INDEX).is_file():  # adapters used to be saved with their model
        load_model(model, load_tensors(whole), {}, str(directory))
        return
    own, values = adapters.tensors_of(unwrap(model)), adapters.read(directory, load_tensors, from_raw)
    check_names_and_shapes(values, own, str(directory))
    for name, target in own.items():
        assign(target, values[name])


# -- optimizer


def optimizer_names(optimizer: Any, model: nn.Layer) -> dict[int, str]:
    """id of a parameter -> the name of its state; includes frozen ones, which may be unfrozen later."""
    names = {id(p): name for name, p in unwrap(model).named_parameters()}
    for i, p in enumerate(p for group in groups(optimizer) for p in group["params"]):
        names.setdefault(id(p), f"parameter.{i}")
    return names


def _own(optimizer: Any, model: nn.Layer) -> tuple[list[tuple[str, Any]], dict[str, str]]:
    """The optimizer's parameters by name, and the Paddle name of each, or of its master weight."""
    if not isinstance(getattr(optimizer, "_accumulators", None), dict):
        raise CheckpointError(
            f"{type(optimizer).__name__} keeps no per-parameter state as paddle.optimizer.Optimizer does, so it "
            "cannot be stored in a checkpoint. Use save_only_model=True to save without it."
        )
    names = optimizer_names(optimizer, model)
    own = [(names[id(p)], p) for group in groups(optimizer) for p in group["params"]]
    inside = {p.name: name for name, p in own}
    inside |= {master.name: inside[name] for name, master in optimizer._master_weights.items() if name in inside}
    return own, inside


def _field(optimizer: Any, name: str) -> str:
    """The name of an accumulator without that of the optimizer, which Paddle prepends."""
    return name.removeprefix(f"{optimizer._name}_") if getattr(optimizer, "_name", None) else name


def optimizer_state(optimizer: Any, model: nn.Layer) -> tuple[dict[str, paddle.Tensor], dict[str, Any]]:
    """State by parameter name: tensors, and plain data for everything else."""
    own, inside = _own(optimizer, model)
    tensors = {
        f"{inside[place]}:{_field(optimizer, name)}": value.detach()
        for name, by_parameter in optimizer._accumulators.items()
        for place, value in by_parameter.items()
        if place in inside
    }
    tensors |= {
        f"{inside[name]}:{_MASTER}": value.detach()
        for name, value in optimizer._master_weights.items()
        if name in inside
    }
    names = {id(p): name for name, p in own}
    stored = [
        {"names": [names[id(p)] for p in group["params"]], "lr": float(optimizer.get_lr())}
        | {"weight_decay": group["weight_decay"], **_options(optimizer, group)}
        for group in groups(optimizer)
    ]
    data = {"class": type(optimizer).__name__, "groups": stored, "values": {}}
    return tensors, checks.with_stateless_parameters(data, {key.rsplit(":", 1)[0] for key in tensors})


def _options(optimizer: Any, group: dict[str, Any]) -> dict[str, Any]:
    found = {key: group.get(key, getattr(optimizer, f"_{key}", None)) for key in _OPTIONS}
    return {key: value for key, value in found.items() if isinstance(value, (int, float))}


def load_optimizer(
    optimizer: Any, model: nn.Layer, tensors: dict[str, paddle.Tensor], data: dict[str, Any], source: str
) -> None:
    """Restore state by name. Paddle creates accumulators in the first step; here they are created before."""
    own, _ = _own(optimizer, model)
    checks.check_class(data, type(optimizer), source)
    checks.check_names(data["groups"], [name for name, _ in own], source)
    checks.check_complete(data, checks.by_parameter(tensors, [name for name, _ in own], source), source)
    _check_options(optimizer, data["groups"], source)
    if optimizer._param_groups and isinstance(optimizer._param_groups[0], dict):
        names = optimizer_names(optimizer, model)
        divided = [[names[id(p)] for p in group["params"]] for group in optimizer._param_groups]
        checks.check_division(data["groups"], divided, source)
    by_name: dict[str, dict[str, paddle.Tensor]] = {}
    for key, value in tensors.items():
        name, field = key.rsplit(":", 1)
        by_name.setdefault(name, {})[field] = value
    _forget(optimizer)
    load_options(optimizer, model, data["groups"])
    _make_accumulators(optimizer, {id(p) for name, p in own if name in by_name})
    _, inside = _own(optimizer, model)
    for name, by_parameter in optimizer._accumulators.items():
        for place, target in by_parameter.items():
            field = _field(optimizer, name)
            if field not in by_name[inside[place]]:
                raise CheckpointError(
                    f"{source} is the state of another optimizer: it has {', '.join(sorted(by_name[inside[place]]))} "
                    f"for {inside[place]}, but this run's {type(optimizer).__name__} has {field} too. Set optim to "
                    "the optimizer that the checkpoint was written with."
                )
            value = by_name[inside[place]].pop(field)
            found, expected = ((tuple(each.shape), kind_of(each)) for each in (value, target))
            checks.check_tensor(f"{inside[place]}:{field}", found, expected, source)
            assign(target, value)
    for name, p in own:
        if p.name in optimizer._master_weights and _MASTER in by_name.get(name, {}):
            value = by_name[name].pop(_MASTER)
            found, expected = (tuple(value.shape), kind_of(value)), (tuple(p.shape), kind_of(p))
            checks.check_tensor(f"{name}:{_MASTER}", found, expected, source)
            assign(optimizer._master_weights[p.name], value)
    left = sorted({field for fields in by_name.values() for field in fields})
    if left:
        raise CheckpointError(
            f"{source} is the state of another optimizer: it has {', '.join(left)}, which this run's "
            f"{type(optimizer).__name__} does not have. Set optim to the optimizer that the checkpoint was written "
            "with."
        )


def _check_options(optimizer: Any, stored: list[dict[str, Any]], source: str) -> None:
    for group in stored:
        check(
            group,
            record({"lr": number(0), "weight_decay": number()}),
            f"a parameter group of the optimizer in {source}",
        )
    for group in groups(optimizer):
        current = _options(optimizer, group)
        for each in stored:
            checks.check_options(each, current, source)


def _forget(optimizer: Any) -> None:
    """Reset the optimizer to its state before the first step."""
    optimizer._accumulators.clear()
    optimizer._master_weights.clear()
    optimizer._already_create_accumulator.clear()


def load_options(optimizer: Any, model: nn.Layer, stored: list[dict[str, Any]]) -> None:
    """Restore the options (rates, decay, ...) of the checkpoint, regardless of the arguments."""
    if attached_schedule(optimizer) is None:
        optimizer.set_lr(float(stored[0]["lr"]))
    names = optimizer_names(optimizer, model)
    of = {name: group for group in stored for name in group["names"]}
    listed = optimizer._param_groups
    if listed and isinstance(listed[0], dict):
        for group in listed:
            source = of[names[id(group["params"][0])]]
            group |= {key: source[key] for key in _OPTIONS if key in source and key in group}
            _set_decay(group, source["weight_decay"])
        return
    for key in _OPTIONS:
        if key in stored[0] and hasattr(optimizer, f"_{key}"):
            setattr(optimizer, f"_{key}", stored[0][key])
            if key in optimizer._default_dict:
                optimizer._default_dict[key] = stored[0][key]
    if hasattr(optimizer, "_apply_decay_param_fun"):
        decayed = {p.name for p in listed if of[names[id(p)]]["weight_decay"]}
        optimizer._weight_decay = max(group["weight_decay"] for group in stored)
        optimizer._apply_decay_param_fun = frozenset(decayed).__contains__


def _set_decay(group: dict[str, Any], rate: float) -> None:
    """Set the decay of a group whose decay is an object that its parameters reference too."""
    decay: Any = group.get("weight_decay")
    if hasattr(decay, "_coeff"):
        decay._coeff = rate
    elif isinstance(decay, (int, float)):
        group["weight_decay"] = rate


def _make_accumulators(optimizer: Any, wanted: set[int]) -> None:
    """Create what the optimizer's first step would create for these parameters."""
    block = paddle.static.default_main_program().global_block()
    listed = optimizer._param_groups
    if listed and isinstance(listed[0], dict):
        for group in listed:
            optimizer._create_accumulators(block, group | {"params": [p for p in group["params"] if id(p) in wanted]})
    else:
        optimizer._create_accumulators(block, [p for p in listed if id(p) in wanted])
