"""Known patterns behind a difference. Each is checked against the numbers; what only might be is not said."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from ..formats import digests
from ..formats.trace_file import Record, Trace
from .comparison import (
    ACCUMULATION,
    CLIPPING,
    GRADIENT,
    INPUT,
    NO_GRADIENT,
    STATE,
    UPDATE,
    Finding,
    Step,
    other_options,
)

LONGEST = 1 << 24  # positions
SCALED = ("weight", "buffer", "output", "gradient", "clipped", "update", "state")  # records that a factor may explain
SCALED_LOSS = "the loss is scaled by that"
SIMPLE = [*range(2, 65), *(1 / number for number in range(2, 65))]  # factors that are no coincidence
CLOSE = 0.02  # of the difference may be left unexplained


def hints_for(finding: Finding, step: Step, a: Sequence[Trace], b: Sequence[Trace]) -> Iterator[str]:
    """All that fit."""
    if finding.kind == INPUT:
        yield from _data(finding, step, a, b)
        return
    if finding.pair is not None:
        yield from _of_values(finding, step)
    yield from _settings(finding, step)


# -- data


def _data(finding: Finding, step: Step, a: Sequence[Trace], b: Sequence[Trace]) -> Iterator[str]:
    every = [Counter(sample for trace in run for sample in trace.samples) for run in (a, b)]
    names = set(step.a.columns) | set(step.b.columns)
    changed = sorted(name for name in names if step.a.columns.get(name) != step.b.columns.get(name))
    missing = sorted(set(step.a.columns) ^ set(step.b.columns))
    widths = [name for name in names if _width(step.a, name) != _width(step.b, name)]
    if finding.pair is not None:
        yield "the batch is the same on the host: something changes it on the way to the model"
    elif missing:
        yield f"columns that only one of them has: {', '.join(missing)}"
    elif not changed:
        yield "the columns have the same values, but they are combined in another way: labels of other samples"
    elif every[0] == every[1] and len(a) > 1:
        yield "the data is in another order: over all recorded steps the samples are the same"
    elif widths:
        yield f"{', '.join(sorted(widths))}: other shapes, such as padding to another length"
    elif set(changed) != names:
        yield f"only {', '.join(changed)} of the columns differs"
    elif sum((every[0] & every[1]).values()):
        yield "the data is in another order: some samples are in both runs, in other steps"


def _width(trace: Trace, name: str) -> list[int]:
    return trace.shapes.get(name, [])[1:]


# -- values


def _of_values(finding: Finding, step: Step) -> Iterator[str]:
    assert finding.pair is not None
    a, b = finding.pair.a, finding.pair.b
    if "copies" in finding.pair.reason:
        yield "the processes of one run have different values of what should be equal: a sum over processes is missing"
    if a.kind == "weight" and a.transposed and _fits(np.array(a.transposed), b):
        yield "the weight of B is that of A, transposed"
    if a.kind in ("buffer_after", "buffer"):
        yield from _stale(a, step)
    if a.kind == "output":
        yield from _bias(a, b, step)
    if a.kind in ("input", "output"):
        yield from _calls(step)
    if finding.pair.reason.startswith(NO_GRADIENT) and a.kind == "gradient":
        run = finding.pair.reason[-1]
        yield f"{a.name} has no gradient in {run}: it is frozen or detached there, or the layer is made without it"
    elif finding.pair.reason.startswith(NO_GRADIENT):
        yield (
            f"nothing flows back from there in {finding.pair.reason[-1]}: a tensor is detached, or computed where "
            "gradients are off"
        )
    elif finding.kind in (GRADIENT, ACCUMULATION) and (a.norm == 0) != (b.norm == 0) and a.bad == b.bad:
        yield f"it is zero in {'A' if a.norm == 0 else 'B'}: a tensor is detached, or not used"
    elif not (a.bad or b.bad) and (finding.kind in (GRADIENT, ACCUMULATION) or a.kind in SCALED):
        yield from _scale(finding, a, b, step)
    if finding.kind == ACCUMULATION:
        yield from _missing_part(step)
    if "dropout" in finding.layer.lower():
        yield (
            "dropout draws other random numbers: frameworks have different generators, and another order of the layers "
            "draws other masks. Compare with dropout 0"
        )


def _fits(values: np.ndarray, record: Record) -> bool:
    """Whether these projections are those of a record, up to rounding."""
    precision = 50 * digests.ROUNDING["float32"] * max(record.norm, 1e-30)
    return bool(np.abs(values - np.array(record.projections)).max() <= max(precision, 6 * record.rounding))


def _explains(change: np.ndarray, a: Record, b: Record) -> bool:
    """Whether this is the difference between two records."""
    whole = np.array(b.projections) - np.array(a.projections)
    size = float(np.linalg.norm(whole))
    return size > 0 and float(np.linalg.norm(whole - change)) <= CLOSE * size


def _constant(record: Record, trace: Trace) -> np.ndarray:
    """The projections of an activation that has 1 everywhere but along its features."""
    samples = np.array([int(sample, 16) for sample in trace.samples], dtype=np.uint64)
    found = (
        digests.factors_of(samples).astype(np.float64).sum(0) if record.has_samples else np.ones(digests.PROJECTIONS)
    )
    positions = record.shape[: len(record.shape) - 1 - record.has_samples]
    if max(positions, default=0) > LONGEST:
        return np.zeros(digests.PROJECTIONS)
    for place, size in enumerate(positions):
        found = found * digests.factors(f"activation.{place}", 0, size).astype(np.float64).sum(0)
    return found


def _bias(a: Record, b: Record, step: Step) -> Iterator[str]:
    for name in (f"{a.name}.bias", a.name.rpartition(".")[0] + ".bias"):
        bias = step.ours.get(("weight", name, "", 0)) or step.theirs.get(("weight", name, "", 0))
        if bias is None or bias.norm == 0:
            continue
        change = np.array(bias.projections) * _constant(a, step.a)
        if _explains(-change, a, b):
            yield f"{name} is missing in B"
        elif _explains(change, a, b):
            yield f"{name} is missing in A, or added twice in B"


def _calls(step: Step) -> Iterator[str]:
    """The first layers that both have, but do not use as often."""
    calls: dict[str, list[int]] = {}
    for run, records in enumerate((step.ours, step.theirs)):
        for record in records.values():
            if record.kind == "output":
                most = calls.setdefault(record.name, [0, 0])
                most[run] = max(most[run], record.call + 1)
    others = ((name, counts) for name, counts in calls.items() if all(counts) and counts[0] != counts[1])
    for name, (ours, theirs) in itertools.islice(others, 3):
        yield f"{name} is called {_times(ours)} in A, {_times(theirs)} in B"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _scale(finding: Finding, a: Record, b: Record, step: Step) -> Iterator[str]:
    ours, theirs = np.array(a.projections), np.array(b.projections)
    bias = step.ours.get(("weight", f"{a.name}.bias", "", 0)) if a.kind == "output" else None
    if bias is not None:
        shift = np.array(bias.projections) * _constant(a, step.a)
        ours, theirs = ours - shift, theirs - shift
    square = float(ours @ ours)
    if square == 0:
        return
    factor = float(ours @ theirs) / square
    change = theirs - ours
    whole = float(np.linalg.norm(change))
    if whole == 0:
        return
    if a.kind == "output" and not a.shape:  # a loss; some factor fits any two numbers
        cause = _divisor(factor, step)
        if cause != SCALED_LOSS or _is_near(factor, SIMPLE):
            yield f"the loss of B is {factor:.6g} times that of A: {cause}"
        return
    if a.kind == "output" and "norm" in finding.layer.lower():
        # Each row by a factor of its own, which depends on its variance; all of them in one direction.
        is_along = abs(float(ours @ change)) > 0.3 * whole * square**0.5
        if is_along and abs(factor - 1) < 0.2 and (b.norm - a.norm) * (factor - 1) > 0:
            yield f"the output of B is about {b.norm / a.norm:.7g} times that of A: another epsilon"
        return
    if float(np.linalg.norm(theirs - factor * ours)) > 0.1 * min(whole, float(np.linalg.norm(theirs))):
        return
    if finding.kind == UPDATE:
        yield f"the change in B is {factor:.6g} times that in A: another learning rate"
    elif finding.kind == ACCUMULATION or (finding.kind == GRADIENT and not finding.module):
        yield f"all gradients of B are {factor:.6g} times those of A: {_divisor(factor, step)}"
    else:
        yield f"B has {factor:.6g} times the values of A"


def _divisor(factor: float, step: Step) -> str:
    """What a factor of the loss may be."""
    one, other = step.a.settings, step.b.settings
    known = {
        "the number of micro-batches": (one.get("micro_batches"), other.get("micro_batches")),
        "the number of processes": (one.get("processes"), other.get("processes")),
        "the number of samples": (len(step.a.samples), len(step.b.samples)),
        "the loss scale": (one.get("loss_scale"), other.get("loss_scale")),
    }
    for name, numbers in known.items():
        for number in numbers:
            if isinstance(number, (int, float)) and number > 1 and _is_near(factor, (number, 1 / number)):
                return f"the loss is scaled by {name}, or its sum is taken for a mean"
    return SCALED_LOSS


def _is_near(value: float, others: Sequence[float]) -> bool:
    return any(abs(value / other - 1) < 1e-3 for other in others)


def _stale(a: Record, step: Step) -> Iterator[str]:
    """A buffer that only one of them updates; one that neither does is a constant."""
    stale = []
    for name, records in (("A", step.ours), ("B", step.theirs)):
        before, after = records.get(("buffer", a.name, "", 0)), records.get(("buffer_after", a.name, "", 0))
        if before is not None and after is not None and before.projections == after.projections:
            stale.append(name)
    if len(stale) == 1:
        yield f"{a.name} was not updated in {stale[0]}: the layer is in evaluation mode, or its statistics are frozen"


def _missing_part(step: Step) -> Iterator[str]:
    """A part of the sum over processes and micro-batches: the gradient of a bias is the sum of those of its outputs."""
    for name, records in (("A", step.ours), ("B", step.theirs)):
        for key, output in records.items():
            bias = records.get(("gradient", f"{output.name}.bias", "", 0))
            if key[0] != "output_gradient" or not output.parts or bias is None:
                continue
            lacks = output.column_sum - bias.projections[0]
            close = max(1e-3 * abs(lacks), 1e-6 * max(abs(output.column_sum), bias.norm))
            found = [i for i, part in enumerate(output.parts) if abs(part - lacks) <= close and abs(part) > 10 * close]
            if len(found) == 1:
                parts = f"part {found[0] + 1} of {len(output.parts)}"
                yield f"{parts} is missing from the sum over processes and micro-batches in {name}"
                return


# -- settings


def _settings(finding: Finding, step: Step) -> Iterator[str]:
    """Arguments that differ and concern this kind of difference."""
    a, b = step.a.settings, step.b.settings
    names = {CLIPPING: ("max_grad_norm",), UPDATE: ("optimizer",), STATE: ("optimizer",)}
    for name in names.get(finding.kind, ()):
        if a.get(name) != b.get(name):
            yield f"{name}: {a.get(name)} in A, {b.get(name)} in B"
    if finding.kind in (UPDATE, STATE):
        yield from map(str, other_options(step.a, step.b))
