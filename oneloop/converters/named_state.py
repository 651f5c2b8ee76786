"""Weights and optimizer state of a run by the names of parameters, as checkpoints of several libraries have them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import CheckpointError
from .plain_pickle import Unknown
from .stored_tensors import Tensor


@dataclass
class NamedState:
    """What a checkpoint stores, with tensors that are read when they are needed."""

    weights: dict[str, Tensor]
    states: dict[str, dict[str, Any]]  # by parameter: its tensors, and its number of steps
    groups: list[dict[str, Any]]  # of the optimizer: "param_names", and options
    by_number: dict[str, Any] | None = None  # optimizer state without names, as torch's state_dict has it
    step: int | None = None  # updates that were made, if the checkpoint says it elsewhere than in the Trainer's state
    scaler: dict[str, Any] | None = None  # the loss scale, by the names of torch's GradScaler
    scheduler: dict[str, Any] | None = None
    is_partial: bool = False  # frozen weights may be missing: those of an adapter's base model
    missing: list[str] = field(default_factory=list)  # what a run would need and is not there, and what happens

    @property
    def has_optimizer(self) -> bool:
        return bool(self.groups) or self.by_number is not None

    def known_step(self, source: str) -> int:
        """How many updates were made; an error if that is not stored."""
        if self.step is None:
            raise CheckpointError(
                f"{source} does not say how many steps were made: it has no state of an optimizer. Load its weights "
                "into the model and start a new run."
            )
        return self.step

    def named_as(self, wanted: set[str], source: str) -> "NamedState":
        """The same for a model with these parameters that another module had in an attribute, as a LightningModule has
        its `self.model`: without the prefix of its names there. What else that module has is left out."""
        if wanted <= set(self.weights) or not wanted:
            return self
        first = min(wanted)
        tried = [name.removesuffix(first) for name in self.weights if name.endswith(f".{first}")]
        fitting = [prefix for prefix in tried if all(prefix + name in self.weights for name in wanted)]
        if len(fitting) > 1:
            raise CheckpointError(
                f"{source} has such weights {len(fitting)} times, under {', '.join(sorted(fitting))[:200]}; it is not "
                "known which of them was trained. Give the Trainer the whole module that was saved."
            )
        if not fitting:
            return self
        (prefix,) = fitting

        def inside(values: dict[str, Any]) -> dict[str, Any]:
            return {n.removeprefix(prefix): value for n, value in values.items() if n.startswith(prefix)}

        groups = [
            group | {"param_names": [n.removeprefix(prefix) for n in group["param_names"] if n.startswith(prefix)]}
            for group in self.groups
        ]
        return replace(self, weights=inside(self.weights), states=inside(self.states), groups=groups)

    def fields(self) -> list[str]:
        """What the optimizer keeps for parameters."""
        states = self.states if self.by_number is None else self.by_number["state"]
        return sorted({str(key) for state in states.values() for key, value in state.items() if value is not None})

    def counted_steps(self) -> int | None:
        """The number of updates that the optimizer counted."""
        states = self.states if self.by_number is None else self.by_number["state"]
        counts = {number(state["step"], "a number of steps") for state in states.values() if "step" in state}
        return int(max(counts)) if counts else None

    def numbered(self) -> dict[str, Any]:
        """Optimizer state as torch's state_dict has it, with the names in its groups as far as they are known."""
        if self.by_number is not None:
            return self.by_number
        number = {name: i for i, name in enumerate(n for group in self.groups for n in group["param_names"])}
        groups = [group | {"params": [number[name] for name in group["param_names"]]} for group in self.groups]
        return {"state": {number[name]: state for name, state in self.states.items()}, "param_groups": groups}


def plain_options(group: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a group that are numbers, strings and lists of them."""
    return {
        str(key): value
        for key, value in group.items()
        if key not in ("params", "param_names") and isinstance(value, (bool, int, float, str, tuple, list, type(None)))
    }


def number(value: Any, what: str) -> float:
    """A number, which may be stored as a tensor of one element."""
    if isinstance(value, Tensor) and value.size == 1:
        value = value.whole().reshape(-1)[0].item()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise CheckpointError(f"{what} is not a number")
    return value


def scale_of(scaler: Any) -> dict[str, Any] | None:
    """A loss scaler of DeepSpeed by the names of torch's GradScaler; None for none, or for a constant scale of one."""
    if not isinstance(scaler, Unknown) or not isinstance(scaler.state, dict):
        return None
    scale, count = scaler.get("cur_scale"), scaler.get("cur_iter")
    if not isinstance(scale, (int, float)) or isinstance(scale, bool) or not isinstance(count, int):
        return None
    last, window, factor = scaler.get("last_overflow_iter", -1), scaler.get("scale_window"), scaler.get("scale_factor")
    window = window if isinstance(window, int) and window > 0 else 2000
    factor = float(factor) if isinstance(factor, (int, float)) and factor > 1 else 2.0
    since = max(count - (last if isinstance(last, int) else -1) - 1, 0)
    counts = {"cur_iter": count, "last_overflow_iter": last, "cur_hysteresis": scaler.get("cur_hysteresis")}
    return {
        "scale": float(scale),
        "growth_factor": factor,
        "backoff_factor": 1.0 / factor,
        "growth_interval": window,
        "_growth_tracker": since % window,
        "deepspeed": {key: value for key, value in counts.items() if isinstance(value, int)},
    }
