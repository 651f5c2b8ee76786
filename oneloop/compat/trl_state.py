"""What TRL's trainers keep in memory between steps, in checkpoints: transformers' Trainer loses it on a resume.

Online trainers (GRPO, RLOO) generate completions for several updates at once, so that a checkpoint may lie within a
round of them. All trainers collect metrics until the next log. The reference model changes with sync_ref_model.

Structures are stored as JSON in run.json, their tensors in random.safetensors, both for each process.
"""

import logging
import math
from collections import defaultdict, deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint.run_state import ATTRIBUTES, RANDOM
from ..checkpoint.safetensors_io import read

if TYPE_CHECKING:
    from ..trainer.internals import Internals

logger = logging.getLogger(__name__)

_STEP = "_step"  # micro-batches so far
_NAMES = (_STEP, "_metrics", "_logs", "_total_train_tokens", "entropy_coef", "_last_world_entropy")
_ROUND = "_buffered_inputs"  # the completions of a round, by micro-batch
_REFERENCE = f"{ATTRIBUTES}ref_model/"


class _NotStored(Exception):
    """A value that is neither plain nor a tensor."""


def collect(core: "Internals") -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """The attributes of this process as JSON, and their tensors as arrays by name; (None, {}) for other trainers."""
    trainer = core.trainer
    if not any(base.__module__.partition(".")[0] == "trl" for base in type(trainer).__mro__):
        return None, {}
    arrays: dict[str, Any] = {}
    stored: dict[str, Any] = {}
    names = [name for name in _NAMES if hasattr(trainer, name)]
    for name in [*names, _ROUND] if _is_within_round(trainer) else names:
        added: dict[str, Any] = {}
        try:
            stored[name] = _encoded(getattr(trainer, name), f"{ATTRIBUTES}{name}", added, core.backend.tensors)
        except _NotStored as error:
            _warn(core, name, str(error))
        else:
            arrays |= added
    if core.processes.is_main and (model := _moving_reference(core)) is not None:
        arrays |= {f"{_REFERENCE}{name}": core.backend.tensors.to_numpy(t) for name, t in model.state_dict().items()}
    return stored, arrays


def restore(core: "Internals", stored: dict[str, Any], arrays: dict[str, Any], path: Path) -> None:
    """Assign the attributes that were stored. Containers of the Trainer are filled, so that they keep their types."""
    trainer = core.trainer
    for name, value in stored.items():
        if name == _ROUND or hasattr(trainer, name):
            decoded = _decoded(value, arrays, core)
            setattr(trainer, name, _filled(getattr(trainer, name, None), decoded))
    if (model := _moving_reference(core)) is None:
        return
    found = {name: raw.array() for name, raw in read(path / RANDOM).items() if name.startswith(_REFERENCE)}
    tensors = {name.removeprefix(_REFERENCE): core.backend.tensors.from_numpy(array) for name, array in found.items()}
    if tensors:
        model.load_state_dict(tensors)


def _is_within_round(trainer: Any) -> bool:
    """Whether the next update uses completions that have been generated."""
    if getattr(trainer, _ROUND, None) is None:
        return False
    return getattr(trainer, _STEP) % (trainer.args.steps_per_generation * trainer.num_iterations) != 0


def _moving_reference(core: "Internals") -> Any:
    """The reference model if it follows the model, and None if it does not change. Sharded, it is not stored."""
    trainer = core.trainer
    if not getattr(trainer.args, "sync_ref_model", False) or core.strategy.in_parts:
        return None
    model = getattr(trainer, "ref_model", None)
    return None if model is None else core.backend.models.unwrap(model)


def _warn(core: "Internals", name: str, what: str) -> None:
    if not core.run.events.first_time(f"{name} is not stored"):
        return
    logger.warning(
        "Checkpoints do not store %s of %s, which holds a value of type %s. %s",
        name,
        type(core.trainer).__name__,
        what,
        "A run that is resumed in the middle of a round generates its completions again, and is not bit-exact."
        if name == _ROUND
        else "After a resume it starts empty.",
    )


# -- values


def _encoded(value: Any, place: str, arrays: dict[str, Any], tensors: Any) -> Any:
    """The value as JSON. Dicts become pairs: their order is that of the logs, and JSON files are sorted by key."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if tensors.is_tensor(value):
        arrays[place] = tensors.to_numpy(value)
        return {"tensor": place, "dtype": str(value.dtype).rpartition(".")[2]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": [[key, _encoded(v, f"{place}/{key}", arrays, tensors)] for key, v in value.items()]}
    if isinstance(value, (list, tuple, deque)):
        items = [_encoded(v, f"{place}/{i}", arrays, tensors) for i, v in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    raise _NotStored(type(value).__name__)


def _decoded(value: Any, arrays: dict[str, Any], core: "Internals") -> Any:
    if isinstance(value, list):
        return [_decoded(item, arrays, core) for item in value]
    if not isinstance(value, dict):
        return value
    if "float" in value:
        return float(value["float"])
    if "dict" in value:
        return {key: _decoded(item, arrays, core) for key, item in value["dict"]}
    if "tuple" in value:
        return tuple(_decoded(item, arrays, core) for item in value["tuple"])
    tensors, tensor = core.backend.tensors, core.backend.tensors.from_numpy(arrays[value["tensor"]].copy())
    if value["dtype"] == "bfloat16":  # NumPy lacks it: stored as float32, without a loss
        tensor = tensors.in_half(tensor, "bf16")
    return core.backend.devices.move(tensor, core.trainer.args.device)


def _filled(current: Any, stored: Any) -> Any:
    """The stored value, in the containers of the current one."""
    if isinstance(current, deque):
        current.clear()
        current.extend(stored)
        return current
    if isinstance(current, dict) and isinstance(stored, dict):
        if isinstance(current, defaultdict):
            current.clear()
        for key, value in stored.items():
            current[key] = _filled(_item(current, key), value)
        return current
    return stored


def _item(current: dict[str, Any], key: str) -> Any:
    """What a defaultdict makes for a key; None in a dict without it."""
    return current[key] if isinstance(current, defaultdict) else current.get(key)
