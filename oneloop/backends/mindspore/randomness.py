"""Random state of MindSpore, as plain data.

There are three RNGs: the seeds of operations such as ops.dropout and ops.uniform, which MindSpore keeps in its own
table; the default generator of mindspore.mint; and that of dropout layers, which is ours (see dropout.py).
`mindspore.set_seed` is not used, since it would seed Python and NumPy as well.
"""

import functools
import json
import logging
import sys
from typing import Any

import mindspore as ms
import numpy as np

from ...data.torch_randperm import randperm as randperm
from ...errors import CheckpointError
from ...formats.reading import parse_json
from ...formats.schema import check, integer, listing, one_of, text
from .._common.mindspore_datasets import seed_pipelines
from . import bootstrap, dropout

logger = logging.getLogger(__name__)

_seeds: Any = sys.modules["mindspore.common.seed"]  # the attribute of that name may be something else

UNSET = -1
# [operation, its number, its current seed]
_OPERATIONS = listing(listing(one_of(text(), integer(0, 2**63)), 3))
in_worker = False  # in a worker of a loader, where no operation of MindSpore may run: see loaders.py


def seed(value: int) -> None:
    """Seed every generator of the framework."""
    _seeds._GLOBAL_SEED = value % 2**31
    _seeds._KERNEL_SEED.clear()
    dropout.seed(value)
    if in_worker:
        return
    ms.manual_seed(value % 2**63)
    seed_pipelines(value)


def get_state() -> dict[str, np.ndarray]:
    """The state of every RNG that training may use."""
    table = sorted([kernel, number, current] for (kernel, number), current in _seeds._KERNEL_SEED.items())
    known = _seeds._GLOBAL_SEED
    state = {
        "mindspore.dropout": dropout.get_state(),
        "mindspore.seed": np.array([UNSET if known is None else known], dtype=np.int64),
        "mindspore.operations": np.frombuffer(json.dumps(table).encode(), dtype=np.uint8),
    }
    return state if in_worker else state | {"mindspore.generator": np.array(ms.get_rng_state().asnumpy())}


def set_state(state: dict[str, Any]) -> None:
    """Restore the result of get_state; the state of other frameworks is skipped."""
    if "mindspore.dropout" in state:
        dropout.set_state(state["mindspore.dropout"])
    if "mindspore.seed" in state:
        known = int(np.asarray(state["mindspore.seed"])[0])
        _seeds._GLOBAL_SEED = None if known == UNSET else known
    if "mindspore.operations" in state:
        stored = np.asarray(state["mindspore.operations"], dtype=np.uint8).tobytes()
        table = check(parse_json(stored, "mindspore.operations"), _OPERATIONS, "mindspore.operations")
        if any(type(entry[0]) is not str or type(entry[1]) is str or type(entry[2]) is str for entry in table):
            raise CheckpointError("mindspore.operations is not a table of operations and seeds")
        _seeds._KERNEL_SEED.clear()
        _seeds._KERNEL_SEED.update({(kernel, number): current for kernel, number, current in table})
    if "mindspore.generator" in state:
        ms.set_rng_state(ms.Tensor(np.array(state["mindspore.generator"])))


def deterministic(on: bool = True) -> None:
    """Use deterministic algorithms. MindSpore's own function for it can be called only once per process."""
    with bootstrap.quiet():
        ms.set_context(deterministic="ON" if on else "OFF")
    if on:
        _warn_about_nondeterminism()


@functools.cache
def _warn_about_nondeterminism() -> None:
    logger.warning(
        "full_determinism on MindSpore: kernels that compute a logarithm (ops.log, ops.pow, ops.softplus, and "
        "ops.cross_entropy with them) may change the last bits of their results in their first launches on a CPU. "
        "ops.log_softmax does not."
    )


def worker_seed() -> int:
    """In a worker of a loader: its seed."""
    return int(_seeds._GLOBAL_SEED or 0) % 2**32
