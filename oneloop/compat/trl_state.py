"""What TRL's trainers keep in memory between steps, in checkpoints: transformers' Trainer loses it on a resume.

Online trainers (GRPO, RLOO) generate completions for several updates at once, so that a checkpoint may lie within a
round of them. All trainers collect metrics until the next log. The reference model changes with sync_ref_model, and the
teacher of self-distillation (SDFT, SDPO) with teacher_model_kind="ema".

Structures are stored as JSON in run.json, their tensors in random.safetensors, both for each process.
"""

import logging
import math
from collections import defaultdict, deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint.run_state import ATTRIBUTES, RANDOM
from ..extension import Extension
from ..formats.safetensors_io import read

if TYPE_CHECKING:
    from ..trainer.core import Core

logger = logging.getLogger(__name__)

_STEPS = ("_step", "_buffer_step")  # micro-batches so far
_METRICS = ("_metrics", "_stored_metrics", "_logs", "_textual_logs", "_diagnostic_counters")
_NUMBERS = (
    "_total_train_tokens", "entropy_coef", "_last_world_entropy", "_on_policy_loss_total", "_off_policy_loss_total",
    "_on_policy_step_equiv", "_off_policy_step_equiv", "_matched_sum", "_unmatched_sum", "_matched_step_eq",
    "_unmatched_step_eq",
)  # fmt: skip
_NAMES = (*_STEPS, *_METRICS, *_NUMBERS)
_ROUND = "_buffered_inputs"  # the completions of a round, by micro-batch


class _NotStored(Exception):
    """A value that is neither plain nor a tensor."""


class TrlState(Extension):
    """State of TRL's trainers; for others it does nothing."""

    def collect_state(self) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """The attributes of this process as JSON, and their tensors as arrays by name."""
        return _collect(self.core) if _is_of_trl(self.core.trainer) else (None, {})

    def restore_state(self, stored: dict[str, Any], arrays: dict[str, Any]) -> None:
        _restore(self.core, stored, arrays)

    def restore_models(self, path: Path) -> None:
        """Load the weights of models that follow the trained one. They do not depend on the number of processes."""
        if _is_of_trl(self.core.trainer):
            _restore_models(self.core, path)

    @property
    def generates_data(self) -> bool:
        return _is_of_trl(self.core.trainer) and hasattr(self.core.trainer, _ROUND)

    @property
    def shares_python_random(self) -> bool:
        """GKD decides by it whether a batch is generated. With a sharded model all processes take part in that, and one
        that decided otherwise would leave them waiting."""
        return _is_of_trl(self.core.trainer)


def _collect(core: "Core") -> tuple[dict[str, Any], dict[str, Any]]:
    trainer = core.trainer
    arrays: dict[str, Any] = {}
    stored: dict[str, Any] = {}
    names = [name for name in _names(trainer) if hasattr(trainer, name)]
    for name in [*names, _ROUND] if _is_within_round(trainer) else names:
        added: dict[str, Any] = {}
        try:
            stored[name] = _encoded(getattr(trainer, name), f"{ATTRIBUTES}{name}", added, core.backend.tensors)
        except _NotStored as error:
            _warn(core, name, str(error))
        else:
            arrays |= added
    if core.mesh.is_main:
        for prefix, model in _moving_models(core).items():
            state = model.state_dict()
            arrays |= {f"{prefix}{name}": core.backend.tensors.to_numpy(t) for name, t in state.items()}
    return stored, arrays


def _restore(core: "Core", stored: dict[str, Any], arrays: dict[str, Any]) -> None:
    """Assign the attributes that were stored. Containers of the Trainer are filled, so that they keep their types."""
    trainer = core.trainer
    for name, value in stored.items():
        if name == _ROUND or hasattr(trainer, name):
            decoded = _decoded(value, arrays, core)
            setattr(trainer, name, _filled(getattr(trainer, name, None), decoded))


def _restore_models(core: "Core", path: Path) -> None:
    for prefix, model in _moving_models(core).items():
        found = {name: raw.array() for name, raw in read(path / RANDOM).items() if name.startswith(prefix)}
        if found:
            model.load_state_dict(
                {
                    name.removeprefix(prefix): core.backend.tensors.from_numpy(array.copy())
                    for name, array in found.items()
                }
            )


def _is_of_trl(trainer: Any) -> bool:
    return any(base.__module__.partition(".")[0] == "trl" for base in type(trainer).__mro__)


def _names(trainer: Any) -> tuple[str, ...]:
    # A name that any subclass might use for its own: only of the trainer that has it.
    online = any(base.__name__ == "OnlineDPOTrainer" for base in type(trainer).__mro__)
    return (*_NAMES, "stats") if online else _NAMES


def _is_within_round(trainer: Any) -> bool:
    """Whether the next update uses completions that have been generated."""
    if getattr(trainer, _ROUND, None) is None:
        return False
    step = next(getattr(trainer, name) for name in _STEPS if hasattr(trainer, name))
    # Trainers without steps_per_generation (Distillation, GOLD) generate for one update.
    per_generation = getattr(trainer.args, "steps_per_generation", None) or trainer.args.gradient_accumulation_steps
    return step % (per_generation * getattr(trainer, "num_iterations", 1)) != 0


class _AdapterAverage:
    """The teacher of SDFT and SDPO that is an adapter of the trained model. A callback makes it and has its weights."""

    def __init__(self, callback: Any) -> None:
        self.callback = callback

    def state_dict(self) -> dict[str, Any]:
        return self.callback.shadow_weights or {}

    def load_state_dict(self, tensors: dict[str, Any]) -> None:
        from peft import set_peft_model_state_dict

        callback = self.callback
        callback._initialize_teacher_adapter()  # on_train_begin would do it, later, with zeros
        model = callback.accelerator.unwrap_model(callback.model)
        device = next(iter(callback.shadow_weights.values())).device
        callback.shadow_weights = {name: tensor.to(device) for name, tensor in tensors.items()}
        set_peft_model_state_dict(model, callback.shadow_weights, adapter_name=callback.teacher_adapter_name)


def _moving_models(core: "Core") -> dict[str, Any]:
    """Models that follow the trained one, by the prefix of their tensors' names. Sharded, they are not stored."""
    trainer: Any = core.trainer
    if core.strategy.is_sharded:
        return {}
    found: dict[str, Any] = {}
    if getattr(trainer.args, "sync_ref_model", False):
        found["ref_model"] = getattr(trainer, "ref_model", None)
    if getattr(trainer.args, "teacher_model_kind", None) == "ema":
        adapters = [each for each in trainer.callback_handler.callbacks if hasattr(each, "teacher_adapter_name")]
        found["teacher_model"] = _AdapterAverage(adapters[0]) if adapters else trainer.teacher_model
    unwrap = core.backend.models.unwrap
    return {
        f"{ATTRIBUTES}{name}/": model if isinstance(model, _AdapterAverage) else unwrap(model)
        for name, model in found.items()
        if model is not None
    }


def _warn(core: "Core", name: str, what: str) -> None:
    if not core.run.events.is_first_report(f"{name} is not stored"):
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


def _decoded(value: Any, arrays: dict[str, Any], core: "Core") -> Any:
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
