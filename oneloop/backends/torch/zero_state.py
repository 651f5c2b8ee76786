"""The state of DeepSpeed's optimizers by parameter, as checkpoints store it.

DeepSpeed flattens the parameters of a group, divides the result among the processes, and steps an optimizer of torch on
its own part. The part has one state: moments as long as it is, and one count of steps. Here they become those of whole
parameters, and back, with the functions that DeepSpeed offers for it.

| stage | flat tensors | what a process has of a parameter |
|---|---|---|
| 0, in half precision | none: a float32 copy of each parameter | all of it |
| 1, 2 | one for each group | what overlaps with its part of the group |
| 3 | one or more for each group | its part of each parameter, padded to equal length |
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ...errors import CheckpointError
from .._common import optimizer_checks as checks
from .._common.helpers import preview
from . import weights

Named = list[tuple[str, nn.Parameter]]


def is_partitioned(p: torch.Tensor) -> bool:
    """Whether each process has a part of this parameter: stage 3, or created under deepspeed.zero.Init."""
    return hasattr(p, "ds_id")


def shape_of(p: Any) -> torch.Size:
    """The shape of the whole parameter."""
    return torch.Size(p.ds_shape) if is_partitioned(p) else p.shape


class ShardedState:
    """The optimizer that deepspeed.initialize returned for groups of parameters."""

    def __init__(self, package: Any, optimizer: Any, groups: list[Named]) -> None:
        self.utils, self.rank = package.utils, package.comm.get_rank
        self.optimizer = optimizer
        self.groups = groups
        self.names = {id(p): name for group in groups for name, p in group}

    # -- float32 weights and moments of one parameter

    def _flat(self) -> Iterator[tuple[torch.Tensor, list[nn.Parameter]]]:
        """Each tensor that the optimizer of torch updates, with the parameters that are in it."""
        optimizer = self.optimizer
        if hasattr(optimizer, "fp32_partitioned_groups_flat"):
            yield from zip(optimizer.fp32_partitioned_groups_flat, optimizer.fp16_groups)
        elif self._copies():
            for copies, parameters in zip(optimizer.fp32_groups, optimizer.fp16_groups):
                yield from ((copy, [p]) for copy, p in zip(copies, parameters))
        else:
            for group, named in zip(optimizer.param_groups, self.groups):
                yield group["params"][0], [p for _, p in named]

    def _copies(self) -> bool:
        return hasattr(self.optimizer, "fp32_groups")

    def _whole(self, flat: torch.Tensor, p: nn.Parameter, key: str | None) -> torch.Tensor:
        """A collective, except at stage 0."""
        if self._copies():
            return flat if key is None else self.optimizer.state[flat][key]
        if key is None:
            return self.utils.safe_get_full_fp32_param(p)
        return self.utils.safe_get_full_optimizer_state(p, key)

    def _put(self, flat: torch.Tensor, p: Any, value: torch.Tensor, key: str | None) -> None:
        value = value.to(flat.device, flat.dtype if key is None else None)
        if self._copies():
            (flat if key is None else self.optimizer.state[flat][key]).data.copy_(value)
        elif is_partitioned(p):
            part = _padded_shard(value, p.ds_tensor.numel(), self.rank(group=p.ds_process_group))
            if key is None:
                self.utils.safe_set_local_fp32_param(p, part)
            else:
                self.utils.safe_set_local_optimizer_state(p, part, key)
        elif key is None:
            self.utils.safe_set_full_fp32_param(p, value)
        else:
            self.utils.safe_set_full_optimizer_state(p, value, key)

    def _link(self, flat: torch.Tensor, parameters: list[nn.Parameter]) -> None:
        """DeepSpeed finds the state of each parameter of stages 1 and 2 only after this. It calls it once, when the
        first group has made a step, and the states of further groups are still empty then."""
        if parameters and hasattr(parameters[0], "_hp_mapping"):
            self.utils.lazy_init_hp_params_optimizer_state(parameters, flat, self.optimizer.state)

    def reset_step(self) -> None:
        """Undo the step without gradients that DeepSpeed makes at stage 0 to have a state: it counts, and decays
        weights."""
        if self._copies():
            self.optimizer.state.clear()
            self.optimizer.refresh_fp32_params()

    # -- for checkpoints

    def float32(self, keep: Callable[[str], bool]) -> dict[str, torch.Tensor]:
        """The float32 weights by name, where the model has them in half precision. A collective."""
        found = {}
        for flat, parameters in self._flat():
            for p in parameters:
                value, name = self._whole(flat, p, None), self.names[id(p)]
                if keep(name):
                    found[name] = value.detach()
        return found

    def set_float32(self, values: Mapping[str, torch.Tensor]) -> None:
        """Set those that are in `values`. The model has the rounded ones already."""
        for flat, parameters in self._flat():
            for p in parameters:
                value = values.get(self.names[id(p)])
                if value is not None:
                    self._put(flat, p, value, None)

    def state(self, keep: Callable[[str], bool]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Moments and counts of the parameters to keep, and plain data about all of them. A collective."""
        tensors: dict[str, torch.Tensor] = {}
        values: dict[str, dict[str, Any]] = {}
        with_state: set[str] = set()
        for flat, parameters in self._flat():
            state = self.optimizer.state.get(flat, {})
            self._check(flat, state)
            if state:
                self._link(flat, parameters)
            for p in parameters:
                name = self.names[id(p)]
                with_state |= {name} if state else set()
                for key, value in sorted(state.items()):  # in one order in all processes
                    if _is_elementwise(value, flat):
                        whole = self._whole(flat, p, key)
                        if keep(name):
                            tensors[f"{name}:{key}"] = whole.detach().reshape(shape_of(p))
                    elif isinstance(value, torch.Tensor):
                        if keep(name):
                            tensors[f"{name}:{key}"] = value.detach().clone()
                    else:
                        values.setdefault(name, {})[key] = value
        data = {"class": self._class().__name__, "groups": self._options(), "values": values}
        return tensors, checks.with_stateless_parameters(data, with_state)

    def load(self, tensors: dict[str, torch.Tensor], data: dict[str, Any], source: str) -> None:
        """Each process takes its part of the state of whole parameters, which any strategy may have written."""
        plain = self._as_plain()
        names = {
            id(p): name
            for group, of in zip(plain.param_groups, self.groups)
            for p, (name, _) in zip(group["params"], of)
        }
        states = weights.checked_states(plain, names, tensors, data, source, self._class())
        for group, own in zip(plain.param_groups, self.optimizer.param_groups):
            own.update({key: value for key, value in group.items() if key != "params"})
        for flat, parameters in self._flat():
            self._load_flat(flat, parameters, [states[self.names[id(p)]] for p in parameters], source)

    def _load_flat(
        self, flat: torch.Tensor, parameters: list[nn.Parameter], states: list[dict[str, Any]], source: str
    ) -> None:
        shapes = [shape_of(p) for p in parameters]
        found = {key for state, shape in zip(states, shapes) for key, value in state.items() if _has(value, shape)}
        moments = sorted(found)  # in one order in all processes, which gather them in it
        rest = [{key: value for key, value in state.items() if key not in moments} for state in states if state]
        own = self.optimizer.state
        own.pop(flat, None)
        if not rest:
            return
        for each in rest:
            if not _equal(each, rest[0]):
                raise CheckpointError(
                    f"the optimizer state in {source} has different counts of steps for parameters that DeepSpeed "
                    f"updates together ({preview([self.names[id(p)] for p in parameters])}), and it keeps one count "
                    "for them. Resume without deepspeed."
                )
        types = {key: next(s[key].dtype for s in states if key in s) for key in moments}
        own[flat] = {
            **{key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in rest[0].items()},
            **{key: torch.zeros_like(flat, dtype=types[key], requires_grad=False) for key in moments},
        }
        self._link(flat, parameters)
        for p, state in zip(parameters, states):
            for key in (key for key in moments if key in state):  # one that had no gradient yet has no moments
                self._put(flat, p, state[key], key)

    def _check(self, flat: torch.Tensor, state: Mapping[str, Any]) -> None:
        for key, value in state.items():
            if isinstance(value, (int, float, type(None))) or _is_elementwise(value, flat):
                continue
            if isinstance(value, torch.Tensor) and value.numel() == 1:
                continue
            raise CheckpointError(
                f"{self._class().__name__} keeps {key!r} of DeepSpeed's flat groups, which cannot be divided into that "
                "of single parameters. Use optim='adamw_torch', or save_only_model=True."
            )

    def _class(self) -> type:
        return type(getattr(self.optimizer, "optimizer", self.optimizer))

    def _options(self) -> list[dict[str, Any]]:
        plain = self._as_plain()
        names = {
            id(p): name
            for group, of in zip(plain.param_groups, self.groups)
            for p, (name, _) in zip(group["params"], of)
        }
        return weights.group_options(plain, names)

    def _as_plain(self) -> "_Plain":
        return _Plain(self.optimizer, self.groups)


class _Plain:
    """The optimizer as it would be without DeepSpeed: the same options for groups of whole parameters, for which there
    are tensors of their shape without memory."""

    def __init__(self, optimizer: Any, groups: list[Named]) -> None:
        self.defaults = getattr(getattr(optimizer, "optimizer", optimizer), "defaults", {})
        self.param_groups = [
            {**own, "params": [torch.zeros(()).expand(shape_of(p)) for _, p in named]}
            for own, named in zip(optimizer.param_groups, groups)
        ]


def _is_elementwise(value: Any, flat: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == flat.shape


def _has(value: Any, shape: torch.Size) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape == shape


def _equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(bool(one[key] == other[key]) for key in one)


def _padded_shard(value: torch.Tensor, length: int, rank: int) -> torch.Tensor:
    """The part of a process: all have the same length, so the last ones may end with zeros."""
    part = torch.zeros(length, dtype=value.dtype, device=value.device)
    own = value.reshape(-1)[rank * length : (rank + 1) * length]
    part[: own.numel()] = own
    return part


# -- the loss scale of fp16


def _scaler(optimizer: Any) -> Any:
    """What has the scale: the scaler of a ZeRO optimizer, or the settings of that of stage 0."""
    return getattr(optimizer, "loss_scaler", None) or getattr(optimizer, "loss_scale_config", None)


def smallest_scale(optimizer: Any) -> float:
    """The scale below which DeepSpeed does not go."""
    scaler = _scaler(optimizer)
    return float(getattr(scaler, "min_scale", None) or getattr(scaler, "min_loss_scale", None) or 1.0)


def allow_smallest_scale(optimizer: Any) -> None:
    """Have an overflow at the smallest scale counted as a skipped update: the engine raises its own error."""
    if hasattr(_scaler(optimizer), "raise_error_at_min_scale"):
        _scaler(optimizer).raise_error_at_min_scale = False


def scaler_state(optimizer: Any) -> dict[str, Any]:
    """The state under the names of torch's GradScaler, which a run without DeepSpeed reads, plus what DeepSpeed
    counts."""
    scaler = _scaler(optimizer)
    last = getattr(scaler, "last_overflow_iter", None)
    count = scaler.cur_iter - (-1 if last is None else last) - 1 if hasattr(scaler, "cur_iter") else 0
    window = int(getattr(scaler, "scale_window", None) or 2000)
    return {
        "scale": float(scaler.cur_scale),
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": window,
        "_growth_tracker": int(count % window),
        "deepspeed": {
            key: getattr(scaler, key)
            for key in ("cur_iter", "last_overflow_iter", "cur_hysteresis")
            if isinstance(getattr(scaler, key, None), int)
        },
    }


def load_scaler(optimizer: Any, state: Mapping[str, Any]) -> None:
    """Restore it from either writer."""
    scaler = _scaler(optimizer)
    scaler.cur_scale = float(state["scale"])
    own = state.get("deepspeed") or {"cur_iter": int(state.get("_growth_tracker", 0)), "last_overflow_iter": -1}
    for key, value in own.items():
        if key in ("cur_iter", "last_overflow_iter", "cur_hysteresis") and hasattr(scaler, key):
            setattr(scaler, key, int(value))
