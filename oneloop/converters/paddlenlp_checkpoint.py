"""Checkpoints that the Trainer of PaddleNLP or of its successor PaddleFormers wrote: recognised, checked and read as
named arrays. No framework.

There are three formats. The classic one has pickles: model_state.pdparams, optimizer.pdopt. The unified one has
safetensors with an index. The flex one, PaddleFormers' default, has folders of pickles for weights, optimizer and
master weights. In all of them, the scheduler and the loss scaler are pickles; in PaddleFormers, so is the state of the
Trainer.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError, a_type
from ..formats import safetensors_io
from ..formats.reading import json_object
from ..formats.safetensors_io import Raw
from ..formats.schema import anything, check, is_finite, is_integer, mapping
from ..formats.structure import check_state, read_state, weight_map
from . import plain_pickle

WRITERS = ("paddlenlp", "paddleformers")
FRAMEWORK = "paddle"
FRAMEWORKS: tuple[str, ...] = ("paddle",)
SCHEDULER, SCALER, OPTIMIZER = "scheduler.pdparams", "scaler.pdparams", "optimizer.pdopt"
UNIFIED_OPTIMIZER, MASTER_WEIGHTS = "optimizer.safetensors", "master_weights.safetensors"
ADAPTERS = ("peft_model.safetensors", "lora_model_state.pdparams", "prefix_model_state.pdparams")
WEIGHTS = ("model_state.pdparams", "model.safetensors", *ADAPTERS)
FLEX_WEIGHTS, FLEX_OPTIMIZER, FLEX_MASTER_WEIGHTS = "model_state", "optimizer_state", "master_weight"
PICKLED_STATE = "trainer_state.bin"
NAMES = "StructuredToParameterName@@"  # of a dict of tensors that paddle.save wrote: their names in Paddle

_MARKS = (OPTIMIZER, SCHEDULER, WEIGHTS[0], *ADAPTERS[1:])
_NO_TENSORS = ("LR_Scheduler", "master_weights", NAMES)
_MASTER = "fp32_master_0"  # Paddle's name of a master weight: that of the parameter and this
_STATE_CLASS = frozenset({("paddleformers.trainer.trainer_callback", "TrainerState")})
FIELDS = ("moment1", "moment2", "moment2_max", "beta1_pow_acc", "beta2_pow_acc", "velocity", "moment", "momentum")

Shapes = Mapping[str, tuple[int, ...]]


# -- recognised and checked


def wrote(path: Path) -> bool:
    """Whether a directory with a Trainer's state is one of theirs."""
    return any((path / name).is_file() for name in (*_MARKS, PICKLED_STATE)) or any(path.glob("optimizer*.pdopt"))


def writer(path: Path) -> str:
    is_later = (path / PICKLED_STATE).is_file() or "paddleformers_version" in json_object(path / "config.json")
    return WRITERS[is_later]


def version(path: Path) -> str | None:
    config = json_object(path / "config.json")
    found = config.get("paddleformers_version", config.get("paddlenlp_version"))
    return found[:40] if isinstance(found, str) else None


def problems(path: Path, contents: bool = True) -> list[str]:
    """Why a run cannot resume from it. Without `contents`, pickles are not read."""
    found = []
    for look in (_check_weights, _check_optimizer_files, _check_scheduler, _check_scaler):
        try:
            look(path, contents)
        except CheckpointError as error:
            found.append(str(error))
    try:
        state(path)
    except CheckpointError as error:
        found.append(str(error))
    return found


def _check_weights(path: Path, contents: bool) -> None:
    files = weight_files(path)
    if not files:
        raise CheckpointError(f"{WEIGHTS[0]} and {WEIGHTS[1]} are missing{_why_missing(path, 'model_state')}")
    for file in files:
        _check_file(file, contents)


def _check_optimizer_files(path: Path, contents: bool) -> None:
    if not optimizer_files(path):
        raise CheckpointError(f"{OPTIMIZER} is missing{_why_missing(path, 'optimizer')}")
    for file in optimizer_files(path):
        _check_file(file, contents)


def _check_scheduler(path: Path, contents: bool) -> None:
    _check_file(path / SCHEDULER, contents)


def _check_scaler(path: Path, contents: bool) -> None:
    if (path / SCALER).exists():
        _check_file(path / SCALER, contents)


def state(path: Path) -> dict[str, Any]:
    """The Trainer's state, if it follows the rules of trainer_state.json."""
    if not (path / PICKLED_STATE).is_file():
        return read_state(path)
    value = plain_pickle.read(path / PICKLED_STATE, _STATE_CLASS)
    return check_state(check(value, mapping(anything), PICKLED_STATE), PICKLED_STATE)


def _check_file(file: Path, contents: bool) -> None:
    if not file.is_file():
        raise CheckpointError(f"{file.name} is missing")
    if file.suffix == ".safetensors":
        safetensors_io.read_header(file)
    elif contents:
        plain_pickle.read(file)
    elif not file.stat().st_size:
        raise CheckpointError(f"{file.name} is empty")


def _why_missing(path: Path, kind: str) -> str:
    if any(path.glob(f"{kind}[._-]*.pd*")):
        return (
            " (the run was sharded or divided over processes, each of which wrote its part; write one more checkpoint "
            "with unified_checkpoint=True, which can be read)"
        )
    if kind == "optimizer":
        return " (was it saved with ignore_save_lr_and_optim=True?)"
    return ""


# -- files


def is_unified(path: Path) -> bool:
    """Whether the optimizer state is in safetensors files."""
    return bool(_files(path, UNIFIED_OPTIMIZER))


def is_flex(path: Path) -> bool:
    return (path / FLEX_OPTIMIZER).is_dir()


def weight_files(path: Path) -> list[Path]:
    """The files with the weights; empty if there are none."""
    if is_flex(path):
        return [_flex_file(path, FLEX_WEIGHTS)]
    return next((files for name in WEIGHTS if (files := _files(path, name))), [])


def optimizer_files(path: Path) -> list[Path]:
    """The files with the state of the optimizer; empty if there are none."""
    if is_flex(path):
        return [_flex_file(path, FLEX_OPTIMIZER), _flex_file(path, FLEX_MASTER_WEIGHTS)]
    if is_unified(path):
        return [*_files(path, UNIFIED_OPTIMIZER), *_files(path, MASTER_WEIGHTS)]
    return _files(path, OPTIMIZER)


def _flex_file(path: Path, folder: str) -> Path:
    found = sorted((path / folder).glob("*.distcp"))
    if not found:
        raise CheckpointError(f"{folder}/0_0.distcp is missing")
    if len(found) > 1:
        raise CheckpointError(
            f"{folder} has the parts of {len(found)} processes; write one more checkpoint with "
            "save_checkpoint_format=unified_checkpoint, which can be read"
        )
    return found[0]


def _files(path: Path, name: str) -> list[Path]:
    """A file, or those that its index names."""
    index = path / f"{name}.index.json"
    if index.is_file():
        return [path / part for part in sorted(set(weight_map(index).values()))]
    return [path / name] if (path / name).is_file() else []


def _tensors(path: Path, name: str) -> dict[str, Raw]:
    """The tensors of a safetensors file, or of several with an index, which has to name exactly these."""
    found: dict[str, Raw] = {}
    for file in _files(path, name):
        found |= safetensors_io.read(file)
    index = path / f"{name}.index.json"
    if index.is_file() and set(weight_map(index)) != set(found):
        some = ", ".join(sorted(set(weight_map(index)) ^ set(found))[:3])
        raise CheckpointError(f"{index.name} and its files do not have the same tensors: {some}")
    return {key: _raw(raw) for key, raw in found.items()}


def _mapping(path: Path) -> dict[str, Any]:
    value = plain_pickle.read(path)
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise CheckpointError(f"{path} contains {a_type(value)} instead of a state dict")
    return value


def _arrays(values: Mapping[str, Any], source: Path) -> dict[str, np.ndarray]:
    """The arrays of a state dict. Tensors outside of a dict of tensors are pairs of a name and an array."""
    found = {}
    for key, value in values.items():
        if type(value) is tuple and len(value) == 2:
            value = value[1]
        if not isinstance(value, np.ndarray):
            raise CheckpointError(f"{key!a} in {source} is not a tensor")
        found[key] = value
    return found


def _raw(value: np.ndarray | Raw) -> Raw:
    """Paddle stores bfloat16, which NumPy lacks, as unsigned integers of 16 bits, and has no such integers itself."""
    raw = safetensors_io.from_numpy(value) if isinstance(value, np.ndarray) else value
    return Raw("BF16", raw.shape, raw.data) if raw.dtype == "U16" else raw


# -- contents


def weights(path: Path, transposed: Iterable[str] = ()) -> dict[str, Raw]:
    """Weights and buffers by name. `transposed`: endings of the names of layers whose weights PaddleFormers transposes
    in safetensors files, which have the layout of PyTorch."""
    files = weight_files(path)
    if not files:
        raise CheckpointError(f"{path} has no weights: {WEIGHTS[0]} and {WEIGHTS[1]} are missing")
    if files[0].suffix == ".safetensors":
        found = _tensors(path, next(name for name in WEIGHTS if _files(path, name)))
        is_torch = safetensors_io.read_metadata(files[0]).get("format") == "pt"
        return _turned(found, transposed) if is_torch else found
    found = {}
    for file in files:
        found |= {key: _raw(array) for key, array in _pickled_tensors(file).items()}
    return found


def _pickled_tensors(file: Path) -> dict[str, np.ndarray]:
    """The tensors that paddle.save stored; its table of names lists all of them."""
    data = _mapping(file)
    table = data.pop(NAMES, {})
    missing = sorted(str(key) for key in table if key not in data) if isinstance(table, dict) else []
    if missing:
        raise CheckpointError(f"{file} is incomplete: {', '.join(missing[:3])} are missing")
    return _arrays(data, file)


def _turned(tensors: dict[str, Raw], endings: Iterable[str]) -> dict[str, Raw]:
    wanted = [re.compile(rf"(?:.*\.)?{ending}\.weight") for ending in endings]
    return {
        name: _transposed(raw)
        if len(raw.shape) == 2 and "lora" not in name and any(pattern.fullmatch(name) for pattern in wanted)
        else raw
        for name, raw in tensors.items()
    }


def _transposed(raw: Raw) -> Raw:
    array = np.ascontiguousarray(raw.array().T)
    return Raw(raw.dtype, array.shape, array.reshape(-1).view(np.uint8))


def optimizer(path: Path, shapes: Shapes) -> tuple[str, dict[str, Raw]]:
    """How the parameters were found, and the state of each as "name:field". `shapes`: the trainable parameters, in the
    order of the model."""
    if is_flex(path):
        return "the names in the file", _flex(path)
    if is_unified(path):
        return "the names in the file", _unified(path)
    return _classic(path, shapes)


def _unified(path: Path) -> dict[str, Raw]:
    """Keys such as embedding.weight/moment1_0."""
    found: dict[str, Raw] = {}
    for key, raw in _tensors(path, UNIFIED_OPTIMIZER).items():
        name, slash, field = key.rpartition("/")
        found[f"{name}:{_field(field if slash else '', path / UNIFIED_OPTIMIZER, key)}"] = raw
    for name, raw in _tensors(path, MASTER_WEIGHTS).items():
        found[f"{name}:master_weight"] = raw
    return found


def _flex(path: Path) -> dict[str, Raw]:
    """Keys such as embedding.weight.moment1_0, and embedding.weight.w_0 for master weights."""
    found: dict[str, Raw] = {}
    file, masters = optimizer_files(path)
    for key, array in _pickled_tensors(file).items():
        name, _, field = key.rpartition(".")
        found[f"{name}:{_field(field, file, key)}"] = _raw(array)
    for key, array in _pickled_tensors(masters).items():
        found[f"{key.removesuffix('.w_0')}:master_weight"] = _raw(array)
    return found


def _classic(path: Path, shapes: Shapes) -> tuple[str, dict[str, Raw]]:
    """Keys such as linear_0.w_0_moment1_0: names that Paddle gives to parameters in the order of their creation."""
    file = path / OPTIMIZER
    data = _mapping(file)
    table, masters = data.get(NAMES, {}), data.get("master_weights", {})
    if not isinstance(table, dict) or not isinstance(masters, dict):
        raise CheckpointError(f"{file} is not the state of an optimizer of Paddle")
    missing = sorted(str(key) for key in table if key not in data)
    if missing:
        raise CheckpointError(f"the optimizer state in {file} is incomplete: {', '.join(missing[:3])} are missing")
    values = _arrays({key: value for key, value in data.items() if key not in _NO_TENSORS}, file)
    split = {key: _split(key, file) for key in values}
    rule, names = _names(path, list(dict.fromkeys(own for own, _ in split.values())), values, split, shapes)
    found = {f"{names(own)}:{field}": _raw(values[key]) for key, (own, field) in split.items()}
    for own, array in _arrays({key: value for key, value in masters.items() if key != NAMES}, file).items():
        found[f"{names(own)}:master_weight"] = _raw(array)
    return rule, found


def _split(key: str, file: Path) -> tuple[str, str]:
    """The parameter's name and the field in linear_0.w_0_fp32_master_0_moment1_0."""
    for field in sorted(FIELDS, key=len, reverse=True):
        own = key.removesuffix(f"_{field}_0")
        if own != key and own:
            return own.removesuffix(f"_{_MASTER}"), field
    raise CheckpointError(
        f"{file} has {key!a}, which is no state of an optimizer that can be resumed: {', '.join(FIELDS)} are known"
    )


def _field(stored: str, file: Path, key: str) -> str:
    field = stored.removesuffix("_0")
    if field == stored or field not in FIELDS:
        raise CheckpointError(
            f"{file} has {key!a}, which is no state of an optimizer that can be resumed: {', '.join(FIELDS)} are known"
        )
    return field


def _names(
    path: Path, owners: list[str], values: Mapping[str, Any], split: Mapping[str, tuple[str, str]], shapes: Shapes
) -> tuple[str, Callable[[str], str]]:
    """From Paddle's names to those in the model: by the table that is stored with the weights; without one, by the
    order of the parameters, if all shapes agree."""
    table = _table(path)
    rule = "the names in the file"
    if not table:
        rule = "the order of the parameters"
        of = {own: tuple(values[key].shape) for key, (own, field) in split.items() if not field.endswith("_pow_acc")}
        if [of.get(own) for own in owners] != list(shapes.values()):
            raise CheckpointError(
                f"{path / OPTIMIZER} names its parameters as Paddle does, and {path.name} has no table of these names. "
                "Their order and their shapes are not those of the parameters that this model trains."
            )
        table = dict(zip(owners, shapes, strict=True))

    def name(own: str) -> str:
        if own not in table:
            raise CheckpointError(f"{path / OPTIMIZER} has state of {own!a}, which is not among the weights")
        return table[own]

    return rule, name


def _table(path: Path) -> dict[str, str]:
    """Paddle's name of each weight -> its name in the model."""
    found: dict[str, str] = {}
    for file in weight_files(path):
        stored = _mapping(file).get(NAMES, {}) if file.suffix != ".safetensors" else {}
        if not isinstance(stored, dict) or not all(isinstance(own, str) for own in stored.values()):
            raise CheckpointError(f"{NAMES} in {file} is not a table of names")
        for name, own in stored.items():
            found.setdefault(own, str(name))  # tied weights have one name in Paddle
    return found


def scheduler(path: Path) -> dict[str, Any]:
    """The state of a scheduler of Paddle: `last_epoch` is the number of its steps."""
    file = path / SCHEDULER
    state = _mapping(file)
    if not is_integer(state.get("last_epoch")) or state["last_epoch"] < 0:
        raise CheckpointError(f"{file} has no last_epoch; it is not the state of a scheduler")
    if "last_lr" in state and not (is_finite(state["last_lr"]) and state["last_lr"] >= 0):
        raise CheckpointError(f"last_lr in {file} is not a learning rate")
    return state


def scaler(path: Path) -> dict[str, Any] | None:
    """The state of the loss scaler as plain data; None if the run had none."""
    if not (path / SCALER).is_file():
        return None
    state = {key: value for key, value in _mapping(path / SCALER).items() if key != NAMES}
    plain = {key: value[1] if type(value) is tuple and len(value) == 2 else value for key, value in state.items()}
    return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in plain.items()}
