"""The records of a traced step: what one process has of each tensor, put together from all of them.

How far rounding errors may move a digest is measured for what was computed again with noise; for all else it follows
from that of the gradients (`carry_rounding`).
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..formats import digests, trace_file
from ..formats.trace_file import Record, Trace
from .trace_collector import Digest, Entry, Key

_SINGLE = digests.ROUNDING["float32"]
HALVES = {"fp16": "float16", "bf16": "bfloat16"}
GRADIENTS = ("output_gradient", "input_gradient", "gradient")
# The rounding of an update of Muon, relative to its norm: products of matrices in bfloat16, which make small singular
# values as large as the others.
ORTHOGONAL = 32 * digests.ROUNDING["bfloat16"]
COMPUTED = ("input", "output", *GRADIENTS, "buffer_after")  # what is computed again to measure rounding errors


def unmeasured(dtype: str, half: str) -> float:
    """The rounding of what is computed in these types, relative to its norm, where it is not measured: sums of a layer
    or of many in float32, and of values that are rounded once each in half precision."""
    found = max(digests.rounding_of(dtype), digests.rounding_of(HALVES.get(half, "float64")))
    return found * (64.0 if found <= _SINGLE else 8.0)


class Facts(NamedTuple):
    """What is known of a tensor beside its digest."""

    type: str
    dtype: str
    shape: list[int]
    samples: int | None  # None: no axis of samples


class Piece(NamedTuple):
    """What one process has of a tensor."""

    key: Key
    facts: Facts
    where: tuple[Any, ...]
    row: np.ndarray
    noisy: list[np.ndarray | None]
    transposed: np.ndarray | None
    spread: float
    parts: list[float]  # column sums of its micro-batches
    varies: float  # how far micro-batches are apart in what has no axis of samples


def piece_of(
    key: Key,
    entry: Entry,
    place: tuple[int, int],
    rows: list[np.ndarray],
    noisy: list[list[np.ndarray] | None],
    transposed: np.ndarray | None,
    spread: float,
) -> Piece:
    """What this process has recorded of a tensor. `rows` and `noisy`: the digests of its micro-batches, and those that
    were computed again with noise; `place`: which batch this process computes, and which it is of those whose gradients
    are averaged."""
    return Piece(
        key,
        _facts(entry),
        _where(entry, *place),
        _row(entry, rows),
        [None if one is None else _row(entry, one) for one in noisy],
        transposed,
        spread if key.kind == "update" else 0.0,
        [float(row[digests.COLUMN_SUM]) for row in rows] if key.kind == "output_gradient" else [],
        0.0 if entry.is_of_batch else _apart(rows),
    )


def _facts(entry: Entry) -> Facts:
    samples = entry.samples if digests.has_samples(entry.axes) else None
    return Facts(entry.type, entry.dtype, digests.canonical_shape(entry.axes), samples)


def _where(entry: Entry, batch: int, replica: int) -> tuple[Any, ...]:
    """Which part of the tensor this process has: processes with the same part have copies."""
    return (
        batch if entry.is_of_batch else None,
        replica if entry.is_averaged else None,
        *((axis.start, axis.count) for axis in entry.axes),
    )


def merge_records(every: list[list[Piece]]) -> list[Record]:
    """The records of all processes as those of the whole tensors. Parts are added up; of copies, the first counts, or
    the mean of what a batch of its own has changed, such as a loss."""
    found: dict[Key, dict[tuple[Any, ...], list[Piece]]] = {}
    for pieces in every:
        for piece in pieces:
            found.setdefault(piece.key, {}).setdefault(piece.where, []).append(piece)
    return [_merged(key, places) for key, places in found.items()]


def _merged(key: Key, places: dict[tuple[Any, ...], list[Piece]]) -> Record:
    is_mean = key.kind in ("input", "output")
    one_each = {
        where: _mean_of(copies) if is_mean and where[0] is None else copies[0] for where, copies in places.items()
    }
    firsts = list(one_each.values())
    facts = firsts[0].facts
    total = _total(one_each)
    shape = facts.shape
    if facts.samples is not None:
        of_batches = {where[0]: copies[0].facts.samples or 0 for where, copies in places.items()}
        shape = [*shape[:-1], sum(of_batches.values())]
    parts = [number for piece in firsts for number in piece.parts]
    return Record(
        kind=key.kind,
        name=key.name[: trace_file.LONGEST],
        item=key.item[: trace_file.LONGEST],
        call=key.call,
        type=facts.type[: trace_file.LONGEST],
        shape=[int(size) for size in shape],
        dtype=facts.dtype,
        has_samples=facts.samples is not None,
        norm=_number(total.norm),
        largest=_number(total.largest),
        bad=total.bad,
        projections=[_number(value) for value in total.projections],
        column_sum=_number(total.column_sum),
        rounding=_number(_rounding(firsts, total)),
        transposed=None if firsts[0].transposed is None else [_number(v) for v in _projections(firsts[0].transposed)],
        parts=[_number(number) for number in parts] if len(parts) > 1 else None,
        replicas=_number(max(_apart([copy.row for copy in copies]) for copies in places.values()) + firsts[0].varies),
    )


def _mean_of(copies: list[Piece]) -> Piece:
    noisy = [
        None if any(row is None for row in rows) else _mean([row for row in rows if row is not None])
        for rows in zip(*(copy.noisy for copy in copies), strict=True)
    ]
    return copies[0]._replace(row=_mean([copy.row for copy in copies]), noisy=noisy)


def _total(places: dict[tuple[Any, ...], Piece]) -> Digest:
    """The digest of the whole tensor. Of what is averaged, equal parts of a batch are shares of one tensor."""
    shares: dict[tuple[Any, ...], list[np.ndarray]] = {}
    for (batch, _, *axes), piece in places.items():
        shares.setdefault((batch, *axes), []).append(piece.row)
    rows: list[np.ndarray] = []
    for each in shares.values():
        if len(each) > 1 and all(np.array_equal(row, each[0]) for row in each):
            whole = each[0] * len(each)
            whole[digests.BAD] = each[0][digests.BAD]
            each = [whole]
        rows.extend(each)
    return Digest.total(rows)


def _projections(row: np.ndarray) -> np.ndarray:
    return row[digests.FIRST : digests.COLUMN_SUM]


def _apart(rows: Sequence[np.ndarray]) -> float:
    """How far the digests of what should be equal are apart."""
    return max((float(np.abs(_projections(row) - _projections(rows[0])).max()) for row in rows[1:]), default=0.0)


def _row(entry: Entry, rows: list[np.ndarray]) -> np.ndarray:
    """The digest of all micro-batches: their sum, or the mean of what has no axis of samples."""
    return Digest.total(rows).row() if entry.is_of_batch else _mean(rows)


def _mean(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Of the digests of what is equal in all of them, or of means over different samples."""
    every = np.stack(rows)
    found = every.mean(0)
    found[[digests.LARGEST, digests.BAD]] = every[:, [digests.LARGEST, digests.BAD]].max(0)
    return found


def _rounding(firsts: list[Piece], total: Digest) -> float:
    """How far rounding errors move a projection: as the noise has moved it."""
    squares: list[float] = []
    for number in range(len(firsts[0].noisy)):
        noisy = [row for piece in firsts if (row := piece.noisy[number]) is not None]
        if len(noisy) == len(firsts):
            squares.extend(((Digest.total(noisy).projections - total.projections) ** 2).tolist())
    measured = math.sqrt(sum(squares) / len(squares)) if squares else 0.0
    return math.hypot(measured, *(piece.spread for piece in firsts))


def carry_rounding(trace: Trace, carried: dict[Key, float]) -> dict[Key, float]:
    """Fill in the rounding of what was not computed again: it follows from that of the gradients, and from what the
    recorded steps before have left (`carried`). Returns what this step leaves."""
    known = {each.key: each for each in trace.records}
    if not trace.has_rounding:
        _estimate_rounding(trace, carried)
    # 1 - beta is rounded, too: in float32, 1 - 0.999 has four digits.
    groups = trace.settings["groups"]
    first = max((_SINGLE / max(1 - group.get("beta1", 0.0), _SINGLE) for group in groups), default=_SINGLE)
    second = max((_SINGLE / max(1 - group.get("beta2", 0.0), _SINGLE) for group in groups), default=_SINGLE)
    newest = max((1 - group.get("beta2", 0.0) for group in groups), default=1.0)  # the weight of this gradient
    left: dict[Key, float] = {}
    for each in trace.records:
        gradient = known.get(("gradient", each.name, "", 0))
        share = gradient.rounding / max(gradient.norm, 1e-30) if gradient is not None else 0.0
        if each.kind in ("weight", "buffer"):
            each.rounding = carried.get(Key(each.kind, each.name), 0.0)
        elif each.kind == "clipped":
            each.rounding = share * each.norm
        elif each.kind == "state" and gradient is not None:
            if each.item.endswith("_sq"):
                clipped = known.get(("clipped", each.name, "", 0), gradient)
                moved = _rounding_of_square(each, clipped, share * clipped.norm, newest)
                each.rounding = math.hypot(moved, second * each.norm, carried.get(Key(*each.key), 0.0))
            else:
                each.rounding = math.hypot(math.hypot(share, first) * each.norm, carried.get(Key(*each.key), 0.0))
            left[Key(*each.key)] = each.rounding
        elif each.kind == "update":
            weight = known.get(("weight", each.name, "", 0))
            stored = 0.0 if weight is None else digests.rounding_of(weight.dtype) * weight.norm
            each.rounding = math.hypot(each.rounding, math.hypot(first, second) * each.norm, stored)
            left[Key("weight", each.name)] = math.hypot(each.rounding, carried.get(Key("weight", each.name), 0.0))
        elif each.kind == "buffer_after":
            each.rounding = math.hypot(each.rounding, carried.get(Key("buffer", each.name), 0.0))
            left[Key("buffer", each.name)] = each.rounding
    return left


def _estimate_rounding(trace: Trace, carried: dict[Key, float]) -> None:
    """Of what was not computed again. A gradient may be zero but for rounding, so it has that of others of its kind."""
    half, drift = str(trace.settings["half"]), drift_of(trace, carried)
    for kind in COMPUTED:
        records = [each for each in trace.records if each.kind == kind]
        least = float(np.median([each.norm for each in records])) if records and kind in GRADIENTS else 0.0
        for each in records:
            each.rounding = (unmeasured(each.dtype, half) + drift) * max(each.norm, least)


def drift_of(trace: Trace, carried: dict[Key, float]) -> float:
    """How far the recorded steps before have moved the weights by rounding, relative to their size."""
    weights = [each for each in trace.records if each.kind == "weight" and each.shape]
    sizes = [each.norm / math.sqrt(max(1, math.prod(each.shape))) for each in weights]
    least = float(np.median(sizes)) if sizes else 0.0
    moved = [carried.get(Key("weight", each.name), 0.0) / math.sqrt(max(1, math.prod(each.shape))) for each in weights]
    return math.hypot(*(one / max(size, least, 1e-30) for one, size in zip(moved, sizes, strict=True)))


def _rounding_of_square(square: Record, gradient: Record, rounding: float, weight: float) -> float:
    """How far rounding moves an average of squared gradients, in which the newest has this weight: by 2 g e + e^2,
    where the errors e are equally large everywhere, or in proportion to the gradient g, whichever is more."""
    error = rounding / math.sqrt(max(1, math.prod(gradient.shape)))
    largest = min(square.norm, weight * gradient.largest * gradient.norm)  # of the norm of weight * g^2
    proportional = 2.0 * rounding / max(gradient.norm, 1e-30) * largest
    return math.hypot(2.0 * weight * error * gradient.norm, proportional, weight * error * rounding)


def _number(value: float) -> float:
    return float(value) if math.isfinite(value) else 0.0
