"""Optimizers and schedules of Paddle: those that are built by name, and those that the user brings."""

import json

import numpy as np
import pytest

paddle = pytest.importorskip("paddle")

from oneloop import Trainer, TrainerCallback  # noqa: E402
from oneloop.backends.paddle import optimizers  # noqa: E402
from oneloop.errors import ArgumentError, CheckpointError, UnsupportedError  # noqa: E402
from tests.backends.kits.paddle_kit import Kit  # noqa: E402
from tests.backends.support import largest_difference, rows, same_bytes  # noqa: E402

KIT = Kit()
RUN = {"per_device_train_batch_size": 4, "max_steps": 6, "logging_steps": 1, "learning_rate": 0.1}


class Rates(TrainerCallback):
    """The rate that Paddle's optimizer uses at each step."""

    def __init__(self):
        self.seen = []

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        self.seen.append(optimizer.get_lr())


def by_hand(make, data, steps=6, clip=1.0, schedule=None):
    """A loop as Paddle's guides write it, over the samples in oneloop's order."""
    from oneloop.data.order import Order

    model = KIT.classifier()
    optimizer = make(model, paddle.nn.ClipGradByGlobalNorm(clip))
    for step in range(steps):
        epoch, place = divmod(step, len(data) // 4)
        chosen = [data[i] for i in Order(len(data), 42, epoch)[place * 4 : place * 4 + 4].tolist()]
        x = paddle.to_tensor(np.stack([row["x"] for row in chosen]))
        model(x, labels=paddle.to_tensor([row["labels"] for row in chosen]))["loss"].backward()
        if schedule is not None:
            optimizer.set_lr(schedule(step))
        optimizer.step()
        optimizer.clear_grad()
    return KIT.weights(model)


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_adamw_is_that_of_a_loop_by_hand(trained, decay):
    def make(model, clip):
        names = {p.name for name, p in model.named_parameters() if "bias" not in name}
        return paddle.optimizer.AdamW(
            0.1,
            parameters=model.parameters(),
            weight_decay=decay,
            apply_decay_param_fun=lambda name: name in names,
            grad_clip=clip,
        )

    model = KIT.classifier()
    trained(model, rows(24), weight_decay=decay, **RUN)
    expected = by_hand(make, rows(24), schedule=lambda step: 0.1 * (1 - step / 6))
    assert largest_difference(KIT.weights(model), expected) < 2e-6


@pytest.mark.parametrize("name", ["sgd", "rmsprop", "adagrad"])
def test_decay_of_the_others_is_that_of_their_groups(trained, name):
    cls = {"sgd": "SGD", "rmsprop": "RMSProp", "adagrad": "Adagrad"}[name]

    def make(model, clip):
        named = list(model.named_parameters())
        groups = [
            {"params": [p for n, p in named if "bias" not in n], "weight_decay": 0.3},
            {"params": [p for n, p in named if "bias" in n], "weight_decay": 0.0},
        ]
        return getattr(paddle.optimizer, cls)(0.1, parameters=groups, grad_clip=None)

    model = KIT.classifier()
    given = RUN | {"lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    trainer = trained(model, rows(24), optim=name, weight_decay=0.3, **given)
    assert type(trainer.optimizer).__name__ == cls
    assert largest_difference(KIT.weights(model), by_hand(make, rows(24), clip=1e9)) < 2e-6
    plain = KIT.classifier()
    trained(plain, rows(24), optim=name, **given)
    assert largest_difference(KIT.weights(model), KIT.weights(plain)) > 1e-3


def test_decay_does_not_outlive_its_optimizer(trained):
    given = RUN | {"optim": "sgd", "lr_scheduler_type": "constant"}
    model, fresh = KIT.classifier(), KIT.classifier()
    trained(model, rows(24), weight_decay=0.5, **given)
    model.set_state_dict(KIT.classifier().state_dict())
    trained(model, rows(24), **given)
    trained(fresh, rows(24), **given)
    assert same_bytes(KIT.weights(model), KIT.weights(fresh))


def test_momentum_by_optim_args(trained):
    trainer = trained(KIT.classifier(), rows(24), optim="sgd", optim_args="momentum=0.8,use_nesterov=true", **RUN)
    assert type(trainer.optimizer) is paddle.optimizer.Momentum
    assert trainer.optimizer._momentum == 0.8 and trainer.optimizer._use_nesterov is True


def test_options_that_an_optimizer_does_not_take(arguments):
    trainer = Trainer(KIT.classifier(), arguments(optim_args="betas=3"), train_dataset=rows(4))
    with pytest.raises(ArgumentError, match="AdamW does not accept betas .*it accepts learning_rate, beta1"):
        trainer.create_optimizer()


def pair(model, with_schedule=True):
    schedule = paddle.optimizer.lr.PolynomialDecay(0.2, decay_steps=6, end_lr=0.02)
    rate = schedule if with_schedule else 0.2
    return paddle.optimizer.Momentum(rate, parameters=model.parameters()), schedule


@pytest.mark.parametrize("case", ["pair", "schedule inside alone", "float beside a schedule", "schedule alone"])
def test_a_schedule_of_paddles(trained, case):
    model, rates = KIT.classifier(), Rates()
    optimizer, schedule = pair(model, with_schedule=case != "float beside a schedule")
    given = {
        "schedule inside alone": (optimizer, None),
        "schedule alone": (None, schedule),
    }.get(case, (optimizer, schedule))
    trainer = trained(model, rows(24), callbacks=[rates], optimizers=given, **RUN)
    expected = [0.02 + (0.2 - 0.02) * (1 - step / 6) for step in range(6)]
    assert rates.seen == pytest.approx(expected)
    logged = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert logged == pytest.approx(expected) and trainer.lr_scheduler is schedule


def test_a_pair_of_paddles_resumes_exactly(trained, tmp_path):
    run = RUN | {"save_strategy": "steps", "save_steps": 1}
    whole, resumed = KIT.classifier(dropout=0.3), KIT.classifier(dropout=0.3, seed=2)
    first = trained(whole, rows(24), optimizers=pair(whole), output_dir=tmp_path / "a", **run)
    again = trained(
        resumed,
        rows(24),
        optimizers=pair(resumed),
        output_dir=tmp_path / "b",
        resume=str(tmp_path / "a/checkpoint-3"),
        **run,
    )
    assert same_bytes(KIT.weights(whole), KIT.weights(resumed))
    assert same_bytes(KIT.optimizer(first), KIT.optimizer(again))
    assert first.lr_scheduler.state_dict() == again.lr_scheduler.state_dict()


def test_reduce_on_plateau_follows_evaluations(trained):
    model = KIT.classifier()
    schedule = paddle.optimizer.lr.ReduceOnPlateau(0.4, factor=0.5, patience=0, mode="max")
    optimizer = paddle.optimizer.SGD(schedule, parameters=model.parameters())
    given = RUN | {"eval_strategy": "steps", "eval_steps": 2, "eval_dataset": rows(8, 1)}
    trainer = trained(model, rows(24), optimizers=(optimizer, schedule), **given)
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    worse = sum(b <= a * (1 + 1e-4) for a, b in zip(losses, losses[1:]))
    assert len(losses) == 3 and optimizer.get_lr() == pytest.approx(0.4 * 0.5**worse) and worse


def test_rates_of_groups_are_factors(trained):
    model = KIT.classifier()
    groups = [{"params": model.hidden.parameters()}, {"params": model.head.parameters(), "learning_rate": 0.1}]
    optimizer = paddle.optimizer.AdamW(0.2, parameters=groups)
    trainer = trained(model, rows(24), optimizers=(optimizer, None), **RUN | {"max_steps": 1})
    rates = trainer.lr_scheduler.base_lrs
    assert rates == pytest.approx([0.2, 0.02]) and [len(g) for g in trainer.get_optimizer_group()] == [2, 2]


@pytest.mark.parametrize("optim", ["adamw", "sgd", "rmsprop", "adagrad"])
def test_groups_resume_exactly(trained, tmp_path, optim):
    """With weight decay, which is kept in groups or beside them; and with a layer that is thawed on the way."""

    class Thaw(TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, **kwargs):
            KIT.freeze(model.head, state.global_step < 2)

    class Frozen(Trainer):
        def create_optimizer(self):
            KIT.freeze(self.model.head, False)
            return super().create_optimizer()

    run = RUN | {"optim": optim, "weight_decay": 0.1, "save_strategy": "steps", "save_steps": 1}
    whole = KIT.classifier()
    first = trained(whole, rows(24), Frozen, callbacks=[Thaw()], output_dir=tmp_path / "a", **run)
    for step in (1, 4):
        resumed, source = KIT.classifier(seed=3), str(tmp_path / f"a/checkpoint-{step}")
        again = trained(
            resumed, rows(24), Frozen, callbacks=[Thaw()], output_dir=tmp_path / f"b{step}", resume=source, **run
        )
        assert same_bytes(KIT.weights(whole), KIT.weights(resumed)), step
        assert same_bytes(KIT.optimizer(first), KIT.optimizer(again)), step


def test_the_checkpoints_options_are_used(trained, tmp_path):
    run = RUN | {"save_strategy": "steps", "save_steps": 3, "weight_decay": 0.1, "adam_beta1": 0.8}
    whole, resumed = KIT.classifier(), KIT.classifier(seed=3)
    trained(whole, rows(24), output_dir=tmp_path / "a", **run)
    changed = run | {"weight_decay": 0.7, "adam_beta1": 0.5, "learning_rate": 0.7}
    trainer = trained(resumed, rows(24), output_dir=tmp_path / "b", resume=str(tmp_path / "a/checkpoint-3"), **changed)
    assert same_bytes(KIT.weights(whole), KIT.weights(resumed))
    assert {group["weight_decay"] for group in optimizers.groups(trainer.optimizer)} == {0.1, 0.0}


def test_the_state_of_another_optimizer(trained, tmp_path):
    run = RUN | {"save_strategy": "steps", "save_steps": 3}
    trained(KIT.classifier(), rows(24), output_dir=tmp_path / "a", **run)
    for optim, name in (("sgd", "SGD"), ("rmsprop", "RMSProp")):
        with pytest.raises(CheckpointError, match=f"is that of AdamW, but this run's optimizer is {name}. Set optim"):
            trained(
                KIT.classifier(),
                rows(24),
                output_dir=tmp_path / optim,
                resume=str(tmp_path / "a/checkpoint-3"),
                optim=optim,
                **run,
            )


def test_state_is_stored_by_the_names_of_the_model(trained, tmp_path):
    trained(KIT.classifier(), rows(24), output_dir=tmp_path, save_strategy="steps", save_steps=6, **RUN)
    run = json.loads((tmp_path / "checkpoint-6" / "run.json").read_text())
    assert run["optimizer"]["class"] == "AdamW"
    (group,) = run["optimizer"]["groups"]
    assert group["names"] == ["hidden.weight", "hidden.bias", "head.weight", "head.bias"]
    assert (group["beta1"], group["epsilon"], group["weight_decay"]) == (0.9, 1e-8, 0.0)


def test_gradients_of_rows_cannot_be_clipped(arguments, trained):
    class Sparse(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.embed = paddle.nn.Embedding(9, 4, sparse=True)
            self.head = paddle.nn.Linear(4, 3)

        def forward(self, input_ids, labels):
            return paddle.nn.functional.cross_entropy(self.head(self.embed(input_ids).mean(1)), labels)

    data = [{"input_ids": np.array([i % 9, i % 5]), "labels": i % 3} for i in range(24)]
    with pytest.raises(UnsupportedError, match="sparse=True .*max_grad_norm=0"):
        Trainer(Sparse(), arguments(**RUN), train_dataset=data).train()
    model = Sparse()
    before = KIT.weights(model)
    trained(model, data, max_grad_norm=0.0, nonfinite="ignore", **RUN | {"optim": "sgd"})
    assert largest_difference(before, KIT.weights(model)) > 1e-3


def test_groups_that_are_given_have_parameters_and_weight_decay_only(arguments):
    class Own(Trainer):
        def get_optimizer_cls_and_kwargs(self, args, model=None):
            cls, options = Trainer.get_optimizer_cls_and_kwargs(args, model)
            return cls, options | {"optimizer_dict": [{"params": model.parameters(), "lr": 0.1}]}

    with pytest.raises(ArgumentError, match="a parameter group has lr"):
        Own(Kit().classifier(), arguments()).create_optimizer()
