"""Downsampling of curves: each interval of steps keeps its lowest and highest value."""

from array import array

import numpy as np


def downsample(steps: np.ndarray, values: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """At most `limit` (at least 8) of the points, in order.

    The steps are split into intervals of equal length. Each keeps its lowest and highest point, and one that is not
    finite if there is any, so that spikes and NaNs stay visible. The first and last points are kept.
    """
    if len(steps) <= limit:
        return steps, values
    stretches = max(1, (limit - 2) // 3)
    span = float(steps[-1] - steps[0])
    if not span:
        return steps[-1:], values[-1:]
    place = np.minimum(((steps - steps[0]) * (stretches / span)).astype(np.int64), stretches - 1)
    finite = np.isfinite(values)
    kept = [np.array([0, len(steps) - 1])]
    for which in np.flatnonzero(finite), np.flatnonzero(~finite):
        if not len(which):
            continue
        weight = np.where(finite[which], values[which], 0.0)
        order = which[np.lexsort((weight, place[which]))]
        border = np.flatnonzero(np.diff(place[order])) + 1
        kept.append(order[np.concatenate(([0], border))])
        if finite[order[0]]:
            kept.append(order[np.concatenate((border - 1, [len(order) - 1]))])
    chosen = np.unique(np.concatenate(kept))
    return steps[chosen], values[chosen]


class Series:
    """A growing curve in bounded memory, with its extreme values."""

    LIMIT = 4096  # points that are kept; downsampled when there are eight times as many

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._steps, self._values = array("d"), array("d")
        self.count = 0
        self.last: float = float("nan")
        self.reached = 0.0  # the highest step
        self.lowest: tuple[float, float] | None = None  # (value, step), among finite values
        self.highest: tuple[float, float] | None = None

    def extend(self, steps: np.ndarray, values: np.ndarray) -> None:
        self._steps.frombytes(steps.astype(float).tobytes())
        self._values.frombytes(values.astype(float).tobytes())
        self.count += len(values)
        self.last, self.reached = float(values[-1]), max(float(steps.max()), self.reached)
        finite = np.isfinite(values)
        if finite.any():
            steps, values = steps[finite], values[finite]
            low, high = int(values.argmin()), int(values.argmax())
            if self.lowest is None or values[low] < self.lowest[0]:
                self.lowest = (float(values[low]), float(steps[low]))
            if self.highest is None or values[high] > self.highest[0]:
                self.highest = (float(values[high]), float(steps[high]))
        if len(self._steps) >= 8 * self._limit:
            self.compact()

    def compact(self) -> None:
        steps, values = self.points(self._limit)
        self._steps, self._values = array("d", steps.tobytes()), array("d", values.tobytes())

    def points(self, limit: int | None = None, upto: float | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(steps, values), downsampled to a limit; with `upto`, only up to that step."""
        steps, values = np.array(self._steps), np.array(self._values)
        if len(steps) and (np.diff(steps) < 0).any():  # an evaluation of an earlier step was logged later
            order = np.argsort(steps, kind="stable")
            steps, values = steps[order], values[order]
        if upto is not None:
            steps, values = steps[steps <= upto], values[steps <= upto]
        return downsample(steps, values, limit or self._limit)
