"""Schedulers of torch that a user passes in, with a number or a tensor as learning rate, resumed to the same bytes."""

import pytest

from oneloop import Trainer, TrainingArguments
from tests.backends.support import DEVICE, available, rows, same_bytes

torch = pytest.importorskip("torch")
from torch.optim import lr_scheduler as schedules  # noqa: E402

KIT = next((kit for kit in available() if kit.name == "torch"), None)
pytestmark = pytest.mark.skipif(KIT is None, reason="needs torch on this device")


def _chain(optimizer):
    return [schedules.ConstantLR(optimizer, 0.5, 2), schedules.ExponentialLR(optimizer, 0.9)]


SCHEDULES = {
    "LambdaLR": lambda optimizer: schedules.LambdaLR(optimizer, lambda step: 0.9**step),
    "ExponentialLR": lambda optimizer: schedules.ExponentialLR(optimizer, 0.9),
    "SequentialLR": lambda optimizer: schedules.SequentialLR(optimizer, _chain(optimizer), [3]),
    "ChainedScheduler": lambda optimizer: schedules.ChainedScheduler(_chain(optimizer), optimizer),
    "nested": lambda optimizer: schedules.SequentialLR(
        optimizer, [schedules.ConstantLR(optimizer, 0.5, 2), schedules.CosineAnnealingLR(optimizer, 9)], [4]
    ),
}


def run(output, schedule, rate, resume=False, **given):
    model = KIT.classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate())
    options = {"max_steps": 9, "save_steps": 4, "save_strategy": "steps", "logging_steps": 1, "report_to": "none"}
    options |= {"disable_tqdm": True, "device": DEVICE, "per_device_train_batch_size": 4}
    trainer = Trainer(
        model,
        TrainingArguments(output_dir=str(output), **options | given),
        train_dataset=rows(16),
        optimizers=(optimizer, SCHEDULES[schedule](optimizer)),
    )
    trainer.train(resume_from_checkpoint=str(output / "checkpoint-4") if resume else None)
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    return KIT.weights(model), rates, optimizer


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kind", ["number", "tensor"])
def test_a_schedule_of_the_user_is_resumed_to_the_same_bytes(schedule, kind, tmp_path):
    rate = (lambda: torch.tensor(0.05)) if kind == "tensor" else (lambda: 0.05)
    weights, rates, _ = run(tmp_path, schedule, rate)
    resumed, continued, optimizer = run(tmp_path, schedule, rate, resume=True)
    assert same_bytes(resumed, weights)
    assert continued == rates and len(set(rates)) > 2
    assert torch.is_tensor(optimizer.param_groups[0]["lr"]) == (kind == "tensor")
