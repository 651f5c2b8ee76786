"""Iterable data sets in worker processes: whether they deal out their samples themselves."""

import logging
from typing import Any

from ..backends import NAMES

logger = logging.getLogger(__name__)

_warned: set[type] = set()  # classes of data sets that a warning has named


def minds_workers(source: Any, depth: int = 3) -> bool:
    """Whether the code of a data set, or of one that it holds, asks for get_worker_info."""

    def asks(code: Any) -> bool:
        return "get_worker_info" in code.co_names or any(asks(c) for c in code.co_consts if hasattr(c, "co_names"))

    foreign = (*NAMES, "builtins")
    own = [base for base in type(source).__mro__ if base.__module__.partition(".")[0] not in foreign]
    codes = [getattr(value, "__code__", None) for base in own for value in vars(base).values()]
    if any(asks(code) for code in (*codes, getattr(source, "gi_code", None)) if code is not None):
        return True
    held = list(getattr(source, "__dict__", {}).values()) if depth else []
    return any(minds_workers(value, depth - 1) for value in held if hasattr(value, "__iter__"))


def warn_of_repeats(dataset: Any, framework: str, question: str) -> None:
    """Said once of a class: each worker walks through its own copy of an iterable data set."""
    kind = type(dataset)
    shards = hasattr(dataset, "n_shards") or hasattr(dataset, "num_shards")
    hub = any(base.__module__.partition(".")[0] == "datasets" for base in kind.__mro__)
    if kind in _warned or shards or hub or minds_workers(dataset):
        return
    _warned.add(kind)
    logger.warning(
        "%s is a %s IterableDataset, and each worker walks through its own copy of it. Unless its __iter__ looks at "
        "%s and yields that worker's part, samples repeat. Add that, or use dataloader_num_workers=1 or 0.",
        kind.__name__,
        framework,
        question,
    )
