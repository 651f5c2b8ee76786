"""Groups of Paddle's optimizers have factors of its learning rate, and the first one may have another than 1."""

import numpy as np
import pytest

paddle = pytest.importorskip("paddle")

from oneloop.data.order import Order  # noqa: E402
from tests.backends.kits.paddle_kit import Kit  # noqa: E402
from tests.backends.support import largest_difference, rows, same_bytes  # noqa: E402

KIT = Kit()
STEPS, RATE, FACTORS = 6, 0.2, (0.5, 2.0)
RUN = {"per_device_train_batch_size": 4, "max_steps": STEPS, "logging_steps": 1, "max_grad_norm": 0.0}
LINEAR = [RATE * (1 - step / STEPS) for step in range(STEPS)]


def grouped(model, cls, rate=RATE):
    """An optimizer whose first group has the factor 0.5 and whose second has 2."""
    layers = zip((model.hidden, model.head), FACTORS)
    groups = [{"params": layer.parameters(), "learning_rate": factor} for layer, factor in layers]
    return getattr(paddle.optimizer, cls)(rate, parameters=groups)


def by_hand(cls):
    """A loop as Paddle's guides write it, over the samples in oneloop's order, with the rates of LINEAR."""
    model, data = KIT.classifier(), rows(24)
    optimizer = grouped(model, cls)
    for step, rate in enumerate(LINEAR):
        chosen = [data[i] for i in Order(24, 42, 0)[step * 4 : step * 4 + 4].tolist()]
        x = paddle.to_tensor(np.stack([row["x"] for row in chosen]))
        model(x, labels=paddle.to_tensor([row["labels"] for row in chosen]))["loss"].backward()
        optimizer.set_lr(rate)
        optimizer.step()
        optimizer.clear_grad()
    return KIT.weights(model)


def logged(trainer):
    return [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]


@pytest.mark.parametrize("cls", ["SGD", "AdamW"])
def test_each_group_follows_the_schedule_by_its_factor(trained, cls):
    model = KIT.classifier()
    trainer = trained(model, rows(24), optimizers=(grouped(model, cls), None), **RUN)
    assert logged(trainer) == pytest.approx([FACTORS[0] * rate for rate in LINEAR])
    assert largest_difference(KIT.weights(model), by_hand(cls)) < 2e-6


def test_rates_can_be_asked_for(trained):
    model = KIT.classifier()
    run = RUN | {"max_steps": 1, "lr_scheduler_type": "constant"}
    trainer = trained(model, rows(24), optimizers=(grouped(model, "SGD"), None), **run)
    assert trainer.get_learning_rates() == pytest.approx([RATE * factor for factor in FACTORS])
    assert trainer.optimizer.get_lr() == pytest.approx(RATE)


@pytest.mark.parametrize("inside", [False, True], ids=["schedule of the run", "schedule inside of the optimizer"])
@pytest.mark.parametrize("cls", ["SGD", "AdamW"])
def test_a_resumed_run_has_the_same_rates(trained, tmp_path, cls, inside):
    def train(folder, seed, resume=None):
        model = KIT.classifier(seed=seed)
        rate = paddle.optimizer.lr.PolynomialDecay(RATE, STEPS, end_lr=0.0) if inside else RATE
        run = RUN | {"save_strategy": "steps", "save_steps": 3, "output_dir": tmp_path / folder}
        trainer = trained(model, rows(24), optimizers=(grouped(model, cls, rate), None), resume=resume, **run)
        return KIT.weights(model), logged(trainer)

    whole, rates = train("whole", 0)
    assert rates == pytest.approx([FACTORS[0] * rate for rate in LINEAR])
    resumed, all_rates = train("resumed", 3, str(tmp_path / "whole" / "checkpoint-3"))
    assert all_rates == rates and same_bytes(whole, resumed)


def test_rates_that_follow_evaluations(trained):
    """The first evaluation is the best one; with patience 0 each of the others halves the rates."""
    model = KIT.classifier()
    run = RUN | {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"factor": 0.5, "patience": 0}}
    run |= {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "same", "greater_is_better": True}
    trainer = trained(
        model,
        rows(24),
        optimizers=(grouped(model, "SGD"), None),
        eval_dataset=rows(4, 1),
        compute_metrics=lambda prediction: {"same": 1.0},
        **run,
    )
    halved = [RATE * 0.5**step for step in (0, 0, 1, 2, 3, 4)]
    assert logged(trainer) == pytest.approx([FACTORS[0] * rate for rate in halved])
