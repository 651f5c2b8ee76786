"""The size of an optimizer's state where no backend measures it: from the parameters and the name of the optimizer."""

import math
from collections.abc import Sequence
from typing import Any

from ..backends._common.helpers import optimizer_options
from ..optim import catalog


def copies(args: Any) -> int | None:
    """How many tensors of a parameter's size the optimizer keeps; None if it is not known. What else it keeps, such as
    counters, is a few bytes per parameter."""
    chosen = catalog.chosen(args)
    if chosen is not None and chosen.name == "sgd":
        return 1 if float(optimizer_options(args.optim_args).get("momentum", 0.0)) else 0
    return None if chosen is None else chosen.state_copies


def size(args: Any, elements: Sequence[int]) -> int | None:
    """Bytes of the state of parameters with these numbers of elements."""
    kept = copies(args)
    return None if kept is None else 4 * kept * sum(elements)


def largest_part(sizes: Sequence[int], parts: int) -> int:
    """The largest of the parts when whole parameters are assigned to processes: the largest ones first, each to the
    process that has least (stage 1)."""
    totals = [0] * min(parts, max(1, len(sizes)))
    for each in sorted(sizes, reverse=True):
        totals[totals.index(min(totals))] += each
    return max(totals, default=0)


def rows_of(shape: Sequence[int], parts: int) -> float:
    """The fraction of a parameter that the first of `parts` processes keeps if sharded by rows (stages 2 and 3)."""
    if not shape or not shape[0]:
        return 1.0
    return math.ceil(shape[0] / parts) / shape[0]
