"""Which samples an update has had: the order is a pure function, so they can be computed afterwards."""

from typing import TYPE_CHECKING

from ..data.order import BatchSampler

if TYPE_CHECKING:
    from ..steps import StepPlan

SHOWN = 64  # indices in a message


def positions_of(plan: "StepPlan", step: int) -> tuple[int, int, int] | None:
    """(epoch, first position, the one after the last) of an update; None if the order is not oneloop's."""
    sampler = getattr(plan.loader, "batch_sampler", None)
    if not isinstance(sampler, BatchSampler) or not plan.steps_per_epoch:
        return None
    epoch, place = divmod(step - 1, plan.steps_per_epoch)
    size = sampler.batch_size * sampler.num_shards * plan.accumulation
    end = min(sampler.length, len(sampler) * sampler.batch_size * sampler.num_shards)  # drop_last drops what follows
    return epoch, place * size, min((place + 1) * size, end)


def samples_of(plan: "StepPlan", step: int) -> str:
    """The indices of the samples in an update, for messages."""
    found = positions_of(plan, step)
    if found is None:
        return "unknown (not a map-style dataset)"
    epoch, first, end = found
    indices = plan.loader.batch_sampler.orders(epoch).take(first, end).tolist()
    return str(indices) if len(indices) <= SHOWN else f"{str(indices[:SHOWN])[:-1]}, ... {len(indices)} in all]"
