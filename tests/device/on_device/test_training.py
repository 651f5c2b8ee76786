"""What the Trainer asks of an accelerator: when the host waits, how much memory there is at most, what is read when."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from oneloop import Trainer, TrainerCallback, TrainingArguments
from oneloop.backends.torch import weights as weights_of_torch
from oneloop.data.order import Order
from oneloop.errors import NonFiniteError
from oneloop.formats import trace_file
from oneloop.trainer import losses
from tests.backends.kits.torch_kit import Kit
from tests.backends.support import rows, same_bytes
from tests.device.simulated import NAME, at_most

KIT = Kit()
STEPS = 6
RUN = {"per_device_train_batch_size": 4, "max_steps": STEPS, "logging_steps": 100, "learning_rate": 0.05}


class Counts(TrainerCallback):
    """Host syncs of each step."""

    def __init__(self, device):
        self.device = device
        self.syncs, self.waits = [], []

    def on_step_begin(self, args, state, control, **kwargs):
        self.device.reset_counts()

    def on_step_end(self, args, state, control, **kwargs):
        self.syncs.append(list(self.device.syncs))
        self.waits.append(self.device.waits)


# -- host syncs


@pytest.mark.parametrize("half", [{}, {"bf16": True}], ids=["float32", "bf16"])
@pytest.mark.parametrize("clip", [0.0, 0.3], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("optim", ["adamw_torch", "sgd"])
def test_no_host_sync_in_a_step_that_does_not_log_save_or_evaluate(device, trained, optim, accumulation, clip, half):
    counts = Counts(device)
    given = RUN | half | {"optim": optim, "max_grad_norm": clip, "gradient_accumulation_steps": accumulation}
    trained(KIT.classifier(dropout=0.1, norm=True), rows(48), callbacks=[counts], **given)
    assert counts.syncs == [[]] * STEPS
    assert counts.waits == [0] + [1] * (STEPS - 1), "for the flag of the step before, with a step queued behind it"


@pytest.mark.parametrize("half", [{}, {"bf16": True}], ids=["float32", "bf16"])
def test_a_recorded_step_is_read_when_it_ends(device, trained, tmp_path, monkeypatch, half):
    """Nothing is read from the device before the update is queued, and nothing at all in other steps."""
    monkeypatch.setattr(losses, "EVERY", 1e9)  # on a busy machine

    class UntilTheUpdate(Counts):
        def on_optimizer_step(self, args, state, control, **kwargs):
            self.before.append(list(self.device.syncs))

    counts = UntilTheUpdate(device)
    counts.before = []
    given = RUN | half | {"trace_steps": "1-2", "gradient_accumulation_steps": 2, "output_dir": tmp_path / "out"}
    trained(KIT.classifier(dropout=0.1, norm=True), rows(48), callbacks=[counts], **given)
    assert trace_file.steps_in(tmp_path / "out") == [1, 2]
    assert counts.before == [[]] * STEPS
    assert [bool(syncs) for syncs in counts.syncs] == [False, True, True, False, False, False]


@pytest.mark.parametrize("optim", ["adamw_torch", "sgd", "rmsprop", "adagrad", "adafactor"])
def test_without_a_fused_kernel_the_first_step_alone_waits(device, trained, optim):
    """It creates state, which cannot be put back. SGD has none, and Adagrad has it before."""
    counts = Counts(device)
    options = {"optim_args": "fused=False"} if optim in ("adamw_torch", "sgd") else {}
    trained(KIT.classifier(), rows(24), callbacks=[counts], optim=optim, **options, **RUN)
    assert [len(syncs) for syncs in counts.syncs] == [int(optim not in ("sgd", "adagrad"))] + [0] * (STEPS - 1)


def test_the_step_that_logs_reads_the_device(device, trained):
    """The count of the others is not empty because nothing is counted."""
    counts = Counts(device)
    given = RUN | {"logging_steps": 2, "nonfinite": "ignore"}

    class Logs(TrainerCallback):
        def on_log(self, args, state, control, **kwargs):
            logged.append(len(device.syncs))

    logged = []
    trained(KIT.classifier(), rows(24), callbacks=[counts, Logs()], **given)
    assert all(logged[:3]) and counts.syncs == [[]] * STEPS, "logs follow on_step_end"


def test_a_loss_that_is_read_in_every_step_is_seen(device, trained):
    class Reads(Trainer):
        def training_step(self, *args, **kwargs):
            loss = super().training_step(*args, **kwargs)
            loss.item()
            return loss

    counts = Counts(device)
    trained(KIT.classifier(), rows(24), Reads, callbacks=[counts], **RUN)
    assert [len(syncs) for syncs in counts.syncs] == [1] * STEPS


# -- memory


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 400), nn.Tanh(), nn.Linear(400, 400), nn.Tanh(), nn.Linear(400, 3))

    def forward(self, x, labels=None):
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits.float(), labels), "logits": logits}


def by_hand(model, data, optimizer, clip, accumulation, half):
    """The usual training loop; the peak of memory in its last step."""
    batches = [[data[i] for i in Order(len(data), 42, 0)[k : k + 64].tolist()] for k in range(0, len(data), 64)]
    for k in range(0, len(batches), accumulation):
        torch.npu.reset_peak_memory_stats()
        for batch in batches[k : k + accumulation]:
            inputs = {key: torch.from_numpy(np.stack([row[key] for row in batch])) for key in batch[0]}
            inputs = {key: value.to(NAME, non_blocking=True) for key, value in inputs.items()}
            with torch.autocast(NAME, dtype=torch.bfloat16, enabled=half):
                loss = model(**inputs)["loss"] / accumulation
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return torch.npu.max_memory_allocated()


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("optim", ["adamw_torch", "sgd"])
def test_the_peak_of_memory_is_that_of_a_loop_by_hand(device, trained, optim, accumulation, half):
    data = rows(64 * 4)
    torch.manual_seed(0)
    model = Wide()
    other = copy.deepcopy(model)
    start = torch.npu.memory_allocated()
    kind = torch.optim.AdamW if optim == "adamw_torch" else torch.optim.SGD
    other.to(NAME)
    optimizer = kind(other.parameters(), lr=0.05, fused=True)
    expected = by_hand(other, data, optimizer, 1.0, accumulation, half) - start
    del other, optimizer
    assert torch.npu.memory_allocated() == start

    class Peaks(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            torch.npu.reset_peak_memory_stats()

        def on_step_end(self, args, state, control, **kwargs):
            peaks.append(torch.npu.max_memory_allocated() - start)

    peaks = []
    given = {"optim": optim, "gradient_accumulation_steps": accumulation, "bf16": half, "learning_rate": 0.05}
    trained(
        model, data, callbacks=[Peaks()], per_device_train_batch_size=64, num_train_epochs=1, logging_steps=100, **given
    )
    # The losses of the steps so far and the last norm, four bytes each, and flags of the current step.
    assert expected <= peaks[-1] <= expected + 64


def test_a_batch_that_does_not_fit_is_divided(device, trained):
    """The simulation's own error is understood as any device's."""
    model = Wide()
    size = sum(p.numel() for p in model.parameters()) * 4
    with at_most(torch.npu.memory_allocated() + 5 * size):
        trainer = trained(
            model, rows(2048), auto_find_batch_size=True, per_device_train_batch_size=2048, max_steps=2, optim="sgd"
        )
    assert trainer.state.global_step == 2 and device.memory.failures > 0


# -- reads that come too early


def saved_weights(folder):
    return load_file(folder / "checkpoint-4" / "model.safetensors")


def run_that_saves(trained, tmp_path):
    """The weights of step 4 as a run by the host has them, and as they are in the checkpoint."""
    plain, model = KIT.classifier(), KIT.classifier()
    given = RUN | {"max_steps": 4}
    trained(plain, rows(24), device="cpu", **given)
    trained(model, rows(24), save_strategy="steps", save_steps=4, output_dir=tmp_path / "saved", **given)
    return KIT.weights(plain), saved_weights(tmp_path / "saved")


def test_a_checkpoint_has_the_weights_of_its_step(device, trained, tmp_path):
    expected, saved = run_that_saves(trained, tmp_path)
    assert same_bytes(expected, saved)


def test_a_snapshot_that_does_not_wait_is_found_out(device, trained, tmp_path, monkeypatch):
    """A deliberate mistake in the code that copies weights: the test above fails with it."""

    def early(tensor, buffer):
        return weights_of_torch.empty_like_host(tensor).copy_(tensor.detach(), non_blocking=True).clone()

    monkeypatch.setattr(weights_of_torch, "copy_to", early)
    with pytest.raises(NonFiniteError, match="not finite"):
        test_a_checkpoint_has_the_weights_of_its_step(device, trained, tmp_path)
    # Without the check of values, wrong bytes would be stored.
    with pytest.raises(AssertionError, match="same_bytes"):
        test_a_checkpoint_has_the_weights_of_its_step(device, partial(trained, nonfinite="ignore"), tmp_path / "other")


def test_a_flag_that_is_read_before_its_event_is_found_out(device, trained, monkeypatch):
    from oneloop.backends.torch import engine

    trained(KIT.classifier(), rows(24), **RUN)
    monkeypatch.setattr(engine, "recorded_event", lambda device: None)
    with pytest.raises(NonFiniteError, match="step 1"):
        trained(KIT.classifier(), rows(24), **RUN)


def test_losses_that_are_read_early_are_found_out(device, trained, monkeypatch):
    from oneloop.backends.torch import tensors

    good = trained(KIT.classifier(), rows(24), **RUN).result.training_loss
    assert np.isfinite(good)
    early = lambda values: torch.stack(values).to("cpu", non_blocking=True).double().numpy()  # noqa: E731
    monkeypatch.setattr(tensors, "scalars", early)
    assert np.isnan(trained(KIT.classifier(), rows(24), **RUN).result.training_loss)


def test_logits_that_are_read_early_are_found_out(device, arguments, monkeypatch):
    from oneloop.backends.torch import tensors

    def predictions():
        trainer = Trainer(KIT.classifier(), arguments())
        return trainer.predict(rows(10)).predictions

    assert np.isfinite(predictions()).all()

    def early(target, tensor):
        target[...] = tensor.detach().to("cpu", non_blocking=True).numpy()

    monkeypatch.setattr(tensors, "copy_into", early)
    assert not np.isfinite(predictions()).all()


# -- what else depends on the device


def test_the_random_numbers_of_the_device_are_in_checkpoints(device, tmp_path):
    def run(resume=None, **given):
        args = TrainingArguments(
            output_dir=str(tmp_path / "out"), save_strategy="steps", save_steps=2, report_to="none", disable_tqdm=True,
            device=NAME, **RUN | given
        )  # fmt: skip
        model = KIT.classifier(dropout=0.5)
        Trainer(model, args, train_dataset=rows(24)).train(resume_from_checkpoint=resume)
        return KIT.weights(model)

    expected = run()
    torch.npu.manual_seed_all(99)
    assert same_bytes(expected, run(resume=str(tmp_path / "out" / "checkpoint-2")))


@pytest.mark.parametrize("first, then", [("cpu", NAME), (NAME, "cpu")])
@pytest.mark.parametrize("optim", ["sgd", "adamw_torch"])
def test_a_run_goes_on_on_another_device(device, trained, tmp_path, optim, first, then):
    """The kernels of a device are not an option of the run: fused SGD here, the other one there."""
    given = RUN | {"optim": optim, "save_strategy": "steps", "save_steps": 3, "output_dir": tmp_path / "out"}
    straight = KIT.classifier()
    trained(straight, rows(24), device=first, **given)
    model = KIT.classifier()
    trainer = trained(model, rows(24), device=then, resume=str(tmp_path / "out" / "checkpoint-3"), **given)
    wants = optim == "adamw_torch" or then == NAME
    assert bool(trainer.optimizer.param_groups[0]["fused"]) is wants and trainer.state.global_step == STEPS
    for name, value in KIT.weights(straight).items():
        np.testing.assert_allclose(value, KIT.weights(model)[name], atol=1e-6)


def test_memory_of_the_device_is_logged(device, trained):
    trainer = trained(KIT.classifier(), rows(24), skip_memory_metrics=False, **RUN)
    assert trainer.result.metrics["train_mem_gpu_alloc_delta"] >= 0
    assert trainer.result.metrics["train_mem_gpu_peaked_delta"] > 0
