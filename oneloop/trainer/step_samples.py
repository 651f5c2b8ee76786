"""Which samples an update has had: the order is a pure function, so they can be computed afterwards."""

from typing import TYPE_CHECKING, Any

from ..data.cost_batches import CostBatches
from ..data.order import BatchSampler

if TYPE_CHECKING:
    from ..steps import StepPlan

SHOWN = 64  # indices in a message


def positions_of(plan: "StepPlan", step: int) -> tuple[int, int, int] | None:
    """(epoch, first position, the one after the last) of an update; None if the order is not oneloop's, or if
    they are not consecutive."""
    sampler: Any = getattr(plan.loader, "batch_sampler", None)
    found = _place_of(plan, step)
    if found is None or isinstance(sampler, CostBatches):  # whose updates have samples from anywhere in the epoch
        return None
    epoch, place = found
    size = sampler.batch_size * sampler.num_shards * plan.accumulation
    end = min(sampler.length, len(sampler) * sampler.batch_size * sampler.num_shards)  # drop_last drops what follows
    return epoch, place * size, min((place + 1) * size, end)


def _place_of(plan: "StepPlan", step: int) -> tuple[int, int] | None:
    """The epoch of an update, and its number in it."""
    if not isinstance(getattr(plan.loader, "batch_sampler", None), BatchSampler) or not plan.steps_per_epoch:
        return None
    return divmod(step - 1, plan.steps_per_epoch)


def samples_of(plan: "StepPlan", step: int) -> str:
    """The indices of the samples in an update, for messages."""
    found = _place_of(plan, step)
    if found is None:
        return "unknown (not a map-style dataset)"
    epoch, update = found
    indices = plan.loader.batch_sampler.samples_of_update(epoch, update, plan.accumulation).tolist()
    return str(indices) if len(indices) <= SHOWN else f"{str(indices[:SHOWN])[:-1]}, ... {len(indices)} in all]"
