"""Weights and optimizer state as named tensors, to and from safetensors files."""

import contextlib
import logging
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from ...errors import CheckpointError, a_type
from ...formats.safetensors_io import Raw, read_header, write
from ...formats.schema import format_short
from ...formats.structure import is_ours
from .._common import optimizer_checks as checks
from .._common.helpers import check_names_and_shapes, find_mismatch, preview
from . import adapters, optimizer_fields, projectors, quantized_state
from .models import unwrap

logger = logging.getLogger(__name__)

LAYOUT = "pt"

_warned: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # models for whose extra state there was a warning


def model_tensors(model: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Every weight and buffer once, and the other names of each (tied weights)."""
    first: dict[tuple, str] = {}
    tensors: dict[str, torch.Tensor] = {}
    tied: dict[str, str] = {}
    base, left_out = unwrap(model), []
    for name, value in base.state_dict().items():
        if not isinstance(value, torch.Tensor):
            left_out.append(name)
            continue
        key = (value.data_ptr(), value.dtype, tuple(value.shape), tuple(value.stride())) if value.numel() else (name,)
        if key in first:
            tied[name] = first[key]
        else:
            first[key] = name
            tensors[name] = value.detach()
    if left_out and base not in _warned:
        _warned.add(base)
        logger.warning(
            "The model's state_dict has entries that are not tensors (a module's get_extra_state): %s. They are not "
            "saved, so a resumed run starts with those of a new model. Keep such state in tensors: register_buffer.",
            preview(left_out),
        )
    return tensors, tied


_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def copy_to(tensor: torch.Tensor, buffer: torch.Tensor | None) -> torch.Tensor:
    """A copy on the host, in the buffer of the previous save if it fits: `.cpu()` of a CPU tensor does not copy."""
    tensor = tensor.detach()
    if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
        buffer = empty_like_host(tensor)
    return buffer.copy_(tensor)


def allows_threaded_copy(tensor: torch.Tensor) -> bool:
    """In host memory. Each thread has a stream of its own, which does not wait for kernels that training has queued."""
    return tensor.device.type == "cpu"


def empty_like_host(tensor: torch.Tensor) -> torch.Tensor:
    """An uninitialised buffer for copies of a tensor."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)


def raw(tensor: torch.Tensor) -> Raw:
    """A tensor on the host as the bytes to store."""
    if tensor.dtype not in _DTYPES:
        raise CheckpointError(
            f"cannot store a tensor of type {tensor.dtype} in a safetensors file; convert it to another type"
        )
    flat = tensor.detach().contiguous().cpu().reshape(-1)
    return Raw(_DTYPES[tensor.dtype], tuple(tensor.shape), flat.view(torch.uint8).numpy())


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    read_header(path)  # a regular file with offsets that fit
    try:
        return load_file(str(path))
    except Exception as error:
        raise CheckpointError(f"{path} cannot be read as safetensors: {error}") from error


def load_model(model: nn.Module, tensors: dict[str, torch.Tensor], tied: dict[str, str], source: str) -> None:
    """Copy weights into the model; one error lists every name and shape that does not match. A model with its own way
    of loading is asked first: it may give its buffers the shapes of the file."""
    base = unwrap(model)
    values = tensors | {name: tensors[first] for name, first in tied.items() if first in tensors}
    own = base.state_dict()
    # Files of other writers omit tied names without listing them.
    by_place = {(v.data_ptr(), v.shape): n for n, v in own.items() if n in values and isinstance(v, torch.Tensor)}
    for name, value in own.items():
        if name not in values and isinstance(value, torch.Tensor) and value.numel():
            twin = by_place.get((value.data_ptr(), value.shape))
            if twin is not None:
                values[name] = values[twin]
    if find_mismatch(values, _tensors(own)) is None:
        base.load_state_dict(values, strict=False)
        return
    if _loads_itself(base):
        with contextlib.suppress(RuntimeError):  # a shape that it refuses as well
            base.load_state_dict(values, strict=False)
    check_names_and_shapes(values, _tensors(base.state_dict()), source)


def _tensors(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def _loads_itself(model: nn.Module) -> bool:
    """Whether the model, or one of its modules that are not torch's own, defines how its state is loaded."""
    if type(model).load_state_dict is not nn.Module.load_state_dict:
        return True
    return any(
        module._load_state_dict_pre_hooks or type(module)._load_from_state_dict is not nn.Module._load_from_state_dict
        for module in model.modules()
        if not type(module).__module__.startswith("torch.")
    )


def save_adapter(
    model: nn.Module,
    directory: Path,
    tensors: dict[str, torch.Tensor] | None = None,
    to_raw: Callable[[Any], Raw] = raw,
) -> None:
    """The model writes the files of its adapters: "default" here, each other one to a folder of its name. `tensors`: by
    name, where those of the model are sharded. What these leave out goes to a file of its own."""
    wrapped: Any = unwrap(model)
    options = {} if tensors is None else {"state_dict": tensors}
    with adapters.encoders_in_eval_mode(wrapped):
        wrapped.save_pretrained(str(directory), safe_serialization=True, **options)
    own = wrapped.state_dict() if tensors is None else tensors
    rest = {name: to_raw(own[name]) for name in adapters.names_of_rest(wrapped) if name in own}
    if rest:
        write(directory / adapters.REST, rest, {"format": LAYOUT})


def load_adapter(model: nn.Module, directory: Path, like: Callable[[Any, Any], Any] | None = None) -> None:
    """Load every adapter of the model from where save_adapter wrote it. `like(own, value)` shards a value as the tensor
    of the model is."""
    adapters.check_installed(directory)
    model = unwrap(model)
    files = _adapter_files(model, directory)
    own = model.state_dict()
    place = like or (lambda target, value: value)
    rest = load_tensors(directory / adapters.REST) if is_ours(directory, adapters.REST) else {}
    check_names_and_shapes(rest, {name: own[name] for name in rest if name in own}, str(directory / adapters.REST))
    for name, file in files.items():
        keys, tensors = adapters.keys_of(model, name), load_tensors(file)
        if not adapters.is_wrapped(model):
            tensors = {key.removeprefix(adapters.PREFIX): value for key, value in tensors.items()}
        fitting = {key: value for key, value in tensors.items() if key in keys}
        check_names_and_shapes(fitting, {key: own[of] for key, of in keys.items()}, str(file))
        tensors = {key: place(own.get(keys.get(key)), value) for key, value in tensors.items()}
        prompt = rest.get(f"prompt_encoder.{name}.embedding.weight")
        if prompt is not None:  # the file has the output of the encoder, not its weights
            tensors["prompt_embeddings"] = prompt
        adapters.load(model, tensors, name)
    if rest:
        model.load_state_dict({name: place(own[name], value) for name, value in rest.items()}, strict=False)


def _adapter_files(model: Any, directory: Path) -> dict[str, Path]:
    """The file of each adapter of the model."""
    inside = not adapters.is_wrapped(model)  # there is one, here, whatever its name
    files = {
        name: (directory if inside or name == "default" else directory / name) / "adapter_model.safetensors"
        for name in adapters.stored(model)
    }
    missing = [name for name, file in files.items() if not is_ours(directory, file.relative_to(directory).as_posix())]
    if missing:
        found = ["default"] if (directory / "adapter_model.safetensors").is_file() else []
        found += sorted(file.parent.name for file in directory.glob("*/adapter_model.safetensors"))
        raise CheckpointError(
            f"{directory} has no adapter {preview(missing)}; it has {preview(found) or 'none'}. Give the model's "
            "adapters the names under which they were saved (adapter_name of get_wrapped), or remove "
            "resume_from_checkpoint."
        )
    return files


def _plain(value: Any) -> Any:
    """JSON for a value of a parameter group; a dtype by its name."""
    if isinstance(value, torch.dtype):
        return {"torch.dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.Tensor):
        plain = value.item() if value.numel() == 1 else value.tolist()
        return {"tensor": plain, "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, (tuple, list)):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, (int, float, str, bool, type(None))) else {"unsaved": str(type(value))}


def _back(value: Any, current: Any, source: str) -> Any:
    if isinstance(value, dict) and "torch.dtype" in value:
        return _dtype(value["torch.dtype"], source)
    if isinstance(value, dict) and "tensor" in value:
        is_known = isinstance(current, torch.Tensor)
        dtype = current.dtype if is_known else _dtype(value.get("dtype"), source)
        try:
            return torch.as_tensor(value["tensor"], dtype=dtype, device=current.device if is_known else None)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise CheckpointError(
                f"a parameter group of the optimizer in {source} has a tensor that cannot be read: "
                f"{format_short(value)}"
            ) from error
    if _is_unsaved(value):
        return current
    return tuple(value) if isinstance(value, list) and isinstance(current, tuple) else value


def _is_unsaved(value: Any) -> bool:
    return isinstance(value, dict) and "unsaved" in value


def _pack(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """JSON for a value of an optimizer's state; tensors in lists, tuples and dicts are added to `tensors` by path."""
    if quantized_state.is_quantized(value):
        return quantized_state.packed(value, lambda inner, name: _pack(inner, f"{path}/{name}", tensors))
    if isinstance(value, torch.Tensor):
        tensors[path] = value.detach()
        return {"stored": path}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_pack(inner, f"{path}/{i}", tensors) for i, inner in enumerate(value)]}
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"dict": {key: _pack(inner, f"{path}/{key}", tensors) for key, inner in value.items()}}
    if projectors.is_projector(value):
        return projectors.packed(value, lambda inner, name: _pack(inner, f"{path}/{name}", tensors))
    value = value.item() if isinstance(value, np.generic) else value
    if not isinstance(value, (int, float, str, type(None), torch.dtype)):
        raise CheckpointError(
            f"the optimizer's state contains {a_type(value)} at {path!r}; expected tensors, numbers, "
            "strings, and lists, tuples and dicts of them. Use such values, or save_only_model=True."
        )
    return _plain(value)


def _unpack(value: Any, taken: dict[str, torch.Tensor], source: str) -> Any:
    """The inverse of _pack; the tensors that it needs are removed from `taken`."""
    if not isinstance(value, dict):
        return value
    kind, inner = next(iter(value.items()), (None, None))
    if kind == "stored" and isinstance(inner, str) and inner in taken:
        return taken.pop(inner)
    if kind == "torch.dtype":
        return _dtype(inner, source)
    if kind == "dict" and isinstance(inner, dict):
        return {key: _unpack(one, taken, source) for key, one in inner.items()}
    if kind in ("list", "tuple") and isinstance(inner, list):
        items = [_unpack(one, taken, source) for one in inner]
        return tuple(items) if kind == "tuple" else items
    if kind == "projector":
        return projectors.unpacked(inner, lambda one: _unpack(one, taken, source), source)
    if kind == "quantized":
        return quantized_state.unpacked(inner, lambda one: _unpack(one, taken, source), source)
    if kind in ("unsaved", "tensor"):
        return value
    raise CheckpointError(f"the optimizer state in {source} has a value that cannot be read: {format_short(value)}")


def _dtype(name: Any, source: str) -> torch.dtype:
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise CheckpointError(f"the optimizer state in {source} names the type {format_short(name)}, which torch lacks")
    return found


def optimizer_names(optimizer: Any, model: nn.Module) -> dict[int, str]:
    """id of a parameter -> the name of its state, also if it was frozen during a run."""
    names = {id(p): name for name, p in unwrap(model).named_parameters()}
    for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        names.setdefault(id(p), f"parameter.{i}")
    return names


def optimizer_state(
    optimizer: Any, model: nn.Module, names: dict[int, str] | None = None
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """State by parameter name: tensors, and plain data for the rest. `names`: if it is a part of a larger one."""
    if not isinstance(getattr(optimizer, "state", None), dict):
        raise CheckpointError(
            f"{type(optimizer).__name__} keeps no per-parameter state as torch.optim.Optimizer does, so it cannot be "
            "stored in a checkpoint. Use save_only_model=True to save without it."
        )
    names = names or optimizer_names(optimizer, model)
    tensors: dict[str, torch.Tensor] = {}
    values: dict[str, dict[str, Any]] = {}
    states = _states(optimizer)
    for p, state in states.items():
        if id(p) not in names:
            what = f"a tensor of shape {tuple(p.shape)}" if isinstance(p, torch.Tensor) else repr(p)
            raise CheckpointError(
                f"{type(optimizer).__name__} keeps state under {what}, which is not one of its parameters, but a "
                "checkpoint stores state by parameter. Keep it under a parameter or in a parameter group, or use "
                "save_only_model=True to save without it."
            )
        name = names[id(p)]
        for key, value in state.items():
            packed = _pack(value, f"{name}:{key}", tensors)
            if quantized_state.is_quantized(value) or not isinstance(value, torch.Tensor):
                values.setdefault(name, {})[key] = packed
    data = {"class": type(optimizer).__name__, "groups": group_options(optimizer, names), "values": values}
    return tensors, checks.with_stateless_parameters(data, {names[id(p)] for p, state in states.items() if state})


_OF_GROUP = "group."  # begins the name of a state that is kept in a parameter group


def _states(optimizer: Any) -> dict[Any, dict[str, Any]]:
    """The state of each parameter, with what some optimizers (GrokAdamW) keep in dicts of its group."""
    found = {p: dict(state) for p, state in optimizer.state.items()}
    for group in optimizer.param_groups:
        for key, option in group.items():
            for p, value in option.items() if _is_by_parameter(option) else ():
                found.setdefault(p, {})[f"{_OF_GROUP}{key}"] = value
    return found


def _is_by_parameter(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(key, torch.Tensor) for key in value)


def group_options(optimizer: Any, names: dict[int, str]) -> list[dict[str, Any]]:
    """The parameter groups as plain data: names in place of parameters."""
    # A schedule puts the rate it starts from into the groups, and has it in its own state too.
    usual = getattr(optimizer, "defaults", {}).get("lr")
    found = []
    for group in optimizer.param_groups:
        options = plain_options(group)
        for key, value in options.items():
            # Functions are the same in a new optimizer; the value of another object may have changed since.
            is_empty = isinstance(group[key], dict) and not group[key]
            if _is_unsaved(value) and not is_empty and not callable(group[key]):
                _warn_once(type(optimizer).__name__, key, type(group[key]).__name__)
        if isinstance(options.get("initial_lr"), float) and options["initial_lr"] == usual:
            del options["initial_lr"]
        found.append({"names": [names[id(p)] for p in group["params"]]} | options)
    return found


def plain_options(group: dict[str, Any]) -> dict[str, Any]:
    """The options of a parameter group as plain data."""
    return {key: _plain(value) for key, value in group.items() if key != "params" and not _is_by_parameter(value)}


@cache
def _warn_once(optimizer: str, key: str, kind: str) -> None:
    logger.warning(
        "The option %r in a parameter group of %s is a %s, which a checkpoint cannot store. A resumed run has the "
        "value with which the optimizer is created. Use numbers, strings, tensors, or lists of them.",
        key,
        optimizer,
        kind,
    )


def load_optimizer(
    optimizer: Any,
    model: nn.Module,
    tensors: dict[str, torch.Tensor],
    data: dict[str, Any],
    source: str,
    cls: type | None = None,
    part: set[str] | None = None,
) -> None:
    """Restore state by name. Values keep their dtype: Optimizer.load_state_dict would cast them to that of the
    weights. `cls` and `part`: the class of an optimizer that is sharded, and the parameters whose state this process
    has."""
    names = optimizer_names(optimizer, model)
    by_name = {names[id(p)]: p for group in optimizer.param_groups for p in group["params"]}
    states = checked_states(optimizer, names, tensors, data, source, cls or type(optimizer))
    on_device = {
        id(p): bool(group.get("fused") or group.get("capturable"))
        for group in optimizer.param_groups
        for p in group["params"]
    }
    optimizer.state.clear()
    for name, state in states.items():
        if state and (part is None or name in part):
            p = by_name[name]
            own = {
                key: _own_copy(value, None if key == "step" and not on_device[id(p)] else p.device)
                for key, value in state.items()
            }
            _put(optimizer, p, own)


def _put(optimizer: Any, parameter: Any, state: dict[str, Any]) -> None:
    """The inverse of _states, for one parameter."""
    own = {key: value for key, value in state.items() if not key.startswith(_OF_GROUP)}
    if own:
        optimizer.state[parameter] = own
    if len(own) < len(state):
        group = next(group for group in optimizer.param_groups if any(p is parameter for p in group["params"]))
        for key, value in state.items():
            if key.startswith(_OF_GROUP):
                group.setdefault(key.removeprefix(_OF_GROUP), {})[parameter] = value


def checked_states(
    optimizer: Any,
    names: dict[int, str],
    tensors: dict[str, torch.Tensor],
    data: dict[str, Any],
    source: str,
    cls: type,
) -> dict[str, dict[str, Any]]:
    """The state of each parameter by name, after the options of the groups were restored; an error if it does not fit
    an optimizer of this class."""
    by_name = {names[id(p)]: p for group in optimizer.param_groups for p in group["params"]}
    checks.check_class(data, cls, source)
    checks.check_names(data["groups"], by_name, source)
    _load_options(optimizer, names, data["groups"], source)
    states = _by_parameter(tensors, data.get("values", {}), by_name, source)
    checks.check_complete(data, states, source)
    optimizer_fields.check_states(optimizer, cls, states, by_name, source)
    return states


def _by_parameter(
    tensors: dict[str, torch.Tensor], values: dict[str, Any], names: Any, source: str
) -> dict[str, dict[str, Any]]:
    """The state of each parameter: tensors of the file, and what run.json has of it."""
    checks.by_parameter([*tensors, *(f"{name}:" for name in values)], names, source)
    rest = dict(tensors)
    states: dict[str, dict[str, Any]] = {name: {} for name in names}
    for name, of_name in values.items():
        states[name] = {key: _unpack(value, rest, source) for key, value in of_name.items()}
    for key, value in rest.items():  # direct values of the state
        name, field = key.rsplit(":", 1)
        states[name][field] = value
    return states


def _own_copy(value: Any, device: Any) -> Any:
    """The value with copies of its tensors, on a device or on the host: those that were read map the file, which would
    keep a deleted checkpoint on the disk."""
    if quantized_state.is_quantized(value):
        return quantized_state.mapped(value, lambda inner: _own_copy(inner, device))
    if isinstance(value, torch.Tensor):
        return value.clone() if device is None else value.to(device, copy=True)
    if isinstance(value, (list, tuple)):
        return type(value)(_own_copy(inner, device) for inner in value)
    if projectors.is_projector(value):
        return projectors.mapped(value, lambda inner: _own_copy(inner, device))
    return {key: _own_copy(inner, device) for key, inner in value.items()} if isinstance(value, dict) else value


_OF_THE_DEVICE = ("fused", "capturable")  # which kernels there are is not the same on the device that goes on


def _load_options(optimizer: Any, names: dict[int, str], groups: list[dict[str, Any]], source: str) -> None:
    """Restore the options (rates, decay, ...) of the checkpoint, regardless of the arguments."""
    checks.check_division(groups, [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups], source)
    stored_groups = {name: group for group in groups for name in group["names"]}
    for i, group in enumerate(optimizer.param_groups):
        if group["params"]:
            stored = stored_groups[names[id(group["params"][0])]]
        elif i < len(groups) and not groups[i]["names"]:  # without parameters it is known by its place
            stored = groups[i]
        else:
            continue
        checks.check_kind(stored, plain_options(group), source)
        checks.check_options(stored, plain_options(group), source)
        for key, value in stored.items():
            # An optimizer may add options when it steps (a count, in those of torch-optimi).
            if key not in ("names", "params", *_OF_THE_DEVICE) and not (key not in group and _is_unsaved(value)):
                group[key] = _back(value, group.get(key), source)
