"""Memory and messages of layouts that are not simulated: what is computed from a few simulated steps is what a step of
such a layout would need. The steps are of a machine made of formulas, so that the exact figures are known."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from oneloop.plan import messages
from oneloop.plan.layouts import Axes, ParallelLayout, layouts
from oneloop.plan.results import ModelSizes
from oneloop.plan.search import Candidate, Estimates, candidates, search

WEIGHTS, STATE, FIXED, PER_ROW = 8_000_000, 16_000_000, 600_000, 900_000
# What is left of weights and of the rest on 1/n of the processes of an axis: a whole share, and one that is divided.
WHOLE_WEIGHTS = {"tensor": 0.1, "sequence": 1.0, "expert": 0.4}
WHOLE_REST = {"tensor": 0.3, "sequence": 0.05, "expert": 0.7}
SIZES = ModelSizes(2_000_000, 2_000_000, WEIGHTS, WEIGHTS, STATE)


def share(whole, axes):
    found = 1.0
    for name, size in axes.used.items():
        found *= whole[name] + (1 - whole[name]) / size
    return found


@dataclass
class Machine:
    """Steps as `Memories` simulates them, exactly as the rules of search.py say."""

    world: int
    rows: int = 4

    def step(self, layout, recompute, rows=None, world=1, accumulation=None):
        rows, part = rows or self.rows, share(WHOLE_WEIGHTS, layout.axes)
        weights, state = WEIGHTS * part, STATE * part
        rest = (FIXED + PER_ROW * (0.25 if recompute else 1) * rows) * share(WHOLE_REST, layout.axes)
        if layout.shards_gradients:
            # Gradients are shards; stage 2 has whole weights until the last micro-batch.
            degree = layout.degree if "hybrid" in layout.sharding else world // layout.axes.size
            rest += WEIGHTS * part / degree + ("stage2" in layout.sharding) * weights
            weights, state = weights / degree, state / degree
        kinds = [("all_reduce", 500_000, 2)] if layout.axes.tensor > 1 or layout.axes.expert > 1 else []
        kinds += [("all_to_all", 300_000 // layout.axes.sequence, 2)] if layout.axes.sequence > 1 else []
        scaled = tuple((kind, size * rows // self.rows, count) for kind, size, count in kinds)
        peak = round(weights + state + rest)
        return SimpleNamespace(peak=peak, parameters=round(weights), optimizer=round(state), collectives=scaled)

    def peak(self, layout, recompute, tensors, model, world, rows=None, accumulation=None):
        found = self.step(layout, recompute, rows, world, accumulation)
        if layout.sharding == "stage1":
            found.peak += round(found.optimizer / layout.degree) - found.optimizer
        return found


AXES = [Axes(), *(Axes(**{name: size}) for name in ("tensor", "sequence", "expert") for size in (2, 4))]


@pytest.mark.parametrize("axes", AXES, ids=lambda axes: str(axes) or "none")
def test_peaks_are_those_of_steps_that_were_not_simulated(axes):
    world, machine = 16, Machine(16)
    estimates = Estimates(machine, SIZES, world, half=False)
    for layout in layouts(world, 8, hybrid=True, axes=axes):
        for rows in (1, 6):
            found, _ = estimates.of(layout, False, rows, accumulation=1)
            made = WEIGHTS + (layout.shards_gradients and WEIGHTS * share(WHOLE_WEIGHTS, axes) / layout.degree)
            # Gradients that an axis divides are known less exactly: up to their shard over all processes.
            loose = WEIGHTS / world if layout.shards_gradients and axes.used else 1
            assert found == pytest.approx(
                max(machine.peak(layout, False, [], SIZES, world, rows).peak, made), abs=loose
            ), (layout, rows)


def test_ddp_keeps_the_buckets_of_accumulated_gradients():
    estimates = Estimates(Machine(16), SIZES, 16, half=False)
    layout = ParallelLayout("DDP", "", axes=Axes(sequence=2))
    one, two = (estimates.of(layout, False, 2, accumulation)[0] for accumulation in (1, 2))
    assert two - one == pytest.approx(WEIGHTS)
    tensor = ParallelLayout("DDP", "", axes=Axes(tensor=2))
    assert len({estimates.of(tensor, False, 2, accumulation)[0] for accumulation in (1, 2)}) == 1


def test_what_is_sent_along_an_axis_of_four():
    """All-reduces of the same tensors among more; of a sequence, parts that are half as large."""
    estimates = Estimates(Machine(16), SIZES, 16, half=False)
    for name, size in (("tensor", 500_000), ("sequence", 300_000 // 2 * 2 // 4)):
        layout = ParallelLayout("DDP", "", axes=Axes(**{name: 4}))
        kind = "all_reduce" if name == "tensor" else "all_to_all"
        gradients = WEIGHTS * share(WHOLE_WEIGHTS, layout.axes)
        copies = 4 * layout.axes.sequence
        expected = messages.sent(kind, size * 8 / 4, 4) + messages.sent("all_reduce", gradients, copies)
        assert estimates.of(layout, False, 4, accumulation=2)[1] == pytest.approx(expected), name


@pytest.mark.parametrize("half", [False, True])
def test_what_shards_send(half):
    estimates = Estimates(Machine(16), SIZES, 16, half)
    gathered = WEIGHTS * (0.5 if half else 1)
    for stage, gathers in (("stage2", 1), ("stage3", 2 * 3)):
        expected = gathers * messages.sent("all_gather", gathered, 16) + 3 * messages.sent(
            "reduce_scatter", WEIGHTS, 16
        )
        found = estimates.of(ParallelLayout(stage, stage, 16), False, 2, accumulation=3)[1]
        assert found == pytest.approx(expected), stage
    hybrid = estimates.of(ParallelLayout("hybrid", "stage3 hybrid", 8), False, 2, accumulation=1)[1]
    expected = 2 * messages.sent("all_gather", gathered, 8) + messages.sent("reduce_scatter", WEIGHTS, 8)
    assert hybrid == pytest.approx(expected + messages.sent("all_reduce", WEIGHTS / 8, 2))
    # Of a sequence every process has a part of the gradient, so twice as many copies are added up.
    parted = ParallelLayout("hybrid", "stage3 hybrid", 4, Axes(sequence=2))
    found = estimates.of(parted, False, 4, accumulation=1)[1] - messages.sent("all_to_all", 300_000 // 2, 2)
    expected = 2 * messages.sent("all_gather", gathered, 4) + messages.sent("reduce_scatter", WEIGHTS, 4)
    assert found == pytest.approx(expected + messages.sent("all_reduce", WEIGHTS / 4, 4))
    stage1 = estimates.of(ParallelLayout("stage 1", "stage1", 16), False, 2, accumulation=1)[1]
    assert stage1 == pytest.approx(messages.sent("all_reduce", WEIGHTS, 16) + messages.sent("broadcast", WEIGHTS, 16))


def found_by_search(limit, world=8, samples=32, sizes=lambda name, most: []):
    machine = Machine(world)
    simulated = []

    def count(each, step):
        simulated.append(each)
        return SimpleNamespace(sent=round(each.sent))

    every = candidates(sizes, world, world, samples)
    return search(machine, [], SIZES, every, count, samples, limit, half=False), simulated


def test_each_layout_has_the_largest_micro_batch_that_fits():
    """In stage 2 all send the same, and wait less with less accumulation."""
    limit = WEIGHTS + (2 * WEIGHTS + STATE) / 8 + FIXED + 3.5 * PER_ROW
    found, simulated = found_by_search(limit)
    stage2 = {each.arguments["gradient_checkpointing"]: each for each in found.choices if each.name == "stage 2"}
    for recompute, rows in ((False, 2), (True, 4)):
        given = stage2[recompute].arguments
        assert (given["per_device_train_batch_size"], given["gradient_accumulation_steps"]) == (rows, 4 // rows)
    assert "DDP" not in {each.name for each in found.choices}
    assert len(simulated) == 3 and all(each.simulated for each in found.choices[:3])
    assert [each.sent for each in found.choices[:3]] == sorted(each.sent for each in found.choices[:3])
    for each in found.choices:
        rows, steps = (
            each.arguments[f"{name}"] for name in ("per_device_train_batch_size", "gradient_accumulation_steps")
        )
        assert rows * steps * 8 == 32


def test_what_does_not_fit_is_counted_with_the_smallest():
    found, simulated = found_by_search(limit=WEIGHTS // 2)
    assert not found.choices and not simulated
    every = candidates(lambda name, most: [], 8, 8, 32)
    assert found.too_large == 2 * len(every) and found.smallest >= WEIGHTS


def test_a_layout_that_turns_out_too_large_is_left_out(monkeypatch):
    """What was computed is checked by a simulated step, and the next one takes its place."""
    step = Machine.peak
    monkeypatch.setattr(
        Machine,
        "peak",
        lambda self, layout, *given, **named: SimpleNamespace(
            **vars(step(self, layout, *given, **named)) | ({"peak": 10**12} if layout.name == "DDP" else {})
        ),
    )
    found, _ = found_by_search(limit=10**9)
    assert all(each.name != "DDP" for each in found.choices if each.simulated) and found.too_large
    assert sum(each.simulated for each in found.choices) == 3


def test_axes_are_on_one_machine_and_divide_the_samples():
    sizes = {"tensor": [2, 4, 8], "sequence": [3], "expert": []}
    asked = []

    def of(name, most):
        asked.append((name, most))
        return sizes[name]

    found = candidates(of, world=16, per_machine=4, samples=4)
    assert asked == [("tensor", 4), ("sequence", 4), ("expert", 4)]
    assert {str(each.axes) for each in found} == {"tensor 4"}  # of 16 and 8 batches 4 samples are no multiple
    assert {each.name for each in found} == {f"{way} x tensor 4" for way in ("DDP", "stage 2", "stage 3")}
    hybrid = candidates(lambda name, most: [2] * (name == "tensor"), world=16, per_machine=8, samples=16)
    inside = {each.degree for each in hybrid if "hybrid" in each.sharding and each.axes.tensor == 2}
    assert inside == {4}, "of the 8 processes of a machine, 2 have each batch"


def test_experts_are_not_combined_with_sharding():
    assert [each.name for each in layouts(8, 8, hybrid=True, axes=Axes(expert=2))] == ["DDP x expert 2"]


def test_the_order_is_by_bytes_sent_then_by_what_is_computed_and_waited_for():
    def made(**given):
        usual = {
            "layout": ParallelLayout("", ""),
            "recompute": False,
            "rows": 2,
            "accumulation": 1,
            "peak": 1,
            "sent": 1,
        }
        return Candidate(**usual | given)

    first = made()
    for later in (
        made(sent=2),
        made(recompute=True),
        made(accumulation=2),
        made(layout=ParallelLayout("", "", axes=Axes(2))),
    ):
        assert first.order < later.order
    assert made(sent=2).order > made(recompute=True, accumulation=4).order
