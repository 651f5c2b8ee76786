"""Reads checkpoints of transformers' Trainer: the only place where a pickled file is opened, and only as plain data.

Its optimizer state is numbered by position in the parameter groups; converters/parameter_groups.py finds the names.
Checkpoints that processes wrote in parts have names (converters/named_state.py); of these, a process whose model is
divided reads only what it has.
"""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ...converters import other_trainers, parameter_groups, transformers_checkpoint
from ...converters.named_state import NamedState
from ...converters.parameter_groups import Loaded
from ...converters.stored_tensors import Tensor
from ...errors import CheckpointError, a_type
from ...formats.reading import open_file, restoring
from ...formats.safetensors_io import Raw, numpy_type
from .._common.helpers import preview
from . import adapters, shards, weights
from .divided_state import DividedState
from .models import is_adapter, unwrap
from .zero_state import shape_of

LOADS_SHARDED = True
SAFE_SINCE = (2, 6)  # torch.load(weights_only=True) of older releases can be made to execute code (CVE-2025-32434)

# What NumPy's arrays are pickled with, by releases 1 and 2: rng_state.pth has one.
_RECONSTRUCT: Any = np.zeros(0).__reduce__()[0]
_OF_ARRAYS: list[Any] = [np.ndarray, np.dtype, type(np.dtype(np.uint32))]
_OF_ARRAYS += [(_RECONSTRUCT, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
_TYPES = {name: dtype for dtype, name in weights._DTYPES.items()}
# What each optimizer keeps for a parameter; both trainers use the classes of torch.optim.
_STATES = {
    "AdamW": {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
    "SGD": {"momentum_buffer"},
    "Adagrad": {"step", "sum"},
    "RMSprop": {"step", "square_avg", "momentum_buffer", "grad_avg"},
}
# The options of a group that affect the results; the others (fused, foreach, ...) only affect the computation.
_OPTIONS = ("lr", "initial_lr", "betas", "eps", "weight_decay", "amsgrad", "momentum", "dampening", "nesterov", "alpha")


# -- files


def read(path: Path) -> Any:
    """Plain data and tensors from a file that torch.save wrote. Anything else in it is an error and is not executed."""
    release = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if release < SAFE_SINCE:
        raise CheckpointError(
            f"{path} is a pickled file, which torch {torch.__version__} cannot read safely (CVE-2025-32434). "
            "Use torch 2.6 or newer to resume from this checkpoint."
        )
    try:
        with open_file(path) as file:
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        # Without its cause: torch's own message suggests disabling the protection.
        raise CheckpointError(
            f"{path} cannot be read as plain data and tensors: {_reason(error)}. It is corrupt, or contains objects "
            "that could only be loaded by executing code, which oneloop never does. Save the checkpoint again, or "
            "start a new run from its weights."
        ) from None


def _reason(error: Exception) -> str:
    """The finding of torch, without its suggestions."""
    asked = re.search(r"(?:GLOBAL|Unsupported class) ([\w.]+)", str(error))
    if asked:
        return f"it needs {asked[1]}"
    lines = [line.strip() for line in str(error).splitlines() if "torch.load" not in line and line.strip()]
    return f"{type(error).__name__}: {lines[0][:160].rstrip('.')}" if lines else type(error).__name__


def _read_mapping(path: Path) -> dict[str, Any]:
    value = read(path)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} contains {a_type(value)} instead of a state dict")
    return value


class External(shards.Stored):
    """A tensor in parts that another library wrote, as those of oneloop's files."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.shape, self.dtype = tensor, torch.Size(tensor.shape), tensor.dtype

    def box(self, box: shards.Box) -> torch.Tensor:
        return from_raw(self.tensor.part(box))

    def full_tensor(self) -> torch.Tensor:
        return from_raw(self.tensor.raw())


def from_raw(raw: Raw) -> torch.Tensor:
    flat = torch.from_numpy(np.frombuffer(raw.data, np.uint8).copy())
    return flat.view(_TYPES[raw.dtype]).reshape(raw.shape)


def load_weights(model: nn.Module, path: Path, strategy: Any = None) -> None:
    """Load the weights of a checkpoint in any format. Tied weights may be missing or stored twice."""
    named = _named(model, path)
    if named is not None:
        _load_named_weights(model, named, path, strategy)
        return
    tensors: dict[str, torch.Tensor] = {}
    files = transformers_checkpoint.weight_files(path)
    if not files:
        raise CheckpointError(f"{path} has no weights: {' and '.join(transformers_checkpoint.WEIGHTS[:2])} are missing")
    for file in files:
        values = weights.load_tensors(file) if file.suffix == ".safetensors" else _read_mapping(file)
        tensors |= {str(name): value for name, value in values.items() if isinstance(value, torch.Tensor)}
    if is_adapter(unwrap(model)):
        adapters.load(unwrap(model), tensors)
        return
    own = unwrap(model).state_dict()
    tensors = {name: value for name, value in tensors.items() if name in own or not _is_table(name, value)}
    try:
        (strategy or weights).load_model(model, tensors, {}, str(path))
    except CheckpointError:
        if any(file.suffix != ".safetensors" for file in files) or not _load_renamed(unwrap(model), path):
            raise


def _named(model: nn.Module, path: Path) -> NamedState | None:
    """The state of a checkpoint by the names of this model; None for files that are read whole."""
    named = other_trainers.named_state(path)
    trained = {name for name, p in unwrap(model).named_parameters() if p.requires_grad}
    return None if named is None else named.named_as(trained, str(path))


def _load_named_weights(model: nn.Module, named: NamedState, path: Path, strategy: Any) -> None:
    """Load weights that are stored in parts; of an adapter, what is trained and what else is there."""
    base = unwrap(model)
    own = base.state_dict()
    tables = {
        name for name, value in named.weights.items() if value.dtype.startswith(("I", "U", "BOOL")) and name not in own
    }
    tensors: dict[str, Any] = {name: External(value) for name, value in named.weights.items() if name not in tables}
    tensors = {name: value for name, value in tensors.items() if name in own or not _is_table(name, None)}
    if is_adapter(base):
        trained = {name for name, p in base.named_parameters() if p.requires_grad}
        tensors = _with_own_names(base, tensors)
        missing = sorted(trained - set(tensors))
        if missing:
            raise CheckpointError(
                f"{path} has no weights for {preview(missing)}, which this run trains. Use the adapter and its name as "
                "in the run that wrote it."
            )
        # The weights of the base model are those that it was created with, unless the checkpoint has them.
        tensors = {name: value for name, value in own.items() if isinstance(value, torch.Tensor)} | tensors
    _check_sizes(tensors, own, path)
    if not _takes_boxes(strategy, model):
        tensors = {n: value.full_tensor() if isinstance(value, External) else value for n, value in tensors.items()}
    (strategy or weights).load_model(model, tensors, {}, str(path))


def _with_own_names(model: nn.Module, tensors: dict[str, Any]) -> dict[str, Any]:
    """Files that have an adapter alone have the names of its own files, without that of the adapter."""
    own = {key: name for adapter in adapters.stored(model) for key, name in adapters.keys_of(model, adapter).items()}
    return {own[key] if key in own and own[key] not in tensors else key: value for key, value in tensors.items()}


def _check_sizes(tensors: dict[str, Any], own: dict[str, Any], path: Path) -> None:
    """Before anything is read: many names can have the same bytes of a file. What the model does not have, which some
    models know how to load, is not more than the files have."""
    strange = {
        name: value
        for name, value in tensors.items()
        if isinstance(value, External) and (name not in own or tuple(own[name].shape) != tuple(value.shape))
    }
    size = sum(math.prod(value.shape) * numpy_type(value.dtype).itemsize for value in strange.values())
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    stored = sum(file.stat().st_size for file in files)
    if size > stored:
        raise CheckpointError(
            f"{path} has {len(strange)} tensors that the model does not have, such as {preview(sorted(strange))}: they "
            f"would take {size} bytes, and its files have {stored}. Use the model of the run that wrote it."
        )


def _load_renamed(model: nn.Module, path: Path) -> bool:
    """transformers 5 writes some models, mostly mixtures of experts, with names and shapes of earlier releases, which
    only its own loader can read. Returns whether it could."""
    known = (base for base in type(model).__mro__ if base.__module__ == "transformers.modeling_utils")
    if not any(base.__name__ == "PreTrainedModel" for base in known):
        return False
    loaded, info = type(model).from_pretrained(
        str(path), config=model.config, local_files_only=True, output_loading_info=True
    )
    values, own = loaded.state_dict(), model.state_dict()
    if any(info.values()) or {n: v.shape for n, v in values.items()} != {n: v.shape for n, v in own.items()}:
        return False
    model.load_state_dict(values)
    return True


def _is_table(name: str, value: torch.Tensor | None) -> bool:
    """Buffers that older releases of transformers stored and newer ones compute; they are not trained."""
    return (value is not None and not value.is_floating_point()) or name.endswith((".masked_bias", ".inv_freq"))


def scheduler_state(path: Path) -> dict[str, Any]:
    """The state of a torch scheduler: `last_epoch` is the number of its steps."""
    named = other_trainers.named_state(path)
    if named is not None and not (path / transformers_checkpoint.SCHEDULER).is_file():
        if named.scheduler is None and named.step is None:
            raise CheckpointError(f"{path} has no state of a scheduler: {transformers_checkpoint.SCHEDULER} is missing")
        state = named.scheduler or {"last_epoch": named.step}
    else:
        state = _read_mapping(path / transformers_checkpoint.SCHEDULER)
    position = state.get("last_epoch")
    if not isinstance(position, int) or position < 0:
        raise CheckpointError(
            f"{path / transformers_checkpoint.SCHEDULER} has no last_epoch; it is not the state of a scheduler"
        )
    return state


def scaler_state(path: Path) -> dict[str, Any] | None:
    """The state of the loss scaler; None if the run had none."""
    named = other_trainers.named_state(path)
    if named is not None and named.scaler is not None:
        return dict(named.scaler)
    if not (path / transformers_checkpoint.SCALER).is_file():
        return None
    state = _read_mapping(path / transformers_checkpoint.SCALER)
    with restoring("the loss scaler", path):
        return {str(key): value.item() if isinstance(value, torch.Tensor) else value for key, value in state.items()}


def random_state(path: Path, rank: int, processes: int) -> tuple[Any, Any, dict[str, np.ndarray]] | None:
    """The RNG state of a process: of Python, NumPy and torch; None without a file for it."""
    file = path / ("rng_state.pth" if processes == 1 else f"rng_state_{rank}.pth")
    if not file.is_file():
        return None
    with torch.serialization.safe_globals(_OF_ARRAYS):
        state = _read_mapping(file)
    try:
        of_python, of_numpy = state["python"], state["numpy"]
        of_torch = {"torch.cpu": state["cpu"].numpy()}
        cuda = state.get("cuda")
        if cuda is not None and torch.cuda.is_available():  # of all devices, or of the only one that was used
            devices = {torch.cuda.current_device(): cuda} if isinstance(cuda, torch.Tensor) else dict(enumerate(cuda))
            of_torch |= {f"torch.cuda.{i}": each.numpy() for i, each in devices.items()}
        _, words, _ = of_python
        _, keys, *_ = of_numpy
        if len(words) != 625 or np.shape(keys) != (624,):
            raise ValueError("not a Mersenne Twister")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{file} is not the RNG state of transformers' Trainer: {error!r}") from error
    return of_python, of_numpy, of_torch


# -- optimizer


def load_optimizer(optimizer: Any, model: nn.Module, path: Path, strategy: Any = None) -> Loaded:
    """Load the state of a checkpoint into the run's optimizer, parameter by parameter."""
    file = path / transformers_checkpoint.OPTIMIZER
    # With a strategy that shards, the optimizer is wrapped, and its groups are those of the whole model.
    _, described = (strategy or weights).optimizer_state(optimizer, model)
    inner = getattr(optimizer, "optim", optimizer)
    kind = next((cls.__name__ for cls in type(inner).__mro__ if cls.__name__ in _STATES), described["class"])
    if kind not in _STATES:
        raise CheckpointError(
            f"this run's optimizer is {described['class']}; from a checkpoint of another trainer only the states of "
            f"{', '.join(_STATES)} can be loaded. Use the optimizer that the checkpoint was written with, if it is one "
            "of them, or start a new run from its weights."
        )
    named = _named(model, path)
    stored = _read_mapping(file) if named is None else _with_external(named.numbered())
    source = str(file if named is None else path)
    states, groups = _check(stored, source, kind, _STATES[kind])
    parameters = {name: p for name, p in unwrap(model).named_parameters() if p.requires_grad}
    own = [group["names"] for group in described["groups"]]
    rule, members = _find_groups(own, model, states, groups, source)
    home = {name: i for i, names in enumerate(members) for name in names if name in parameters}
    number = {name: n for names, group in zip(members, groups) for name, n in zip(names, group["params"])}
    tensors: dict[str, Any] = {}
    by_box = _takes_boxes(strategy, model)
    for name in home:
        for key, value in states.get(number[name], {}).items():
            if value is not None:
                # DeepSpeed updates float32 copies of weights in half precision.
                dtype = torch.float32 if getattr(strategy, "half", None) else parameters[name].dtype
                kept = _as_kept(key, value, dtype)
                is_whole = isinstance(kept, External) and not by_box
                tensors[f"{name}:{key}"] = kept.full_tensor() if is_whole else kept
    outside = sorted(name for names in own for name in names if name not in home)
    if outside:
        raise CheckpointError(f"{source} has no state for {preview(outside)}, which this run's optimizer trains")
    # LoRA leaves the group without weight decay empty; it corresponds to the empty group at its place in the file.
    empty = [{i} if i < len(groups) and not groups[i]["params"] else set() for i in range(len(own))]
    sources = [{home[name] for name in names} or empty[i] for i, names in enumerate(own)]
    options = [_agreed([groups[i] for i in sorted(of)]) for of in sources]
    data = [{"names": names} | each for names, each in zip(own, options)]
    (strategy or weights).load_optimizer(optimizer, model, tensors, {"groups": data, "values": {}}, source)
    decay = {
        name: (
            float(groups[home[name]].get("weight_decay", 0.0)),
            float(each.get("weight_decay", group.get("weight_decay", 0.0))),
        )
        for names, each, group in zip(own, options, described["groups"])
        for name in names
    }
    return Loaded(rule, sources, {name: (old, new) for name, (old, new) in decay.items() if old != new})


def _takes_boxes(strategy: Any, model: nn.Module) -> bool:
    """Whether this process has boxes of the model's tensors, and so needs only these."""
    return isinstance(strategy, DividedState) and strategy.is_divided(model)


def _with_external(data: dict[str, Any]) -> dict[str, Any]:
    """The same with tensors of torch's kind, which are not read yet."""
    states = {
        n: {key: External(value) if isinstance(value, Tensor) else value for key, value in state.items()}
        for n, state in data["state"].items()
    }
    return data | {"state": states}


def _check(data: dict[str, Any], file: str, kind: str, known: set[str]) -> tuple[dict[int, dict], list[dict]]:
    """The state and the groups in the file, after checking their format."""
    states: Any = data.get("state")
    groups: Any = data.get("param_groups")
    form = isinstance(states, dict) and isinstance(groups, list) and all(isinstance(g, dict) for g in groups)
    form = form and all(isinstance(state, dict) and all(map(_is_value, state.items())) for state in states.values())
    form = form and all(_is_option(group[key]) for group in groups for key in _OPTIONS if key in group)
    form = form and all(isinstance(g.get("params"), list) and all(type(n) is int for n in g["params"]) for g in groups)
    numbers = [n for group in groups for n in group["params"]] if form else []
    if not form or len(set(numbers)) != len(numbers) or not set(states) <= set(numbers):
        raise CheckpointError(f"{file} is not the state of a torch optimizer")
    kept = {str(key) for state in states.values() for key, value in state.items() if value is not None}
    needed = {"exp_avg", "exp_avg_sq"} if kind == "AdamW" and states else set()
    if not kept <= known or not needed <= kept:
        raise CheckpointError(
            f"{file} is the state of another optimizer: it has {', '.join(sorted(kept))}; this run's {kind} has "
            f"{', '.join(sorted(known))}. Set optim to the optimizer that the checkpoint was written with."
        )
    return states, groups


def _is_value(item: tuple[Any, Any]) -> bool:
    key, value = item
    if key == "step":
        return (isinstance(value, torch.Tensor) and value.numel() == 1) or isinstance(value, (int, float))
    return value is None or isinstance(value, (torch.Tensor, External))


def _is_option(value: Any) -> bool:
    parts = value if isinstance(value, (tuple, list)) else [value]
    return all(isinstance(part, (int, float, type(None), torch.Tensor)) for part in parts)


def _as_kept(key: str, value: Any, dtype: torch.dtype) -> Any:
    """Moments in the dtype of their parameter, as in torch. Older releases counted steps as integers."""
    if key == "step":
        return torch.tensor(float(value))
    if isinstance(value, External):
        if _TYPES[value.dtype] == dtype or not value.dtype.startswith(("F", "BF")):
            return value
        value = value.full_tensor()
    return value.to(dtype) if value.is_floating_point() else value


def _agreed(groups: list[dict[str, Any]]) -> dict[str, Any]:
    """The options that all these groups have in common."""
    if not groups:
        return {}
    first = groups[0]
    same = [key for key in _OPTIONS if key in first and all(g.get(key) == first[key] for g in groups)]
    return {key: first[key] for key in same if not isinstance(first[key], torch.Tensor)}


def _find_groups(
    own: list[list[str]], model: nn.Module, states: dict[int, dict], groups: list[dict], source: str
) -> tuple[str, list[list[str]]]:
    """The rule by which the groups were created, and the names in each group."""
    candidates: Any = [("the names in the file", [group.get("param_names") for group in groups])]
    if not all(isinstance(names, list) for names in candidates[0][1]):
        candidates = parameter_groups.candidates(_described(unwrap(model)), keep_empty=len(groups) == 2)
        candidates += [("the groups of this run", own)]
    kept = {
        number: {key: tuple(v.shape) for key, v in state.items() if key != "step" and hasattr(v, "shape")}
        for number, state in states.items()
    }
    shapes = {name: tuple(shape_of(p)) for name, p in unwrap(model).named_parameters()}
    return parameter_groups.choose(candidates, [group["params"] for group in groups], kept, shapes, source)


def _described(model: nn.Module) -> list[parameter_groups.Parameter]:
    """The parameters in the order of the model, with the classes of their modules."""
    classes: dict[str, set[type]] = {}
    for prefix, module in model.named_modules():
        if prefix:
            for name, _ in module.named_parameters(prefix=prefix, remove_duplicate=False):
                classes.setdefault(name, set()).add(type(module))
    return [
        parameter_groups.Parameter(
            name,
            p.requires_grad,
            in_layer_norm=any(issubclass(cls, nn.LayerNorm) for cls in classes.get(name, ())),
            in_norm=any(cls.__name__.lower().endswith("norm") for cls in classes.get(name, ())),
        )
        for name, p in model.named_parameters()
    ]
