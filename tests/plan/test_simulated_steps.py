"""Steps of torch on tensors without data: memory and messages against real tensors, and models without weights."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from oneloop import Trainer  # noqa: E402
from oneloop.backends.torch import planning  # noqa: E402
from oneloop.errors import ArgumentError  # noqa: E402
from tests.distributed.launch import environment  # noqa: E402

WIDTH = 64


class Deep(nn.Module):
    def __init__(self, blocks=4, width=WIDTH):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()) for _ in range(blocks)
        )
        self.head = nn.Linear(width, 2)

    def forward(self, x, labels=None):
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def samples(count=64, width=WIDTH):
    return [{"x": torch.randn(width), "labels": i % 2} for i in range(count)]


@pytest.fixture
def planned(arguments):
    def plan(model=None, data=None, world=1, memory=None, largest=False, trainer_class=Trainer, **given):
        args = arguments(**{"per_device_train_batch_size": 16} | given)
        trainer = trainer_class(model or Deep(), args, train_dataset=data or samples())
        return trainer.plan(world=world, device_memory=memory, largest=largest)

    return plan


STATE = sum(p.numel() for p in Deep().parameters()) * 4


def test_activations_grow_with_the_batch_and_shrink_with_recompute(planned):
    """Each of 8 layers keeps the output of tanh; recomputed, each of 4 blocks its input."""
    small, large = planned(), planned(per_device_train_batch_size=64)
    grown = large.activations - small.activations
    kept = 8 * 48 * WIDTH * 4  # of 48 more samples, for each layer once
    assert kept <= grown <= 3 * kept
    assert large.activations_recomputed < large.activations
    assert large.memory("one process").peak_recomputed <= large.memory("one process").peak_kept


def test_the_peak_of_a_model_whose_state_dominates(planned):
    """Parameters, gradients and two moments at the optimizer's step."""
    plan = planned(per_device_train_batch_size=1)
    assert 4 * STATE <= plan.memory("one process").peak <= 4 * STATE * 1.05
    assert plan.model.optimizer_bytes - 2 * STATE == 4 * len(list(Deep().parameters()))  # counters


def test_two_processes_with_each_strategy(planned):
    plan = planned(world=2)
    one = planned().memory("one process").peak
    peaks = {each.name: each.peak for each in plan.strategies}
    assert 0 < peaks["DDP"] - one < STATE  # buckets, which are there from the start; gradients are views of them
    assert peaks["stage 1"] < peaks["DDP"] and peaks["stage 3"] < peaks["stage 2"] < peaks["stage 1"]
    third = plan.memory("stage 3")
    assert third.parameters == third.gradients and abs(third.parameters * 2 / STATE - 1) < 0.01


def test_gradients_of_earlier_micro_batches_are_beside_the_buckets(planned):
    one, two = (planned(world=world, gradient_accumulation_steps=2) for world in (1, 2))
    more = two.memory("DDP").peak - one.memory("one process").peak
    assert 0.99 * STATE < more <= STATE


def test_hybrid_sharding_keeps_a_copy_on_every_machine(planned):
    plan = planned(world=64)
    hybrid, whole = plan.memory("hybrid stage 3"), plan.memory("stage 3")
    assert hybrid.arguments == {"sharding": "stage3 hybrid", "sharding_degree": 8}
    assert abs(hybrid.parameters / whole.parameters / 8 - 1) < 0.1
    assert hybrid.messages.collectives > whole.messages.collectives


@pytest.mark.slow
def test_the_largest_micro_batch_fits_and_one_more_does_not(planned):
    memory = 6 * STATE
    for name, world in (("one process", 1), ("stage 3", 2)):
        most = planned(memory=memory, largest=True, world=world).memory(name).largest_micro_batch
        both = (most, most + 1)
        fitting, more = (planned(None, samples(2 * n), world, memory, per_device_train_batch_size=n) for n in both)
        assert fitting.memory(name).fits is True and more.memory(name).fits is False


def test_nothing_fits(planned):
    assert planned(memory=STATE, largest=True).memory("one process").largest_micro_batch == 0


@pytest.mark.slow
def test_accumulation_reduces_shards_in_every_micro_batch(planned):
    once, thrice = planned(world=2), planned(world=2, gradient_accumulation_steps=3)
    units = 5  # four blocks and the rest
    assert once.memory("stage 3").messages.collectives == 3 * units - 1 + 3  # the rest stays after the forward pass
    assert thrice.memory("stage 3").messages.collectives == 3 * (3 * units - 1) + 3
    assert once.memory("stage 2").messages.collectives == 2 * units + 3
    assert thrice.memory("stage 2").messages.collectives == (1 + 3) * units + 3
    assert thrice.memory("DDP").messages == once.memory("DDP").messages


class Twice(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        other = model(**inputs)["logits"]
        loss = super().compute_loss(model, inputs)
        return loss + 0 * other.sum()


def test_an_override_that_calls_the_model_twice(planned):
    assert planned(trainer_class=Twice).activations > 1.5 * planned().activations


class Reads(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs)
        assert loss.item() > 0
        return loss


def test_a_step_that_reads_values_cannot_be_simulated(planned):
    plan = planned(trainer_class=Reads)
    assert plan.memory("one process").peak is None and "could not be simulated" in plan.notes[0]
    assert plan.model.optimizer_bytes == 2 * STATE


class LogsEntropy(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        self.log_metric("entropy", outputs["logits"].softmax(-1).mean(), weight=len(outputs["logits"]))
        return (loss, outputs) if return_outputs else loss


@pytest.mark.parametrize("world", [1, 2])
def test_a_step_that_logs_a_metric(arguments, world):
    trainer = LogsEntropy(Deep(), arguments(max_steps=1, logging_steps=1), train_dataset=samples(8))
    plan = trainer.plan(world=world, largest=False)
    assert plan.activations and not any("could not" in note for note in plan.notes)
    with pytest.raises(ArgumentError, match="neither is running"):  # and the plan has not changed that
        trainer.log_metric("entropy", 1.0)
    trainer.train()
    logged = [entry["entropy"] for entry in trainer.state.log_history if "entropy" in entry]
    assert logged == [pytest.approx(0.5)]


def test_a_given_optimizer_is_copied(arguments):
    model = Deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = Trainer(model, arguments(), train_dataset=samples(), optimizers=(optimizer, None))
    assert trainer.plan().model.optimizer_bytes == STATE
    assert not optimizer.state and optimizer.param_groups[0]["params"][0] is next(model.parameters())


def test_frozen_weights_have_no_gradients(planned):
    model = Deep()
    model.blocks.requires_grad_(False)
    plan = planned(model)
    head = sum(p.numel() for p in model.head.parameters()) * 4
    assert (plan.model.gradient_bytes, plan.model.parameter_bytes) == (head, STATE)


def test_half_precision_activations(planned):
    half, single = (planned(data=samples(512), per_device_train_batch_size=512, bf16=bf16) for bf16 in (True, False))
    assert half.activations < 0.8 * single.activations


def test_the_tracker_agrees_with_torchs_own():
    from torch._subclasses import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    from oneloop.backends.torch.storage_tracker import StorageTracker

    def step(tracker, begin):
        with mode:
            model, x = Deep(), torch.randn(512, WIDTH)
            begin(model)
            with tracker:
                model(x, torch.zeros(512, dtype=torch.long))["loss"].backward()

    mode = FakeTensorMode()
    theirs, ours = MemTracker(), StorageTracker(mode)
    step(theirs, theirs.track_external)
    step(ours, lambda model: ours.label(model.parameters(), "parameters"))
    (peak,) = theirs.get_tracker_snapshot("peak").values()
    inputs = 512 * WIDTH * 4
    assert abs(ours.peak - peak["Total"]) <= inputs


def test_models_are_made_without_memory_for_their_weights():
    with planning.without_weights():
        # Else torch would write to it where full_determinism, or an earlier test, asks for deterministic algorithms.
        assert not torch.utils.deterministic.fill_uninitialized_memory
        model = Deep(blocks=1, width=2**16)  # 34 GB
        model.head.weight = nn.Parameter(model.head.weight.detach())
        tied = nn.Linear(8, 8)
        tied.other = tied.weight
        model = model.to(torch.bfloat16)
        tied.half()
    assert sum(p.numel() * p.element_size() for p in model.parameters()) > 2 * 2 * 2**32
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert tied.other is tied.weight and tied.weight.dtype == torch.float16
    assert type(nn.Linear(2, 2).weight.data) is torch.Tensor
    assert torch.utils.deterministic.fill_uninitialized_memory


SCRIPT = """
import sys
import torch
from torch import nn
from oneloop import Trainer, TrainingArguments

class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8192, 8192) for _ in range(40))
    def forward(self, x, labels=None):
        for layer in self.layers:
            x = layer(x)
        return {"loss": (x.mean(-1) - labels).square().mean()}

print("the script speaks")
args = TrainingArguments(output_dir=sys.argv[1], report_to="none", max_steps=9)
data = [{"x": torch.ones(8192), "labels": 1.0} for _ in range(32)]
try:
    Trainer(Wide(), args, train_dataset=data).train()
except Exception:
    print("it must not see the end")
print("nor go on")
"""


@pytest.mark.slow
def test_the_command_on_a_model_that_this_machine_has_no_memory_for(tmp_path):
    """10 GB of weights, 43 GB with gradients and state. What the script prints is not on stdout."""
    import json

    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["plan", "--world", "8", "--device-memory", "24GB", "--json", "--page", "page.html", "train.py", "out"]
    done = subprocess.run(
        [sys.executable, "-m", "oneloop", *words], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["model"]["parameters"] == 40 * (8192 * 8192 + 8192) and plan["length"]["steps"] == 9
    fits = {each["name"]: each["fits"] for each in plan["strategies"]}
    assert fits == {"DDP": False, "stage 1": False, "stage 2": True, "stage 3": True}
    assert "the script speaks" in done.stderr and "must not" not in done.stderr and "nor go on" not in done.stderr
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>") and not (tmp_path / "out").exists()
