"""Plans of models that are divided along axes, and the search for a layout, on tiny models in one process."""

import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch.distributed.device_mesh import DeviceMesh  # noqa: E402

from oneloop import Trainer  # noqa: E402
from oneloop.distributed import mesh  # noqa: E402
from oneloop.errors import ArgumentError  # noqa: E402
from oneloop.plan import building, search  # noqa: E402
from oneloop.plan.layouts import Axes, ParallelLayout, layouts  # noqa: E402
from oneloop.plan.results import StrategyPlan  # noqa: E402
from oneloop.plan.text import flags  # noqa: E402
from oneloop.trainer.core import core_of  # noqa: E402
from tests.distributed.experts_job import qwen3 as moe  # noqa: E402
from tests.distributed.layouts_job import llama, texts  # noqa: E402


@pytest.fixture
def planned(arguments, monkeypatch):
    """As the command does it: one process takes the place of all."""
    monkeypatch.setattr(mesh, "_stands_for_all", True)

    def plan(model=None, world=2, search=False, memory=None, progress=None, **given):
        given = {"per_device_train_batch_size": 8, "optim": "adamw_torch"} | given
        trainer = Trainer(model or llama(), arguments(**given), train_dataset=texts())
        return trainer.plan(world, memory, largest=False, search=search, progress=progress)

    return plan


@pytest.fixture
def whole(planned):
    return planned(world=1).memory("one process")


def test_a_tensor_axis_divides_layers_and_what_they_keep(planned, whole):
    hook, sliced = sys.excepthook, DeviceMesh.__getitem__
    plan = planned(world=4, tensor_parallel_size=2)
    assert sys.excepthook is hook and DeviceMesh.__getitem__ is sliced and not torch.distributed.is_initialized()
    assert [each.name for each in plan.strategies] == ["DDP x tensor 2", "stage 2 x tensor 2", "stage 3 x tensor 2"]
    divided = plan.memory("DDP x tensor 2")
    assert 0.5 < divided.parameters / whole.parameters < 0.51  # norms are whole
    assert 0.5 < divided.optimizer / whole.optimizer < 0.51
    assert 0.5 * whole.activations < divided.activations < 0.9 * whole.activations
    assert divided.peak_recomputed < divided.peak_kept < whole.peak_kept
    # Two all-reduces for each layer and pass, of 8 x 9 tokens with 32 numbers each, and one for the words; then the
    # gradients of half of the layers.
    activations = 8 * 9 * 32 * 4
    assert divided.messages.sent > (2 * 2 * 2 + 1) * activations + divided.gradients
    assert plan.memory("stage 3 x tensor 2").parameters < 0.27 * whole.parameters
    assert plan.length.samples_per_step == 8 * 2


def test_a_sequence_axis_divides_activations_alone(planned, whole):
    divided = planned(sequence_parallel_size=2).memory("sequence 2")
    assert 0 <= divided.parameters - whole.parameters <= 64  # frequencies of positions, which are not stored
    assert divided.optimizer == whole.optimizer
    assert 0.5 * whole.activations < divided.activations < 0.7 * whole.activations
    # Of each layer and pass: queries, keys and values of half a sequence (5 of 9 tokens), and the results.
    blocks = 8 * 5 * 32 * 4
    assert divided.messages.sent > 2 * 2 * (3 + 1) * blocks / 2 + divided.gradients


@pytest.mark.parametrize("implementation", [pytest.param("grouped_mm", marks=pytest.mark.slow), "eager"])
def test_an_expert_axis_divides_experts(planned, implementation):
    """Also where experts ask for their tokens: each is taken to have as many."""
    model = moe(num_hidden_layers=1, output_router_logits=False, experts_implementation=implementation)
    whole = planned(model, world=1).memory("one process")
    divided = planned(model, expert_parallel_size=2).memory("expert 2")
    experts = sum(p.numel() for name, p in model.named_parameters() if "experts" in name) * 4
    assert abs(whole.parameters - divided.parameters - experts // 2) <= 64
    assert divided.peak is not None and divided.peak < whole.peak


def test_a_number_of_processes_that_the_axes_do_not_divide(planned):
    with pytest.raises(ArgumentError, match="tensor 2 needs a multiple of 2 processes, but world=3"):
        planned(world=3, tensor_parallel_size=2)


# -- the search


@pytest.fixture
def estimates(monkeypatch):
    """The estimates of the searches of a test."""
    made, original = [], search.Estimates

    class Kept(original):
        def __init__(self, *given):
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(search, "Estimates", Kept)
    return made


def test_the_search_orders_what_fits_by_what_is_sent(planned, estimates):
    lines = []
    model = llama(num_hidden_layers=1)
    plan = planned(model, 4, True, "170kB", lines.append, per_device_train_batch_size=4)
    found = plan.search
    assert found.choices and found.best is found.choices[0] and all(each.peak <= 170_000 for each in found.choices)
    simulated = [each for each in found.choices if each.simulated]
    assert 1 <= len(simulated) <= search.SIMULATED and found.choices[: len(simulated)] == tuple(simulated)
    for part in (simulated, found.choices[len(simulated) :]):
        assert [each.sent for each in part] == sorted(each.sent for each in part)
    for each in found.choices:
        given = each.arguments
        axes = Axes(*(given.get(f"{name}_parallel_size", 1) for name in ("tensor", "sequence", "expert")))
        batches = 4 // axes.size
        assert given["per_device_train_batch_size"] * given["gradient_accumulation_steps"] * batches == 4 * 4
    assert "DDP" not in [each.name for each in found.choices]  # 188 kB of state alone
    assert found.too_large >= 2 and found.smallest > 170_000
    assert any("tensor_parallel_size=2" in line for line in lines) and any(
        "gradient_checkpointing" in line for line in lines
    )
    text, page = plan.to_text(), plan.to_html()
    assert "Layouts that fit, with 16 samples per update" in text and "Layouts that fit" in page
    assert f"Arguments of the best: {flags(found.best.arguments)}" in text
    assert plan.to_dict()["search"]["choices"][0]["arguments"] == found.best.arguments
    for name, sharding in (("DDP", ""), ("stage 1", "stage1")):
        _, sent = estimates[0].of(ParallelLayout(name, sharding, 4), False, 4, 1)
        assert sent == pytest.approx(plan.memory(name).messages.sent, rel=0.01), name


@pytest.mark.slow
def test_estimates_are_near_to_what_is_simulated(planned, estimates):
    """Those of layouts between the simulated ones: four processes along an axis, and axes with sharding."""
    plan = planned(world=8, search=True, memory="10MB", per_device_train_batch_size=4)
    (made,) = estimates
    memories = made.memories
    for layout in (
        ParallelLayout("", "", axes=Axes(tensor=4)),
        ParallelLayout("", "", axes=Axes(sequence=4)),
        ParallelLayout("", "stage3", 4, Axes(tensor=2)),
        ParallelLayout("", "stage3", 4, Axes(sequence=2)),
    ):
        for recompute in (False, True):
            peak, _ = made.of(layout, recompute, 8, 1)
            real = memories.peak(layout, recompute, [], plan.model, 8, rows=8, accumulation=1).peak
            assert abs(peak / real - 1) < 0.2, (layout, recompute, peak, real)


@pytest.mark.slow
def test_nothing_fits(planned):
    plan = planned(world=2, search=True, memory="20kB")
    assert plan.search.choices == () and plan.search.best is None and plan.search.smallest > 20_000
    assert "do not fit" in plan.to_text() and "Arguments of the best" not in plan.to_text()


def test_a_search_needs_the_memory_of_a_device(planned):
    with pytest.raises(ArgumentError, match="needs device_memory"):
        planned(search=True)


def test_layouts_that_are_not_combined():
    names = [each.name for each in layouts(16, 8, hybrid=True, axes=Axes(expert=2))]
    assert names == ["DDP x expert 2"]
    assert [each.sharding for each in layouts(16, 8, hybrid=True, axes=Axes(tensor=2))] == [
        "", "stage2", "stage3", "stage3 hybrid",
    ]  # fmt: skip
    found = search.candidates(lambda axis, most: [2, 3, 4] if axis == "tensor" else [], 8, 4, samples=8)
    assert {each.axes.tensor for each in found} == {1, 2, 4} and all(not each.axes.expert > 1 for each in found)


def test_arguments_as_flags():
    given = {"sharding": "stage3 hybrid", "sharding_degree": 4, "gradient_checkpointing": False}
    assert flags(given) == "--sharding 'stage3 hybrid' --sharding_degree 4"
    assert flags({"gradient_checkpointing": True}) == "--gradient_checkpointing True"


def test_a_peak_below_the_activations_is_explained():
    memories = SimpleNamespace(recomputes=False, activations=lambda recompute: 32_900_000_000)
    plans = [
        StrategyPlan("DDP", {}, peak=50_000_000_000, activations=32_900_000_000),
        StrategyPlan("stage 3", {}, peak=24_000_000_000, activations=23_000_000_000),
    ]
    (note,) = building._of_activations(memories, plans)
    assert "32.9 GB" in note and "with stage 3 they are 23 GB, and its peak of 24 GB includes these" in note
    assert building._of_activations(memories, plans[:1]) == []


def test_plans_for_devices_do_not_speak_of_cpus(arguments, monkeypatch):
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    core = core_of(Trainer(llama(), arguments(), train_dataset=texts()))
    assert building._is_for_cpus(core, None) and not building._is_for_cpus(core, 80_000_000_000)
