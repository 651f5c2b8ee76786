"""Random state of Python, NumPy and the framework, as plain arrays."""

import random
from typing import Any

import numpy as np


def set_seed(seed: int, deterministic: bool = False) -> None:
    """Seed Python, NumPy and every framework that is imported."""
    import sys

    from .backends import NAMES, load

    random.seed(seed)
    np.random.seed(seed % 2**32)
    for name in NAMES:
        if name in sys.modules:
            try:
                backend = load(name)
            except ValueError:  # a framework that this release has no backend for
                continue
            backend.randomness.seed(seed)
            if deterministic:
                backend.randomness.deterministic()


def enable_full_determinism(seed: int, warn_only: bool = False) -> None:
    """Seed everything and let the framework use deterministic algorithms alone."""
    set_seed(seed, deterministic=True)


def get_state(backend: Any) -> dict[str, np.ndarray]:
    """Everything that training may draw from."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "python": np.array(words, dtype=np.uint64),
        "python.gauss": np.array([version, gauss is not None, gauss or 0.0], dtype=np.float64),
        "numpy": np.array(keys, dtype=np.uint32),
        "numpy.rest": np.array([position, has_gauss, cached], dtype=np.float64),
        **backend.randomness.get_state(),
    }


def set_state(backend: Any, state: dict[str, np.ndarray]) -> None:
    """Put back what get_state returned."""
    state = dict(state)
    words, (version, has_gauss, gauss) = state.pop("python"), state.pop("python.gauss").tolist()
    random.setstate((int(version), tuple(int(word) for word in words), gauss if has_gauss else None))
    position, has_gauss, cached = state.pop("numpy.rest").tolist()
    np.random.set_state(("MT19937", state.pop("numpy"), int(position), int(has_gauss), cached))
    if state:  # empty: of a checkpoint that another framework wrote
        backend.randomness.set_state(state)


def is_common(name: str) -> bool:
    """Whether a stream is that of Python or NumPy, and not of a framework."""
    return name.split(".")[0] in ("python", "numpy")
