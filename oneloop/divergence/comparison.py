"""Compares the recordings of two runs in the order in which an update computes things.

Two digests agree if their projections are not farther apart than rounding explains: THRESHOLD times what both
recordings have measured (see trainer/tracing.py), and the precision of a digest itself. What is named is the layer in
which the first difference appears: an output that differs is its layer's; an input that differs, while everything
before it agrees, was computed by the code of the layer around.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..errors import ArgumentError
from ..formats import digests
from ..formats.trace_file import Record, Trace

THRESHOLD = 6.0
# Where something differs, the first place is one that is so many times farther apart than rounding explains. Without a
# difference, none in 400 pairs of runs was (tests/divergence/search.py).
DOUBTFUL = 4.0
PRECISION = 6 * digests.ROUNDING["float32"]  # of a digest, relative to the norm
# A measured rounding is limited to that many roundings of the norm, or of what such norms usually are: where an update
# computes something else when it is computed again, the rest is not rounding.
CHAOS = 3e4
# One rounding of a value to its own type, in half units in the last place: noise does not repeat it, since values that
# are almost the same are rounded to the same one.
OWN = 0.6
FEW = 8  # values of a tensor, for which a measured rounding is uncertain: it is at least the usual one
HALVES = {"fp16": "float16", "bf16": "bfloat16"}
DIVIDING = {"tensor", "sequence", "expert"}  # axes of the mesh along which activations are divided
MEASURED = ("input", "output", "output_gradient", "input_gradient", "gradient")
MANY = 0.25  # share of parameters that differ, from which on it is none of a single layer

INPUT, ACTIVATION, GRADIENT, ACCUMULATION = "input data", "activation", "gradient", "accumulation"
CLIPPING, UPDATE, STATE = "clipping", "update", "state"
ALL = "(all parameters)"
BATCH = "(batch)"
LOSS = "(loss)"  # of the update
NO_GRADIENT = "no gradient in "  # A or B

# The order in which records are compared; the records of one phase are in the order in which the run has made them.
PHASES: tuple[tuple[str, ...], ...] = (
    ("weight", "buffer"),
    ("input", "output"),
    ("output_gradient", "input_gradient"),
    ("gradient",),
    ("clipped",),
    ("state",),
    ("update",),
    ("buffer_after",),
)
TITLES = {
    "weight": "weights",
    "buffer": "buffers",
    "input": "inputs of layers",
    "output": "outputs of layers",
    "output_gradient": "gradients of outputs",
    "input_gradient": "gradients of inputs",
    "gradient": "gradients of parameters",
    "clipped": "clipped gradients",
    "state": "optimizer states",
    "update": "updates",
    "buffer_after": "buffers after the step",
}


Key = tuple[str, str, str, int]


@dataclass(frozen=True)
class Pair:
    """The same tensor in both runs."""

    a: Record
    b: Record
    distance: float  # between the projections
    expected: float  # by rounding
    reason: str = ""  # of a difference that is none of values

    @property
    def ratio(self) -> float:
        return self.distance / max(self.expected, 1e-300)

    @property
    def differs(self) -> bool:
        return bool(self.reason) or not self.ratio <= THRESHOLD


@dataclass(frozen=True)
class Finding:
    """The first difference."""

    step: int
    kind: str
    module: str  # "" is the model itself
    layer: str  # the class of the layer, as far as it is known
    what: str
    pair: Pair | None = None
    others: int = 0  # records of the same kind that differ, too
    hints: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        name = self.module or "the model"
        return f"{name} ({self.layer})" if self.layer and self.module not in (ALL, BATCH) else name


@dataclass
class Comparison:
    """Two runs."""

    names: tuple[str, str]
    frameworks: tuple[str, str]
    steps: list[int]
    first: Finding | None = None
    agreed: dict[str, int] = field(default_factory=dict)  # records that agree before it, by title
    only: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))  # names in one of them
    notes: list[str] = field(default_factory=list)
    largest: float = 0.0  # of the distances that agree, relative to rounding

    @property
    def agrees(self) -> bool:
        return self.first is None


def compare(
    a: Sequence[Trace],
    b: Sequence[Trace],
    names: tuple[str, str] = ("A", "B"),
    mapping: Mapping[str, str] | None = None,
) -> Comparison:
    """Compare the steps that both have. `mapping`: names of A, or their beginnings, to those of B."""
    from .hints import hints_for

    ours, theirs = {trace.step: trace for trace in a}, {trace.step: _renamed(trace, mapping or {}) for trace in b}
    steps = sorted(set(ours) & set(theirs))
    frameworks = (a[0].framework if a else "", b[0].framework if b else "")
    found = Comparison(names, frameworks, steps, notes=list(_unknown(mapping or {}, a, b)))
    agreed: Counter[str] = Counter()
    for step in steps:
        one = Step(ours[step], theirs[step])
        found.first = one.find(agreed)
        found.largest = max(found.largest, one.largest)
        if step == steps[0]:
            found.only = one.only
        if found.first is not None:
            found.first = replace(found.first, hints=tuple(hints_for(found.first, one, list(ours.values()), b)))
            break
    found.agreed = dict(agreed)
    if steps and not (ours[steps[0]].has_rounding and theirs[steps[0]].has_rounding):
        found.notes.append(
            "Rounding errors were not measured, since training_step or compute_loss is overridden: they are estimated. "
            "Name the overrides in replay_overrides if they may be called again."
        )
    return found


def _unknown(mapping: Mapping[str, str], a: Sequence[Trace], b: Sequence[Trace]) -> Iterator[str]:
    """Notes on names of the mapping that a run does not have."""
    for side, names, traces in (("A", mapping.keys(), a), ("B", mapping.values(), b)):
        known = {record.name for trace in traces for record in trace.records}
        for name in names:
            if name not in known and not any(each.startswith(f"{name}.") for each in known):
                yield f"The mapping has {name}, which is no name in {side}, nor the beginning of one."


def _renamed(trace: Trace, mapping: Mapping[str, str]) -> Trace:
    """The recording of B under the names of A."""
    if not mapping:
        return trace
    back = sorted(((theirs, ours) for ours, theirs in mapping.items()), key=lambda pair: -len(pair[0]))

    def name_of(name: str) -> str:
        for theirs, ours in back:
            if name == theirs or name.startswith(f"{theirs}."):
                return ours + name[len(theirs) :]
        return name

    records = [replace(record, name=name_of(record.name)) for record in trace.records]
    counts = Counter(record.key for record in records)
    twice = [record for record in records if counts[record.key] > 1]
    if twice:
        raise ArgumentError(
            f"The mapping gives two of B the name {twice[0].name}. Map the other one to a name that A does not have."
        )
    return replace(trace, records=records)


class Step:
    """One step of both runs."""

    def __init__(self, a: Trace, b: Trace) -> None:
        self.a, self.b = a, b
        self.ours = {record.key: record for record in a.records}
        self.theirs = {record.key: record for record in b.records}
        self.largest = 0.0
        self.usual = {
            kind: float(np.median([record.norm for record in a.records if record.kind == kind] or [0.0]))
            for kind in MEASURED
        }
        self.shares = math.hypot(*(_usual_share(trace) for trace in (a, b)))
        self.layers = {record.name: record.type for record in a.records if record.type or record.kind == "output"}
        self._means: list[Pair] = []  # outputs that are another one in every micro-batch and process: their means

    @property
    def only(self) -> tuple[list[str], list[str]]:
        """Layers and parameters that only one of them has."""

        def of(own: Mapping[Any, Record], other: Mapping[Any, Record]) -> list[str]:
            known = {(record.kind, record.name) for record in other.values()}
            kinds = ("weight", "buffer", "output")
            names = (r.name for r in own.values() if r.kind in kinds and (r.kind, r.name) not in known)
            return list(dict.fromkeys(names))

        return of(self.ours, self.theirs), of(self.theirs, self.ours)

    def find(self, agreed: Counter[str]) -> Finding | None:
        """The first difference; what agrees before it is counted."""
        found = self._compare_batch()
        if found is not None:
            return found
        agreed["samples"] += len(self.a.samples)
        phases = []
        for kinds in PHASES:
            phases.append(self._pairs(kinds))
            if any(pair.differs for pair in phases[-1]):
                return self._first_of(phases, agreed)
            self.largest = max(self.largest, *(pair.ratio for pair in phases[-1]), 0.0)
        agreed.update(TITLES[pair.a.kind] for pairs in phases for pair in pairs)
        return self._compare_options()

    def _first_of(self, phases: list[list[Pair]], agreed: Counter[str]) -> Finding | None:
        """The first place of a difference, which may be below the threshold there; what agrees before it is counted."""
        for pairs in phases:
            for pair in pairs:
                if pair.differs or pair.ratio > DOUBTFUL:
                    return self._finding(pair, pairs)
                agreed[TITLES[pair.a.kind]] += 1
        return None

    def _compare_options(self) -> Finding | None:
        """Options of the optimizer whose effect in this step is within rounding."""
        for option in other_options(self.a, self.b):
            return Finding(self.a.step, OPTIONS[option.name], ALL, "", f"{option}, with an effect within rounding")
        return None

    def _compare_batch(self) -> Finding | None:
        a, b = self.a, self.b
        if Counter(a.samples) == Counter(b.samples):
            return None
        common = len((Counter(a.samples) & Counter(b.samples)).keys())
        what = f"{len(a.samples)} samples in A, {len(b.samples)} in B, {common} of them the same"
        return Finding(a.step, INPUT, BATCH, "", what)

    def _pairs(self, kinds: tuple[str, ...]) -> list[Pair]:
        """Records of these kinds that both have, in the order of A, and gradients that one of them lacks."""
        found = []
        for key, record in self._in_order(kinds):
            other = self.theirs.get(key)
            if key not in self.ours:
                found.append(replace(self.pair(_nothing(record), record), reason=f"{NO_GRADIENT}A"))
            elif other is not None and record.has_samples == other.has_samples:
                pair = self.pair(record, other)
                is_mean = record.kind in ("input", "output") and not record.has_samples
                # A mean over a micro-batch, such as its loss, is another one in every micro-batch and process.
                is_other_mean = is_mean and max(record.replicas, other.replicas) > THRESHOLD * pair.expected
                if is_other_mean and record.kind == "output":
                    self._means.append(pair)
                if not is_other_mean and not self._is_part(pair):
                    found.append(pair)
            elif other is None and (_lacks_gradient(self.theirs, record) or self._is_untrained(record, key)):
                found.append(replace(self.pair(record, _nothing(record)), reason=f"{NO_GRADIENT}B"))
        return found

    def _is_untrained(self, record: Record, key: Key) -> bool:
        """Whether this is the gradient of a parameter, by more than rounding, that one of the runs does not train."""
        if record.kind != "gradient":
            return False
        own, other = (self.ours, self.theirs) if key in self.ours else (self.theirs, self.ours)
        pair = self.pair(record, _nothing(record))
        return pair.ratio > THRESHOLD and _has_untrained(own, other, record.name)

    def _in_order(self, kinds: tuple[str, ...]) -> Iterator[tuple[Key, Record]]:
        """Records of A, and behind the one that B has before it, each gradient that only B has."""
        own: dict[Key | None, list[tuple[Key, Record]]] = {}
        last: Key | None = None
        for key, record in self.theirs.items():
            if record.kind not in kinds:
                continue
            if key in self.ours:
                last = key
            elif _lacks_gradient(self.ours, record) or self._is_untrained(record, key):
                own.setdefault(last, []).append((key, record))
        yield from own.get(None, ())
        for key, record in self.ours.items():
            if record.kind in kinds:
                yield key, record
                yield from own.get(key, ())

    def _is_part(self, pair: Pair) -> bool:
        """Whether one of them is a process's part of an activation, between layers that divide it, or of a gradient
        that the layer is still going to add up: these are compared where they are whole again."""
        meshes = [one.settings.get("mesh") for one in (self.a, self.b)]
        if not any(isinstance(mesh, dict) and set(mesh) & DIVIDING for mesh in meshes):
            return False
        a, b = pair.a, pair.b
        is_divided = a.shape != b.shape and a.kind in MEASURED and a.kind != "gradient"
        apart = max(a.replicas, b.replicas) > THRESHOLD * pair.expected
        return is_divided or (a.kind == "input_gradient" and apart)

    def pair(self, a: Record, b: Record) -> Pair:
        distance, norm = _distance(a, b), max(a.norm, b.norm)
        most = math.inf
        if a.kind in MEASURED:
            most = CHAOS * max(norm, self.usual[a.kind]) * self._rounding_of(a, b)
        measured = min(a.rounding, most), min(b.rounding, most)
        expected = math.hypot(*measured, _own_rounding(a, b), PRECISION * norm)
        if a.kind not in ("weight", "buffer") and math.prod(a.shape) < FEW:
            expected = math.hypot(expected, self.shares * norm * (2 if a.item.endswith("_sq") else 1))
        reason = ""
        if a.shape != b.shape:
            reason = f"shapes {a.shape} and {b.shape}"
        elif a.bad != b.bad:
            reason = f"{a.bad} and {b.bad} values that are not finite"
        else:
            apart = max(a.replicas, b.replicas)
            if apart > THRESHOLD * expected:
                reason = f"copies in the processes of {'A' if a.replicas > b.replicas else 'B'} differ by {apart:.2g}"
        return Pair(a, b, distance, expected, reason)

    def _rounding_of(self, a: Record, b: Record) -> float:
        """Of the coarsest type that either run has computed with."""
        types = [a.dtype, b.dtype, *(HALVES.get(str(one.settings.get("half")), "float64") for one in (self.a, self.b))]
        return max(map(digests.rounding_of, types))

    # -- what is named

    def _finding(self, pair: Pair, pairs: list[Pair]) -> Finding:
        record = pair.a
        kind, module = self._place(pair, pairs)
        layer = self.layers.get(module, "")
        same = [each for each in pairs if each.a.kind == record.kind]
        others = sum(each.differs for each in same if each is not pair)
        return Finding(self.a.step, kind, module, layer, _describe(record), pair, others)

    def _place(self, pair: Pair, pairs: list[Pair]) -> tuple[str, str]:
        record = pair.a
        if record.kind == "input":
            return (INPUT, BATCH) if not record.name else (ACTIVATION, self.around(record.name))
        if record.kind == "output":
            return ACTIVATION, self._origin(pair) if record.name == LOSS else record.name
        if record.kind == "output_gradient":
            return GRADIENT, self.around(record.name)
        if record.kind == "input_gradient":
            return GRADIENT, record.name
        owner = record.name.rpartition(".")[0]
        if pair.reason.startswith(NO_GRADIENT):
            return GRADIENT, owner
        kind = {"gradient": GRADIENT, "clipped": CLIPPING, "update": UPDATE}.get(record.kind, STATE)
        if record.kind in ("weight", "buffer", "buffer_after"):
            return kind, owner
        same = [each for each in pairs if each.a.kind == record.kind and each.a.item == record.item]
        differing = [each.a.name for each in same if each.differs]
        if any(OPTIONS[option.name] == kind for option in other_options(self.a, self.b)):
            return kind, ALL
        is_of_all = len({name.rpartition(".")[0] for name in differing}) > 1 and len(differing) >= MANY * len(same)
        if record.kind == "gradient" and (is_of_all or "copies" in pair.reason):
            kind = ACCUMULATION
        return kind, ALL if is_of_all else owner

    def _origin(self, loss: Pair) -> str:
        """The layer whose output is the loss of the update in both runs, if it is a mean over micro-batches and
        processes there; otherwise the loss was changed after the model."""
        for mean in self._means:
            own = zip((mean.a, mean.b), (loss.a, loss.b), strict=True)
            if all(_distance(one, other) <= THRESHOLD * max(mean.expected, loss.expected) for one, other in own):
                return mean.a.name
        return LOSS

    def around(self, name: str) -> str:
        """The layer whose code calls this one."""
        while name:
            name = name.rpartition(".")[0]
            if name in self.layers:
                break
        return name


def _distance(a: Record, b: Record) -> float:
    return float(np.sqrt(np.mean((np.array(a.projections) - np.array(b.projections)) ** 2)))


def _own_rounding(a: Record, b: Record) -> float:
    """By which values differ that were rounded to the types of these records. Weights and buffers are read from a
    checkpoint: in the same type they are equal."""
    if a.kind in ("weight", "buffer") and a.dtype == b.dtype:
        return 0.0
    return math.hypot(*(OWN * digests.rounding_of(each.dtype) * each.norm for each in (a, b)))


def _nothing(record: Record) -> Record:
    return replace(record, norm=0.0, largest=0.0, projections=[0.0] * digests.PROJECTIONS)


def _lacks_gradient(records: Mapping[Key, Record], record: Record) -> bool:
    """Whether a run has a gradient of the outputs of a layer, but none of its inputs, of which this is one."""
    if record.kind != "input_gradient":
        return False
    has = {key[0] for key in records if key[1] == record.name and key[3] == record.call}
    return "output_gradient" in has and "input_gradient" not in has


def _has_untrained(own: Mapping[Key, Record], other: Mapping[Key, Record], name: str) -> bool:
    """Whether the other run has this parameter without its gradient, or has its layer, but does not train it there.
    One with parameters that are not known here may have it under another name."""
    weight, update = ("weight", name, "", 0), ("update", name, "", 0)
    if weight in other:
        # A gradient that is not recorded, such as a sparse one, changes the weight.
        return update in own and own[update].norm > 0 and update in other and other[update].norm == 0
    if any(key not in own for key in other if key[0] == "weight"):
        return False
    owner = name.rpartition(".")[0]
    return any(key[0] == "output" and key[1] == owner for key in other)


def _usual_share(trace: Trace) -> float:
    """The rounding of outputs, relative to their norms."""
    shares = [record.rounding / record.norm for record in trace.records if record.kind == "output" and record.norm]
    return float(np.median(shares or [0.0]))


class Option(NamedTuple):
    """An option of the optimizer that the runs have different values of, by group."""

    name: str
    a: list[float]
    b: list[float]

    def __str__(self) -> str:
        ours, theirs = (", ".join(f"{value:.9g}" for value in values) for values in (self.a, self.b))
        return f"{self.name}: {ours} in A, {theirs} in B"


OPTIONS = {
    "beta1": STATE,
    "beta2": STATE,
    "momentum": STATE,
    "learning_rate": UPDATE,
    "eps": UPDATE,
    "weight_decay": UPDATE,
}


def other_options(a: Trace, b: Trace) -> list[Option]:
    """Those that both runs have, with values that are not the same in float32."""
    found = (Option(name, _values(a, name), _values(b, name)) for name in OPTIONS)
    return [each for each in found if each.a and each.b and not _equal(each.a, each.b)]


def _values(trace: Trace, name: str) -> list[float]:
    settings = trace.settings
    groups = settings.get("groups")
    rows = [settings] if name == "learning_rate" else groups if isinstance(groups, list) else []
    found = (row.get(name) for row in rows if isinstance(row, dict))
    return sorted({value for value in found if isinstance(value, (int, float))})


def _equal(ours: list[float], theirs: list[float]) -> bool:
    return len(ours) == len(theirs) and all(map(partial(math.isclose, rel_tol=1e-6), ours, theirs))


def _describe(record: Record) -> str:
    words = {
        "weight": "weight {0} before the step",
        "buffer": "buffer {0} before the step",
        "input": "input {1} of {0}",
        "output": "output {1} of {0}",
        "output_gradient": "gradient of output {1} of {0}",
        "input_gradient": "gradient of input {1} of {0}",
        "gradient": "gradient of {0}, accumulated",
        "clipped": "gradient of {0}, clipped",
        "state": "{1} of {0}, in the optimizer",
        "update": "change of {0}",
        "buffer_after": "buffer {0} after the step",
    }[record.kind]
    call = f", call {record.call + 1}" if record.call else ""
    return words.format(record.name or "the model", record.item) + call
