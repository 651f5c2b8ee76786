"""The RNG of dropout and the random functions."""

from typing import Any

import numpy as np

generator = np.random.Generator(np.random.SFC64(0))


def seed(value: int) -> None:
    generator.bit_generator.state = np.random.SFC64(value).state


def get_state() -> np.ndarray:
    """Four words of the generator, and a half of one that may be left over."""
    found: Any = generator.bit_generator.state
    return np.array([*found["state"]["state"], found["has_uint32"], found["uinteger"]], dtype=np.uint64)


def set_state(array: np.ndarray) -> None:
    words = np.asarray(array, dtype=np.uint64)
    generator.bit_generator.state = {
        "bit_generator": "SFC64",
        "state": {"state": words[:4].copy()},
        "has_uint32": int(words[4]),
        "uinteger": int(words[5]),
    }
