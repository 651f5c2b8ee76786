"""Optimizers with train() and eval(): schedule-free ones train other weights than they evaluate."""

import pytest

pytest.importorskip("torch")

import torch

from oneloop import Trainer, TrainerCallback
from tests.backends.kits.torch_kit import Kit
from tests.backends.support import rows, same_bytes

KIT = Kit()
NAMES = ("schedule_free_adamw", "schedule_free_radam", "schedule_free_sgd")
RUN = {
    "max_steps": 6,
    "per_device_train_batch_size": 1,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "learning_rate": 0.05,
    "lr_scheduler_type": "constant",
    "warmup_steps": 3,
    "weight_decay": 0.1,
    "max_grad_norm": 0.0,
    "logging_steps": 1,
}


def by_hand(optimizer_class, data, **options):
    """The losses of a loop over one sample that evaluates after every second step, and the weights after it."""
    model = KIT.classifier(seed=0)
    decayed = [p for name, p in model.named_parameters() if "bias" not in name]
    others = [p for name, p in model.named_parameters() if "bias" in name]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = optimizer_class(groups, lr=0.05, **options)
    x, labels = torch.tensor(data["x"][None]), torch.tensor([data["labels"]])
    losses = []
    for step in range(1, 7):
        model.train()
        optimizer.train()
        loss = model(x=x, labels=labels)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % 2 == 0:
            optimizer.eval()
            with torch.no_grad():
                losses.append(model.eval()(x=x, labels=labels)["loss"].item())
    return losses, {name: value.numpy().copy() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("name", NAMES)
def test_schedule_free_optimizers_run_as_by_hand(arguments, name):
    schedulefree = pytest.importorskip("schedulefree")
    of_class = {
        "schedule_free_adamw": (schedulefree.AdamWScheduleFree, {"warmup_steps": 3}),
        "schedule_free_radam": (schedulefree.RAdamScheduleFree, {}),
        "schedule_free_sgd": (schedulefree.SGDScheduleFree, {"warmup_steps": 3}),
    }
    data = rows(1)
    model = KIT.classifier(seed=0)
    trainer = Trainer(model, arguments(optim=name, **RUN), train_dataset=data, eval_dataset=data)
    trainer.train()
    cls, options = of_class[name]
    losses, weights = by_hand(cls, data[0], **options)
    logged = [line.get("loss", line.get("eval_loss")) for line in trainer.state.log_history[:-1]]
    assert logged == losses
    assert same_bytes(KIT.weights(model), weights), "those that were evaluated last"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("save_steps", [2, 3], ids=["after an evaluation", "between evaluations"])
def test_schedule_free_optimizers_resume_to_the_same_bits(arguments, tmp_path, name, save_steps):
    pytest.importorskip("schedulefree")
    run = RUN | {"optim": name, "save_strategy": "steps", "save_steps": save_steps, "per_device_train_batch_size": 4}
    data = {"train_dataset": rows(24), "eval_dataset": rows(8, 1)}
    whole = Trainer(KIT.classifier(dropout=0.2), arguments(**run), **data)
    whole.train()
    again = Trainer(KIT.classifier(dropout=0.2, seed=3), arguments(**run), **data)
    again.train(resume_from_checkpoint=str(tmp_path / "out" / f"checkpoint-{save_steps}"))
    assert same_bytes(KIT.weights(whole.model), KIT.weights(again.model))
    assert same_bytes(KIT.optimizer(whole), KIT.optimizer(again))


@pytest.mark.parametrize("name", NAMES)
def test_a_schedule_free_model_is_saved_with_the_weights_that_are_evaluated(arguments, tmp_path, name):
    """By save_model in the middle of a run, which leaves the training alone to the last bit, and after it."""
    pytest.importorskip("schedulefree")
    from safetensors.numpy import load_file

    class Saves(TrainerCallback):
        def on_step_end(self, args, state, control, optimizer=None, **kwargs):
            if state.global_step == 3:
                trainer.save_model(str(tmp_path / "middle"))

    run = RUN | {"optim": name, "eval_strategy": "no", "per_device_train_batch_size": 4}
    plain = Trainer(KIT.classifier(), arguments(**run), train_dataset=rows(24))
    plain.train()
    trainer = Trainer(KIT.classifier(), arguments(**run), train_dataset=rows(24), callbacks=[Saves()])
    trainer.train()
    assert same_bytes(KIT.weights(plain.model), KIT.weights(trainer.model))
    assert not any(group["train_mode"] for group in trainer.optimizer.param_groups)
    trainer.save_model(str(tmp_path / "end"))
    assert same_bytes(load_file(tmp_path / "end" / "model.safetensors"), KIT.weights(trainer.model))
    short = Trainer(KIT.classifier(), arguments(**run | {"max_steps": 3}), train_dataset=rows(24))
    short.train()
    assert same_bytes(load_file(tmp_path / "middle" / "model.safetensors"), KIT.weights(short.model))


class Notes(torch.optim.SGD):
    """A user's optimizer with modes."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.calls = []

    def train(self):
        self.calls.append("train")

    def eval(self):
        self.calls.append("eval")

    def step(self, closure=None):
        self.calls.append("step")
        super().step(closure)


class Evaluates(TrainerCallback):
    def on_step_end(self, args, state, control, optimizer=None, **kwargs):
        if state.global_step == 1:
            optimizer.eval()


def test_the_modes_of_a_users_optimizer(arguments):
    """train() before every step, also after a callback has switched it; eval() before an evaluation."""
    model = KIT.classifier()
    optimizer = Notes(model.parameters(), lr=0.1)
    trainer = Trainer(
        model,
        arguments(max_steps=3, eval_strategy="steps", eval_steps=2),
        train_dataset=rows(24),
        eval_dataset=rows(8, 1),
        optimizers=(optimizer, None),
        callbacks=[Evaluates()],
    )
    trainer.train()
    trainer.evaluate()
    calls = [call for i, call in enumerate(optimizer.calls) if i == 0 or call != optimizer.calls[i - 1]]
    assert calls == ["train", "step", "eval", "train", "step", "eval", "train", "step", "eval"]
