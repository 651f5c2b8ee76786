"""Compares the state of an optimizer in a checkpoint with the optimizer that is going to take it. No framework.

Kernels of optimizers do not check what they are given: moments of another shape end the process, or are updated beyond
their end.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import CheckpointError
from ...formats.schema import Rule, alike, check, flag, format_short, integer, is_integer, number, optional, record
from .helpers import check_optimizer_names, preview

Kind = tuple[tuple[int, ...], str | None]  # the shape of a tensor and the name of its type; None: any
MOST_STEPS = 2**53

# Options of groups that have to be in a range, whatever their current value.
_RANGES: dict[str, Rule] = {"lr": number(0), "eps": number(0), "epsilon": number(0)}
# Options of torch's optimizers that choose an implementation; null leaves the choice to torch.
_CHOICES: dict[str, Rule] = {"foreach": optional(flag), "fused": optional(flag)}


def check_class(data: Mapping[str, Any], cls: type, source: str) -> None:
    """Another class of optimizer has another state, or gives the same names another meaning."""
    stored, own = data.get("class"), cls.__name__
    if stored is not None and stored != own:
        raise CheckpointError(
            f"the optimizer state in {source} is that of {stored}, but this run's optimizer is {own}. Set optim to the "
            "one that the checkpoint was written with; or, to continue with another optimizer, load the weights of the "
            "checkpoint into the model and call train() without resume_from_checkpoint."
        )


def check_names(groups: Iterable[Mapping[str, Any]], own: Iterable[str], source: str) -> None:
    """The parameters of the stored groups are those of this run's optimizer, each once."""
    listed, wanted = [name for group in groups for name in group["names"]], set(own)
    twice = sorted({name for name in listed if listed.count(name) > 1}) if len(set(listed)) < len(listed) else []
    if twice:
        raise CheckpointError(f"the optimizer state in {source} names parameters twice: {preview(twice)}")
    check_optimizer_names(set(listed), wanted, source)


def check_division(groups: Iterable[Mapping[str, Any]], own: Iterable[Iterable[str]], source: str) -> None:
    """Each group of this run's optimizer, given by the names of its parameters, can take the stored options: the
    checkpoint has the same ones for all of its parameters."""
    options = {
        name: {key: group[key] for key in group if key != "names"} for group in groups for name in group["names"]
    }
    for names in own:
        found = [options[name] for name in names]
        other = next((each for each in found if each != found[0]), None)
        if other is not None:
            keys = sorted(key for key in {*found[0], *other} if found[0].get(key) != other.get(key))
            values = "; ".join(f"{key} {found[0].get(key)!a} and {other.get(key)!a}" for key in keys[:3])
            raise CheckpointError(
                f"the optimizer state in {source} divides the parameters into other groups: {preview(sorted(names))} "
                f"are one group in this run, and have different options there ({values}). Use the weight_decay, the "
                "optim_target_modules and the create_optimizer that the checkpoint was written with."
            )


def check_kind(stored: Mapping[str, Any], current: Mapping[str, Any], source: str) -> None:
    """A group is of the same kind as the stored one. A release may add options, and an optimizer while it steps; but
    groups that each have some that the other has not are of optimizers that treat parameters differently."""
    missing, unknown = sorted(current.keys() - stored.keys()), sorted(stored.keys() - current.keys() - {"names"})
    if {*missing} - {"initial_lr"} and {*unknown} - {"initial_lr"}:
        raise CheckpointError(
            f"the optimizer state in {source} has another kind of options for {preview(sorted(stored['names']))}: "
            f"{preview(unknown)}, but in this run {preview(missing)}. Use the optim_target_modules and the "
            "create_optimizer that the checkpoint was written with."
        )


def by_parameter(keys: Iterable[str], own: Iterable[str], source: str) -> dict[str, set[str]]:
    """The fields of each parameter, from names such as "weight:exp_avg"."""
    found: dict[str, set[str]] = {name: set() for name in own}
    for key in keys:
        name, colon, field = key.rpartition(":")
        if not colon or name not in found:
            raise CheckpointError(f"{source} has an optimizer state {key!a}, which belongs to no parameter of this run")
        found[name].add(field)
    return found


def with_stateless_parameters(data: dict[str, Any], with_state: Iterable[str]) -> dict[str, Any]:
    """What run.json has of an optimizer, with a note of the parameters without a state, so that a checkpoint from which
    some are missing is recognised."""
    data = {key: value for key, value in data.items() if key != "stateless"}
    known = set(with_state)
    # Parameters that have not had a gradient yet, or need none.
    missing = [name for group in data["groups"] for name in group["names"] if name not in known]
    if not missing:
        return data
    return data | {"stateless": True if len(missing) == sum(len(g["names"]) for g in data["groups"]) else missing}


def check_complete(data: Mapping[str, Any], fields: Mapping[str, Any], source: str) -> None:
    """Every parameter has a state, except those that had none when it was saved."""
    if "class" not in data:  # of another trainer or framework
        return
    noted = data.get("stateless", [])
    if noted is True:
        return
    missing = sorted(name for name, found in fields.items() if not found and name not in set(noted or ()))
    if missing:
        raise CheckpointError(f"the optimizer state in {source} is incomplete: there is none for {preview(missing)}")


def check_tensor(key: str, found: Kind, expected: Kind, source: str) -> None:
    """Shape and type of a state that an optimizer is going to take."""
    if found[0] != expected[0] or (expected[1] is not None and found[1] != expected[1]):
        words = [f"{kind[1] or 'a tensor'} of shape {kind[0]}" for kind in (found, expected)]
        raise CheckpointError(
            f"the optimizer state in {source} does not fit this run: {key} is {words[0]}, expected {words[1]}"
        )


def check_fields(name: str, found: set[str], expected: set[str], optimizer: str, source: str) -> None:
    """The fields that an optimizer keeps for a parameter."""
    if found != expected:
        raise CheckpointError(
            f"the optimizer state in {source} is not that of this run's {optimizer}: for {name} it has "
            f"{', '.join(sorted(found)) or 'nothing'}, expected {', '.join(sorted(expected)) or 'nothing'}. Use the "
            "optimizer and the options that the checkpoint was written with."
        )


def check_count(value: Any, key: str, source: str) -> None:
    """A number of updates, as an optimizer stores it: a number, or an array or tensor with one."""
    shape = tuple(getattr(value, "shape", ()))
    plain = value.item() if hasattr(value, "item") and math.prod(shape) == 1 else value
    good = (is_integer(plain) or isinstance(plain, float)) and math.isfinite(plain) and 0 <= plain < MOST_STEPS
    if not good:
        shown_value = f"of shape {shape}" if shape else format_short(plain)
        raise CheckpointError(
            f"{key} of the optimizer state in {source} is {shown_value}, expected a number of updates"
        )


def check_options(stored: Mapping[str, Any], current: Mapping[str, Any], source: str) -> None:
    """The options of a group are of the kind of the current ones, which they replace."""
    compared = {key: value for key, value in current.items() if key in stored and key != "names"}
    rules = {
        key: _CHOICES.get(key) or (flag if isinstance(value, bool) else alike(value)) for key, value in compared.items()
    }
    where = f"a parameter group of the optimizer in {source}"
    check(dict(stored), record({}, rules), where)
    check(dict(stored), record({}, dict.fromkeys(compared, fits_kernels)), where)
    ranges = {key: rule for key, rule in _RANGES.items() if is_plain_number(current.get(key))}
    check(dict(stored), record({}, ranges), where)


def fits_kernels(value: Any, place: str) -> None:
    """Integers of kernels have 64 bits or fewer."""
    for each in value if isinstance(value, (list, tuple)) else (value,):
        if is_integer(each):
            integer(-MOST_STEPS, MOST_STEPS)(each, place)


def is_plain_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
