"""Samples of a linear function."""

import numpy as np

WIDTH = 4


def rows(count, seed):
    source = np.random.RandomState(seed)
    x = source.randn(count, WIDTH).astype(np.float32)
    labels = x @ np.arange(1, WIDTH + 1, dtype=np.float32) + np.float32(0.5)
    return [{"x": x[i], "labels": labels[i]} for i in range(count)]
