"""max_tokens_per_batch: what it needs of a Trainer, and what checkpoints have of it. The order is in
data/cost_batches.py."""

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.cost_batches import LAYOUT, CostBatches, CostLayout, CostOrder
from ..data.order import Order
from ..data.samplers import IndexSampler
from ..errors import ArgumentError, DataError
from .part import Part

if TYPE_CHECKING:
    from .core import Core


def orders(core: "Core", lengths: np.ndarray) -> Callable[[int], Order]:
    """A function from the epoch to the order of the training samples."""
    budget, cost = core.trainer.args.max_tokens_per_batch, core.trainer.batch_cost
    assert budget is not None
    _check_cost(cost, lengths)
    layout = CostLayout(lengths, budget, core.run.accumulation * core.mesh.num_batches, cost)
    return partial(CostOrder, layout, core.data_seed)


def _check_cost(cost: Callable[[int, int], float], lengths: np.ndarray) -> None:
    """Raise ArgumentError for a cost that does not grow with the batch: no budget would bound it."""
    last = 0.0
    for longest in np.unique(np.maximum(lengths, 1)).tolist():
        one, two = float(cost(1, longest)), float(cost(2, longest))
        if not (math.isfinite(two) and 0 < one < two and last <= one):
            raise ArgumentError(
                f"batch_cost returned {one:g} for one sample of {longest} tokens, {two:g} for two, and {last:g} for a "
                "shorter one. A cost has to be finite and above 0, grow with the number of samples, and not fall with "
                "the length of the longest one."
            )
        last = one


def check_sampler(sampler: Any) -> None:
    """Raise DataError for any order but that of `orders`."""
    if not isinstance(sampler, IndexSampler) or not isinstance(sampler.orders(0), CostOrder):
        raise DataError(
            f"max_tokens_per_batch decides which samples are in a batch, and so does the {type(sampler).__name__} that "
            "_get_train_sampler returned. Remove one of them."
        )


def mean_batch_size(loader: Any) -> int:
    """Samples in a micro-batch, on average."""
    sampler = getattr(loader, "batch_sampler", None)
    if not isinstance(sampler, CostBatches):
        raise DataError(
            "max_tokens_per_batch decides which samples are in a batch, but get_train_dataloader returned a loader "
            f"({type(loader).__name__}) with batches of its own. Remove one of them."
        )
    return sampler.batch_size


class TokenBudget(Part):
    """Stores which batches there were, for resumed runs."""

    name = "token_budget"
    title = "state of max_tokens_per_batch"

    @property
    def is_active(self) -> bool:
        return self.context.args.max_tokens_per_batch is not None

    def properties(self) -> dict[str, Any]:
        return {LAYOUT: self.context.plan.loader.batch_sampler.layout.digest} if self.is_active else {}
