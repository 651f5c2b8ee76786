"""Weights and optimizer in the state that a program saved as a tree of dicts: FSDP's, torchtitan's, a script's own."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import CheckpointError
from .named_state import NamedState, number, plain_options
from .plain_pickle import Unknown
from .stored_tensors import Tensor

MODELS = ("model", "state_dict", "module", "model_state_dict")
OPTIMIZERS = ("optimizer", "optim", "optimizers", "optimizer_states", "optimizer_state_dict")
SCHEDULERS = ("lr_scheduler", "scheduler", "lr_schedulers", "scheduler_state_dict")
COUNTERS = ("train_state", "trainer_state", "step", "global_step", "state")
NO_SCHEDULE = "the old schedule is not stored, so this run's is set to its step"
_WRAPPERS = re.compile(r"^module\.|(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


def clean(name: str) -> str:
    """The name of a parameter without those of modules that wrap others."""
    return _WRAPPERS.sub("", name)


def named_state(tree: Mapping[Any, Any], source: str) -> NamedState:
    """What a tree has of a run. A single entry around it ("app") is passed over."""
    while len(tree) == 1 and isinstance(next(iter(tree.values())), dict) and not set(tree) & {*MODELS, *OPTIMIZERS}:
        tree = next(iter(tree.values()))
    model = _first(tree, MODELS)
    tensors = tree if model is None else model
    weights = {clean(str(name)): value for name, value in tensors.items() if isinstance(value, Tensor)}
    state = NamedState(weights, {}, [])
    stored = _first(tree, OPTIMIZERS)
    if stored is not None:
        add_optimizer(state, stored, source)
    state.scheduler = _scheduler(_first(tree, SCHEDULERS))
    state.step = _step(tree, state)
    if state.scheduler is None:
        state.missing.append(NO_SCHEDULE)
    unused = [
        str(key)
        for key, value in tree.items()
        if key not in {*MODELS, *OPTIMIZERS, *SCHEDULERS, *COUNTERS} and not isinstance(value, Tensor)
    ]
    state.missing += [f"{key} of the old run is not used" for key in sorted(unused)[:8]]
    return state


def add_optimizer(state: NamedState, stored: Any, source: str) -> None:
    """The state of an optimizer: torch's, by numbers or by names, or flattened as torch.distributed.checkpoint does."""
    if isinstance(stored, list) and len(stored) == 1:
        stored = stored[0]
    if isinstance(stored, dict) and set(stored) <= {0, "0"}:
        stored = next(iter(stored.values()), None)
    if not isinstance(stored, dict):
        raise CheckpointError(f"{source} has no state of one optimizer; runs with several are not read")
    if "state" not in stored and "param_groups" not in stored:
        stored = _unflattened(stored, source)
    states, groups = stored.get("state", {}), stored.get("param_groups", [])
    groups = [groups[key] for key in sorted(groups)] if isinstance(groups, dict) and _are_numbers(groups) else groups
    if not isinstance(states, dict) or not isinstance(groups, list) or not all(isinstance(g, dict) for g in groups):
        raise CheckpointError(f"the optimizer's state in {source} is not that of a torch optimizer")
    members = [list(g["params"]) if isinstance(g.get("params"), (list, tuple)) else [] for g in groups]
    numbers = {str(n): n for group in members for n in group if type(n) is int}  # DCP makes strings of keys
    found = {numbers.get(key, key): _fields(value) for key, value in states.items() if isinstance(value, dict)}
    names = [g.get("param_names") for g in groups]
    if all(type(n) is int for group in members for n in group) and not all(isinstance(n, (list, tuple)) for n in names):
        plain = [plain_options(g) | {"params": n} for g, n in zip(groups, members)]
        state.by_number = {"state": {k: v for k, v in found.items() if type(k) is int}, "param_groups": plain}
        return
    if not all(isinstance(n, str) for group in members for n in group):  # numbers with their names
        named = {n: name for group, of in zip(members, names) for n, name in zip(group, of or ())}
        found = {named.get(key): value for key, value in found.items()}
        members = [[str(name) for name in of or ()] for of in names]
    state.groups = [plain_options(g) | {"param_names": [clean(n) for n in of]} for g, of in zip(groups, members)]
    trained = {name for group in state.groups for name in group["param_names"]}
    state.states = {clean(str(key)): value for key, value in found.items() if clean(str(key)) in trained and value}


def _unflattened(stored: Mapping[Any, Any], source: str) -> dict[str, Any]:
    """Keys such as "state.layer.weight.exp_avg" and "param_groups.layer.weight.lr"."""
    states: dict[str, dict[str, Any]] = {}
    options: dict[str, dict[str, Any]] = {}
    for key, value in stored.items():
        parts = re.fullmatch(r"(state|param_groups)\.(.+)\.([^.]+)", str(key))
        if parts:
            (states if parts[1] == "state" else options).setdefault(parts[2], {})[parts[3]] = value
    if not states and not options:
        raise CheckpointError(f"{source} has an optimizer whose state is in a form that is not known")
    groups: list[dict[str, Any]] = []
    for name in [*options, *(name for name in states if name not in options)]:
        own = options.get(name, {})
        same = next((g for g in groups if {k: v for k, v in g.items() if k != "params"} == own), None)
        if same is None:
            groups.append(own | {"params": [name]})
        else:
            same["params"].append(name)
    return {"state": states, "param_groups": groups}


def _fields(values: Mapping[Any, Any]) -> dict[str, Any]:
    found = {str(key): value for key, value in values.items() if isinstance(value, (Tensor, int, float))}
    return found | ({"step": number(found["step"], "a number of steps")} if "step" in found else {})


def _are_numbers(values: Iterable[Any]) -> bool:
    return all(type(key) is int for key in values)


def _first(tree: Mapping[Any, Any], names: Iterable[str]) -> Any:
    return next((tree[name] for name in names if isinstance(tree.get(name), (dict, list)) and tree[name]), None)


def _scheduler(stored: Any) -> dict[str, Any] | None:
    stored = stored[0] if isinstance(stored, list) and stored else stored
    if isinstance(stored, dict) and set(stored) <= {0, "0"}:
        stored = next(iter(stored.values()), None)
    if not isinstance(stored, dict) or type(stored.get("last_epoch")) is not int:
        return None
    return {key: value for key, value in stored.items() if not isinstance(value, Unknown)}


def _step(tree: Mapping[Any, Any], state: NamedState) -> int | None:
    """The number of updates: what the program counted, or else the optimizer."""
    for holder in (tree, *(tree.get(name) for name in COUNTERS)):
        for key in ("global_step", "step"):
            value = holder.get(key) if isinstance(holder, dict) else None
            value = _number(value)
            if value is not None:
                return value
    return state.counted_steps()


def _number(value: Any) -> int | None:
    if isinstance(value, Tensor) and value.size == 1:
        value = value.whole().reshape(-1)[0].item()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value < 2**48 else None
