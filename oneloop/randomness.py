"""Random state of Python, NumPy and the framework, as plain arrays."""

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .backends import late_seeding, registry
from .backends.loading import load
from .errors import CheckpointError


def set_seed(seed: int, deterministic: bool = False) -> None:
    """Seed Python, NumPy and every framework: those that are imported now, the others when they are imported."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    for spec in registry.specs():
        if not spec.listed:
            continue
        if not spec.is_imported:
            late_seeding.remember(spec, seed, deterministic)
            continue
        late_seeding.mark_seeded(spec.name)
        try:
            own = load(spec.name).randomness
        except ValueError:  # a framework that cannot be used here, which concerns nobody who trains with another
            continue
        own.seed(seed)
        if deterministic:
            own.deterministic()


def enable_full_determinism(seed: int, warn_only: bool = False) -> None:
    """Seed everything and let the framework use deterministic algorithms alone."""
    set_seed(seed, deterministic=True)


def get_state(backend: Any) -> dict[str, np.ndarray]:
    """The state of every RNG that training may draw from."""
    return as_arrays(read_raw_state(backend))


def read_raw_state(backend: Any) -> tuple[Any, Any, dict[str, np.ndarray]]:
    """The state in the form that Python, NumPy and the framework return it, which is faster; see as_arrays."""
    return random.getstate(), np.random.get_state(), backend.randomness.get_state()


def as_arrays(state: tuple[Any, Any, dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    (version, words, gauss), (name, keys, position, has_gauss, cached), of_framework = state
    return {
        "python": np.array(words, dtype=np.uint64),
        "python.gauss": np.array([version, gauss is not None, gauss or 0.0], dtype=np.float64),
        "numpy": np.array(keys, dtype=np.uint32),
        "numpy.rest": np.array([position, has_gauss, cached], dtype=np.float64),
        **of_framework,
    }


def check_state(backend: Any, state: dict[str, np.ndarray], source: str, is_common_only: bool = False) -> None:
    """Compare a stored state with the current one: names, types and shapes. Those of accelerators may differ, since a
    run may continue on another machine. `is_common_only`: another framework has stored it."""
    current = get_state(backend)
    current = {name: array for name, array in current.items() if not is_common_only or is_common(name)}
    missing = [name for name in current if name not in state and not _ON_ACCELERATOR.search(name)]
    if missing:
        raise CheckpointError(f"{source} is incomplete: it has no {missing[0]}")
    for name, array in current.items():
        found = state.get(name)
        if found is None:
            continue
        varies = array.dtype == np.uint8  # text, or what the framework checks itself
        if found.dtype != array.dtype or found.ndim != array.ndim or (found.shape != array.shape and not varies):
            raise CheckpointError(
                f"{name} in {source} is {found.dtype} of shape {found.shape}, expected {array.dtype} of {array.shape}"
            )


_ON_ACCELERATOR = re.compile(r"\.(cuda|gpu|xpu|npu|mps|hip)\b")


def set_state(backend: Any, state: dict[str, np.ndarray]) -> None:
    """Restore the result of get_state."""
    state = dict(state)
    set_state_of_python(state.pop("python"), state.pop("python.gauss"))
    position, has_gauss, cached = state.pop("numpy.rest").tolist()
    np.random.set_state(("MT19937", state.pop("numpy"), int(position), int(has_gauss), cached))
    if state:  # empty: of a checkpoint that another framework wrote
        backend.randomness.set_state(state)


@contextmanager
def preserve_state(backend: Any) -> Iterator[None]:
    """A context that leaves the random state as it was."""
    state = get_state(backend)
    try:
        yield
    finally:
        set_state(backend, state)


def set_state_of_python(words: np.ndarray, rest: np.ndarray) -> None:
    version, has_gauss, gauss = rest.tolist()
    random.setstate((int(version), tuple(int(word) for word in words), gauss if has_gauss else None))


def is_common(name: str) -> bool:
    """Whether a stream is that of Python or NumPy, and not of a framework."""
    return name.split(".")[0] in ("python", "numpy")
