"""The optimizer and the schedules of a torch Trainer, as code written for transformers looks at them."""

import json

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau  # noqa: E402

import oneloop  # noqa: E402
from oneloop import Trainer, TrainerCallback  # noqa: E402
from oneloop.backends.torch import optimizers  # noqa: E402
from oneloop.backends.torch.optimizers import step_optimizer  # noqa: E402


class Line(nn.Module):
    """Without a bias or a norm: everything decays."""

    def __init__(self):
        super().__init__()
        self.slope, self.start = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.tensor(0.1))

    def forward(self, x, labels=None):
        y = x * self.slope + self.start
        return {"loss": ((y - labels) ** 2).mean(), "y": y}


class Layered(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.head = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 1)

    def forward(self, x, labels=None):
        y = self.head(self.norm(self.inner(x.reshape(-1, 1).expand(-1, 4))))[:, 0]
        return {"loss": ((y - labels) ** 2).mean(), "y": y}


DATA = [{"x": torch.tensor(i / 8), "labels": torch.tensor(2 * i / 8 + 1)} for i in range(16)]


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_there_are_always_a_group_with_and_one_without_decay(arguments, decay):
    for model, sizes in ((Line(), [2, 0]), (Layered(), [2, 4])):
        trainer = Trainer(model, arguments(weight_decay=decay), train_dataset=DATA)
        trainer.create_optimizer()
        groups = trainer.optimizer.param_groups
        assert [len(group["params"]) for group in groups] == sizes
        assert [group["weight_decay"] for group in groups] == [decay, 0.0]
        assert trainer.get_learning_rates() == [5e-5, 5e-5]
        first = next(model.parameters())
        assert trainer.get_optimizer_group(first) is groups[0]
        trainer.train()
        assert trainer.get_learning_rates() == [0.0, 0.0]


def gradients(model):
    torch.manual_seed(1)
    for p in model.parameters():
        p.grad = torch.randn_like(p)


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adagrad", "RMSprop"])
@pytest.mark.parametrize("rates", [(0.1, 0.1), (0.1, 0.01)])
def test_joining_equal_groups_for_a_step_changes_no_bit(name, rates):
    models, made = [], []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(Layered())
        parameters = list(models[-1].parameters())
        groups = [{"params": parameters[::2], "lr": rates[0]}, {"params": parameters[1::2], "lr": rates[1]}]
        made.append(getattr(torch.optim, name)(groups, lr=0.1))
    calls = []
    kernel = made[1].step
    made[1].step = lambda: (calls.append(len(made[1].param_groups)), kernel())[1]
    for _ in range(3):
        for model in models:
            gradients(model)
        made[0].step()
        step_optimizer(made[1])
    assert calls == [1 if rates[0] == rates[1] else 2] * 3
    assert len(made[1].param_groups) == 2
    for one, other in zip(models[0].parameters(), models[1].parameters()):
        assert one.detach().numpy().tobytes() == other.detach().numpy().tobytes()


def test_hooks_of_a_step_see_both_groups():
    model = Layered()
    gradients(model)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD([{"params": parameters[:2]}, {"params": parameters[2:]}], lr=0.1)
    seen = []
    optimizer.register_step_pre_hook(lambda optimizer, *rest: seen.append(len(optimizer.param_groups)))
    step_optimizer(optimizer)
    assert seen == [2]


def test_a_checkpoint_with_one_group_goes_on_to_the_same_weights(trained, tmp_path, monkeypatch):
    """Earlier releases made one group where nothing decays."""
    given = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3, "learning_rate": 0.01, "seed": 5}

    def model():
        torch.manual_seed(7)
        return Layered()

    with monkeypatch.context() as earlier:
        earlier.setattr(optimizers, "TWO_GROUPS", False)
        whole = trained(model(), DATA, output_dir=tmp_path / "a", **given)
    assert len(whole.optimizer.param_groups) == 1
    again = trained(Layered(), DATA, output_dir=tmp_path / "b", resume=str(tmp_path / "a" / "checkpoint-3"), **given)
    assert len(again.optimizer.param_groups) == 2 and again.get_learning_rates() == [0.0, 0.0]
    for one, other in zip(whole.model.parameters(), again.model.parameters()):
        assert one.detach().numpy().tobytes() == other.detach().numpy().tobytes()
    assert {p: s["step"] for p, s in zip("abcdef", again.optimizer.state.values())} == dict.fromkeys("abcdef", 6)


# -- schedulers

STEPPED = ["linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt"]
OPTIONS = {
    "cosine_with_min_lr": {"min_lr": 1e-5},
    "cosine_warmup_with_min_lr": {"min_lr_rate": 0.1},
    "warmup_stable_decay": {"num_decay_steps": 2},
    "polynomial": {"power": 2.0, "lr_end": 1e-6},
}


class Rates(TrainerCallback):
    def __init__(self):
        self.seen = []

    def on_step_begin(self, args, state, control, lr_scheduler=None, optimizer=None, **kwargs):
        self.seen.append((lr_scheduler.get_last_lr(), [group["lr"] for group in optimizer.param_groups]))


@pytest.mark.parametrize("name", [*STEPPED, *(name for name in OPTIONS if name not in STEPPED)])
def test_the_schedule_of_a_run_is_a_lambda_schedule_of_torch(trained, name):
    theirs = pytest.importorskip("transformers").optimization.get_scheduler
    rates = Rates()
    options = OPTIONS.get(name, {})
    given = {"lr_scheduler_type": name, "lr_scheduler_kwargs": options, "warmup_steps": 2, "max_steps": 6}
    trainer = trained(Layered(), DATA, callbacks=[rates], **given)
    scheduler = trainer.lr_scheduler
    assert isinstance(scheduler, LambdaLR) and isinstance(scheduler, LRScheduler)
    optimizer = torch.optim.AdamW([{"params": [p]} for p in Line().parameters()], lr=5e-5)
    expected = theirs(name, optimizer, 2, 6, options)
    assert scheduler.base_lrs == expected.base_lrs and [g["initial_lr"] for g in optimizer.param_groups] == [5e-5] * 2
    ours, other = scheduler.lr_lambdas[0], expected.lr_lambdas[0]
    assert (ours.args, ours.keywords) == (getattr(other, "args", ()), getattr(other, "keywords", {}))
    for last, groups in rates.seen:
        assert last == groups == expected.get_last_lr() == expected.get_lr()
        optimizer.step()
        expected.step()
    assert scheduler.last_epoch == expected.last_epoch == 6
    assert scheduler.get_lr() == scheduler.get_last_lr() == expected.get_last_lr()


def test_a_schedule_after_another_starts_from_the_initial_rate():
    optimizer = torch.optim.AdamW(Line().parameters(), lr=10.0)
    first = oneloop.get_linear_schedule_with_warmup(optimizer, 0, 2)
    for _ in range(2):
        optimizer.step()
        first.step()
    assert first.get_last_lr() == [0.0] == [optimizer.param_groups[0]["lr"]]
    second = oneloop.get_polynomial_decay_schedule_with_warmup(optimizer, 0, 4, lr_end=1e-7, power=2.0)
    assert second.base_lrs == [10.0] and second.get_last_lr() == [10.0]
    assert second.lr_lambdas[0].keywords["lr_init"] == 10.0
    third = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    assert third.get_last_lr() == [5.0], "torch's own find it too"


def test_a_schedule_goes_on_from_a_step_and_from_its_state():
    def rates(scheduler, optimizer, steps):
        found = []
        for _ in range(steps):
            found.append(scheduler.get_lr()[0])
            optimizer.step()
            scheduler.step()
        return found

    def make(**given):
        optimizer = torch.optim.AdamW(Line().parameters(), lr=10.0)
        optimizer.param_groups[0]["initial_lr"] = 10.0
        return oneloop.get_cosine_schedule_with_warmup(optimizer, 2, 10, **given), optimizer

    whole = rates(*make(), 8)
    assert rates(*make(last_epoch=2), 5) == whole[3:]
    scheduler, optimizer = make()
    rates(scheduler, optimizer, 3)
    fresh, other = make()
    fresh.load_state_dict(json.loads(json.dumps(scheduler.state_dict())))
    assert rates(fresh, other, 5) == whole[3:]


def test_replaced_factors_are_used():
    optimizer = torch.optim.SGD([{"params": [p], "lr": 1.0 + i} for i, p in enumerate(Line().parameters())], lr=1.0)
    scheduler = oneloop.get_scheduler("constant", optimizer)
    assert len(scheduler.lr_lambdas) == 2
    scheduler.lr_lambdas = [lambda step: 0.5, lambda step: 0.25]
    optimizer.step()
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == scheduler.get_last_lr() == [0.5, 0.5]


def test_a_plateau_is_torchs_and_behaves_like_it(trained):
    options = {"factor": 0.5, "patience": 0, "cooldown": 1, "threshold": 10.0, "threshold_mode": "abs"}
    trainer = trained(
        Line(), DATA, eval_dataset=DATA, lr_scheduler_type="reduce_lr_on_plateau", lr_scheduler_kwargs=options,
        eval_strategy="epoch", metric_for_best_model="eval_loss", num_train_epochs=5, load_best_model_at_end=False,
    )  # fmt: skip
    scheduler = trainer.lr_scheduler
    assert isinstance(scheduler, ReduceLROnPlateau) and isinstance(scheduler, LRScheduler)
    optimizer = torch.optim.SGD([{"params": [p]} for p in Line().parameters()], lr=5e-5)
    expected = ReduceLROnPlateau(optimizer, **options)
    for entry in trainer.state.log_history:
        if "eval_loss" in entry:
            expected.step(entry["eval_loss"])
    assert scheduler.get_last_lr() == expected.get_last_lr() == [1.25e-5] * 2
    names = ("best", "mode", "factor", "patience", "cooldown", "eps", "num_bad_epochs", "cooldown_counter", "_last_lr")
    for name in (*names, "threshold", "threshold_mode", "min_lrs"):
        assert getattr(scheduler, name) == getattr(expected, name), name
    with pytest.raises(AttributeError):
        _ = scheduler.last_metric


def test_get_scheduler_makes_those_that_follow_a_metric():
    optimizer = torch.optim.SGD(Line().parameters(), lr=1.0)
    scheduler = oneloop.get_scheduler("reduce_lr_on_plateau", optimizer, scheduler_specific_kwargs={"patience": 0})
    assert isinstance(scheduler, ReduceLROnPlateau) and scheduler.patience == 0
    for metric in (1.0, 2.0):
        scheduler.step(metric)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
