"""torch.randperm without torch, for data_order="transformers" on other frameworks."""

import numpy as np

from ..errors import UnsupportedError

_32_BITS = 2**32
_MOST = (_32_BITS - 1) // 20  # from this length on torch uses another algorithm


def randperm(length: int, seed: int | None) -> np.ndarray:
    """torch.randperm of a generator with this seed, without torch: NumPy's legacy generator is the same Mersenne
    Twister, and the algorithm is that of Fisher and Yates."""
    if seed is None:
        raise UnsupportedError("only torch has the default generator that this order is drawn from.")
    if length >= _MOST:
        raise UnsupportedError(
            f'data_order="transformers" without torch is limited to {_MOST - 1} samples, and the dataset has {length}. '
            'Use data_order="oneloop".'
        )
    if length < 2:
        return np.arange(length, dtype=np.int64)
    draws = np.frombuffer(np.random.RandomState(seed % _32_BITS).bytes(4 * (length - 1)), "<u4").astype(np.int64)
    others = (np.arange(length - 1) + draws % np.arange(length, 1, -1)).tolist()
    samples = list(range(length))  # faster than an array, for single elements
    for place, other in enumerate(others):
        samples[place], samples[other] = samples[other], samples[place]
    return np.array(samples, dtype=np.int64)
