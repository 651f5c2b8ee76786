"""Micro-batches by their cost (max_tokens_per_batch, batch_rebalance): what these need of a Trainer, and what
checkpoints have of them. They are made in data/cost_batches.py and data/rebalanced_batches.py."""

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.cost_batches import LAYOUT, Cost, CostBatches, CostLayout, CostOrder, padded_tokens
from ..data.order import BatchSampler, Order
from ..data.rebalanced_batches import RebalancedBatches
from ..data.samplers import IndexSampler
from ..errors import ArgumentError, DataError
from ..introspect import is_overridden
from .part import Part

if TYPE_CHECKING:
    from .core import Core

REBALANCED = "batch_rebalance"


def divides_by_cost(args: Any) -> bool:
    return args.max_tokens_per_batch is not None or args.train_sampling_strategy == REBALANCED


def orders(core: "Core", lengths: np.ndarray) -> Callable[[int], Order]:
    """A function from the epoch to the order of the training samples."""
    budget, cost = core.trainer.args.max_tokens_per_batch, checked_cost(core, lengths)
    assert budget is not None
    layout = CostLayout(lengths, budget, core.run.accumulation * core.mesh.num_batches, cost)
    return partial(CostOrder, layout, core.data_seed)


def checked_cost(core: "Core", lengths: np.ndarray) -> Cost:
    """Trainer.batch_cost; raises ArgumentError if it does not grow with the batch: no budget would bound it."""
    if not is_overridden(core.trainer, "batch_cost"):
        return padded_tokens
    cost, last = core.trainer.batch_cost, 0.0
    for longest in np.unique(np.maximum(lengths, 1)).tolist():
        one, two = float(cost(1, longest)), float(cost(2, longest))
        if not (math.isfinite(two) and 0 < one < two and last <= one):
            raise ArgumentError(
                f"batch_cost returned {one:g} for one sample of {longest} tokens, {two:g} for two, and {last:g} for a "
                "shorter one. A cost has to be finite and above 0, grow with the number of samples, and not fall with "
                "the length of the longest one."
            )
        last = one
    return cost


def sampler_class(core: "Core", sampler: Any, lengths_of: Callable[[str], np.ndarray]) -> Callable[..., BatchSampler]:
    """What divides the order of a sampler into micro-batches by cost. Raises DataError if that order is not oneloop's.
    `lengths_of` measures the samples for a purpose."""
    args, accumulation = core.trainer.args, core.run.accumulation
    order = sampler.orders(0) if isinstance(sampler, IndexSampler) else None
    if args.max_tokens_per_batch is not None:
        if not isinstance(order, CostOrder):
            raise _other_order("max_tokens_per_batch", sampler)
        return partial(CostBatches, accumulation=accumulation)
    if type(order) is not Order:
        raise _other_order(f"train_sampling_strategy={REBALANCED!r}", sampler)
    lengths = lengths_of(REBALANCED)
    cost = checked_cost(core, lengths)
    return partial(RebalancedBatches, accumulation=accumulation, lengths=lengths, cost=cost)


def _other_order(name: str, sampler: Any) -> DataError:
    return DataError(
        f"{name} decides which samples are in a batch, and so does the {type(sampler).__name__} that "
        "_get_train_sampler returned. Remove one of them."
    )


def mean_batch_size(loader: Any) -> int:
    """Samples in a micro-batch, on average."""
    sampler = getattr(loader, "batch_sampler", None)
    if not isinstance(sampler, CostBatches):
        raise _other_loader(loader)
    return sampler.batch_size


def _other_loader(loader: Any) -> DataError:
    return DataError(
        f"max_tokens_per_batch or train_sampling_strategy={REBALANCED!r} decides which samples are in a batch, but "
        f"get_train_dataloader returned a loader ({type(loader).__name__}) with batches of its own. Remove one of them."
    )


class BatchCosts(Part):
    """Stores which batches there were, for resumed runs."""

    name = "batch_costs"

    @property
    def is_active(self) -> bool:
        return divides_by_cost(self.context.args)

    def plan_ready(self) -> None:
        if self.is_active and not hasattr(self._sampler, "digest"):
            raise _other_loader(self.context.plan.loader)

    def properties(self) -> dict[str, Any]:
        return {LAYOUT: self._sampler.digest} if self.is_active else {}

    @property
    def _sampler(self) -> Any:
        return getattr(self.context.plan.loader, "batch_sampler", None)
