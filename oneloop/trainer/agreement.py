"""Before the first step of several processes: the values that have to be the same in all of them are compared.

Otherwise a process with other values would wait for the others until ddp_timeout, or train other weights.
"""

from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from typing import TYPE_CHECKING, Any

from ..arguments.fields import rules_of
from ..data.order import BatchSampler
from ..errors import ArgumentError, DataError
from ..introspect import is_overridden
from .validation import has_length

if TYPE_CHECKING:
    from .core import Core
    from .run import Run

_SHOWN = 8  # ranks that are listed for a value


def check_arguments(core: "Core") -> None:
    """The arguments, except those that are declared as per_process. A collective."""
    differing = _differing(core, shared_arguments(core.trainer.args) | {"data_seed": core.data_seed})
    if differing is not None:
        raise ArgumentError(f"{differing}. Pass the same arguments to every process.")


def check_plan(run: "Run") -> None:
    """The data, the steps and the learning rates. A collective."""
    core, plan = run.core, run.plan
    differing = _differing(core, _lengths(run))
    if differing is not None:
        raise DataError(
            f"{differing}. Give every process the same data: oneloop divides it. Data that shards itself must have "
            "the same number of batches in every process, or no length."
        )
    values = {
        "the number of steps": plan.max_steps,
        "the number of epochs": plan.epochs,
        "the accumulated micro-batches": plan.accumulation,
        "the learning rates": core.backend.optimizers.learning_rates(core.trainer.optimizer),
    }
    differing = _differing(core, values)
    if differing is not None:
        raise ArgumentError(f"{differing}. Use the same arguments, optimizer and schedule in every process.")


def shared_arguments(args: Any) -> dict[str, Any]:
    """The arguments that the processes of a run have in common, as plain values."""
    found = {}
    for item in fields(args):
        rules = rules_of(item)
        if rules is not None and not rules["per_process"]:
            found[item.name] = _plain(getattr(args, item.name))
    return found


def _lengths(run: "Run") -> dict[str, Any]:
    trainer, plan = run.core.trainer, run.plan
    sampler = getattr(plan.loader, "batch_sampler", None)
    found = {
        "the number of training samples": sampler.length if isinstance(sampler, BatchSampler) else None,
        "the number of batches in an epoch": plan.batches,
        "the lengths of the training samples": getattr(sampler, "digest", None),
    }
    if not is_overridden(trainer, "get_eval_dataloader"):
        sets = trainer.eval_dataset if isinstance(trainer.eval_dataset, Mapping) else {"": trainer.eval_dataset}
        for name, data in sets.items():
            what = f"the number of evaluation samples{f' of {name!r}' if name else ''}"
            found[what] = len(data) if data is not None and has_length(data) else None
    return found


def _differing(core: "Core", values: dict[str, Any]) -> str | None:
    """What the first value that differs is in each process; None if all are the same."""
    every = core.processes.all_gather_object(values)
    for name in dict.fromkeys(name for each in every for name in each):
        ranks: dict[str, list[int]] = {}
        for rank, each in enumerate(every):
            ranks.setdefault(repr(each.get(name)), []).append(rank)
        if len(ranks) > 1:
            return f"The processes differ in {name}: " + ", ".join(
                f"{value} in {_names(those)}" for value, those in ranks.items()
            )
    return None


def _names(ranks: list[int]) -> str:
    more = f" and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else ""
    return f"process{'es' * (len(ranks) > 1)} {', '.join(map(str, ranks[:_SHOWN]))}{more}"


def _plain(value: Any) -> Any:
    """A value without the identity of objects: of those that are not plain data, only the class is compared."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in sorted(value.items(), key=lambda pair: str(pair[0]))}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else type(value).__name__
