"""What chunked losses share: how large a chunk is, and what a model does between its head and its loss. No framework.

A head is tried on a row of one sample. In its place the model is given made-up logits, and what its loss receives tells
what was done to them: nothing, a factor, a soft cap (c tanh(x / c)), or something else, which is left alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import UnsupportedError
from ..base import ChunkedTokenLosses as ChunkedTokenLosses

IGNORED = -100
CHUNK_BYTES = 2**27  # of logits in float32
FEWEST_ROWS = 256  # fewer rows make slow matrix products
POSITIONS = 32  # of the row that a head is tried on
HIGHEST = 1e4  # of the made-up logits: far above any cap


@dataclass(frozen=True)
class Between:
    """What a model does with its logits before the loss: they are multiplied, and then capped."""

    scale: float = 1.0
    cap: float | None = None

    def describe(self) -> str:
        words = [f"multiplied by {self.scale:.6g}"] * (self.scale != 1.0)
        words += [] if self.cap is None else [f"capped at {self.cap:.6g}"]
        return f" ({', '.join(words)})" if words else ""


def chunk_sizes(rows: int, words: int) -> list[int]:
    """Chunks of about the same number of rows."""
    most = max(FEWEST_ROWS, CHUNK_BYTES // (4 * max(1, words)))
    count = max(1, -(-rows // most))
    return [rows // count + (i < rows % count) for i in range(count)] if rows else []


def made_up_logits(words: int) -> np.ndarray:
    """Logits of all sizes and both signs, in no order."""
    sizes = np.geomspace(1e-2, HIGHEST, words) * np.where(np.arange(words) % 2, -1.0, 1.0)
    return np.random.Generator(np.random.PCG64(1)).permutation(sizes).astype(np.float32)


def find_between(given: np.ndarray, received: np.ndarray) -> Between:
    """What makes the received logits of the given ones; an error if it is none of those that are known."""
    if received.shape != given.shape:
        raise UnsupportedError(f"its loss receives {received.size} logits of {given.size}")
    if np.array_equal(given, received):
        return Between()
    x, y = given.astype(np.float64), received.astype(np.float64)
    largest = np.argmax(np.abs(x))
    candidates, cap = [Between(float(y[largest] / x[largest]))], abs(float(y[largest]))
    if 0 < cap < np.inf and np.abs(y).max() <= cap:
        bent = np.argmin(np.abs(np.abs(y) / cap - 0.5))  # where neither the factor nor the cap is lost in rounding
        candidates.append(Between(_rounded(float(np.arctanh(y[bent] / cap) * cap / x[bent])), cap))
    for each in candidates:
        if each.scale > 0 and np.isfinite(each.scale) and np.allclose(_applied(each, x), y, rtol=1e-5, atol=1e-6):
            return each
    raise UnsupportedError("it changes the logits before its loss by more than a factor and a soft cap")


def _rounded(scale: float) -> float:
    """A factor of 1 that was computed from rounded numbers is 1."""
    return 1.0 if abs(scale - 1) < 1e-5 else scale


def _applied(between: Between, x: np.ndarray) -> np.ndarray:
    x = x * between.scale
    return x if between.cap is None else between.cap * np.tanh(x / between.cap)


def short_row(inputs: Mapping[str, Any], labels: Sequence[str]) -> tuple[dict[str, Any], tuple[int, int]]:
    """The first positions of the first row, without labels, and the shape of the batch's labels. What describes the
    boundaries of packed documents is left out: a short row is one document."""
    shape = tuple(inputs[labels[0]].shape)
    short: dict[str, Any] = {}
    for name, value in inputs.items():
        own = tuple(getattr(value, "shape", ()))
        if name in labels or name.startswith(("cu_seq", "max_length_")) or name == "shift_labels":
            continue
        if own[:2] == shape[:2]:
            value = value[:1, :POSITIONS]
        elif own[:1] == shape[:1] and shape[0] > 1:
            value = value[:1]
        short[name] = value
    return short, (1, min(POSITIONS, shape[1]))


def made_up_labels(shape: tuple[int, int], words: int) -> np.ndarray:
    """Labels for a short row: most count, and some are ignored."""
    labels = (np.arange(np.prod(shape), dtype=np.int64) * 7 + 1) % words
    labels[2::5] = IGNORED
    return labels.reshape(shape)
