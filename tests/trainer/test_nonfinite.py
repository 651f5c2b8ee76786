"""A loss or a gradient that is not finite: stop, skip or ignore; at once, or a step late on an accelerator."""

import math

import numpy as np
import pytest

from oneloop import Trainer
from oneloop.data.order import Order
from oneloop.errors import NonFiniteError
from tests.backends.support import refuses_half, rows, same_bytes

BATCH, SAMPLES = 4, 24
RUN = {"learning_rate": 0.05, "per_device_train_batch_size": BATCH, "num_train_epochs": 1, "logging_steps": 1}


class Late(Trainer):
    """A CPU that behaves as an accelerator does: flags are read a step later."""

    def create_optimizer_and_scheduler(self, num_training_steps):
        self._oneloop.engine.late = True
        super().create_optimizer_and_scheduler(num_training_steps)


def poisoned(step, samples=SAMPLES, accumulation=1):
    """Data whose sample at the first position of that step (from 1) is NaN; the indices of the step's samples."""
    data = rows(samples)
    size = BATCH * accumulation
    indices = Order(samples, 42, 0)[(step - 1) * size : step * size].tolist()
    data[indices[0]]["x"] = np.full_like(data[indices[0]]["x"], np.nan)
    return data, indices


@pytest.mark.parametrize("optim", ["sgd", "adamw_torch"])
@pytest.mark.parametrize("step", [1, 3, 6])
def test_stop_names_step_samples_and_checkpoint(backend, arguments, tmp_path, optim, step):
    data, indices = poisoned(step)
    model = backend.classifier()
    good = {}

    class Kept(Trainer):
        def log(self, logs, start_time=None):
            good[self.state.global_step] = backend.weights(model)
            super().log(logs, start_time)

    args = arguments(optim=optim, save_strategy="steps", save_steps=1, **RUN)
    trainer = Kept(model, args, train_dataset=data)
    before = backend.weights(model)
    with pytest.raises(NonFiniteError) as error:
        trainer.train()
    text = str(error.value)
    assert f"step {step}:" in text and str(indices) in text
    last = f"checkpoint-{step - 1}" if step > 1 else "none in this run"
    assert f"Last checkpoint: {tmp_path / 'out' / last if step > 1 else last}." in text
    assert same_bytes(backend.weights(model), good.get(step - 1, before))
    assert trainer.state.global_step == step - 1 and not trainer.is_in_train


def test_samples_of_an_accumulated_update_and_of_an_incomplete_one(backend, arguments):
    data, indices = poisoned(2, samples=21, accumulation=3)
    trainer = Trainer(backend.classifier(), arguments(gradient_accumulation_steps=3, **RUN), train_dataset=data)
    with pytest.raises(NonFiniteError, match="step 2") as error:
        trainer.train()
    assert len(indices) == 9 and str(indices) in str(error.value)


def test_samples_that_drop_last_drops_are_not_named(backend, arguments):
    data, indices = poisoned(2, samples=21, accumulation=3)
    args = arguments(gradient_accumulation_steps=3, dataloader_drop_last=True, **RUN)
    with pytest.raises(NonFiniteError, match="step 2") as error:
        Trainer(backend.classifier(), args, train_dataset=data).train()
    assert str(indices[:8]) in str(error.value)


@pytest.mark.parametrize("cls", [Trainer, Late])
@pytest.mark.parametrize("optim", ["sgd", "adamw_torch"])
@pytest.mark.parametrize("step", [1, 3, 6])
def test_skip_leaves_the_step_out_aloud(backend, trained, caplog, cls, optim, step):
    data, indices = poisoned(step)
    model, expected = backend.classifier(), backend.classifier()
    options = RUN | {"optim": optim, "lr_scheduler_type": "constant"}
    trainer = trained(model, data, cls, nonfinite="skip", **options)
    order = [i for i in Order(SAMPLES, 42, 0)[:].tolist() if i not in indices]
    clean = rows(SAMPLES)
    trained(expected, [clean[i] for i in order], train_sampling_strategy="sequential", **options)
    assert same_bytes(backend.weights(model), backend.weights(expected))
    assert trainer.state.global_step == 6 and trainer.result.metrics["skipped_steps"] == 1
    said = [r.getMessage() for r in caplog.records if "nonfinite='skip'" in r.getMessage()]
    assert len(said) == 1 and f"step {step}:" in said[0] and str(indices) in said[0]


def test_ignore_lets_it_through(backend, trained):
    data, _ = poisoned(2)
    model = backend.classifier()
    trained(model, data, nonfinite="ignore", **RUN)
    assert np.isnan(backend.weights(model)["hidden.weight"]).all()


@pytest.mark.parametrize("step", [2, 5, 6])
def test_late_flag_masks_the_update_and_is_told_a_step_later(backend, arguments, step):
    """A fused optimizer never waits for the flag: the step after the bad one is under way when the news comes."""
    data, indices = poisoned(step)
    model, expected = backend.classifier(), backend.classifier()
    trainer = Late(model, arguments(**RUN), train_dataset=data)
    with pytest.raises(NonFiniteError) as error:
        trainer.train()
    assert f"step {step}:" in str(error.value) and str(indices) in str(error.value)
    if not backend.masks_updates:
        assert trainer.state.global_step == step - 1, "the flag is read at once"
        return
    assert trainer.state.global_step == (step if step < 6 else 6), "the last step is told at the end of training"
    skipped = Late(expected, arguments(nonfinite="skip", **(RUN | {"max_steps": 6})), train_dataset=data)
    weights = {}

    class Keep:
        def on_optimizer_step(self, args, state, control, **kwargs):
            weights[state.global_step + 1] = backend.weights(expected)

    skipped.add_callback(Keep())
    skipped.train()
    assert same_bytes(backend.weights(model), weights[min(step + 1, 6)])
    assert same_bytes(weights[step], weights[step - 1]) and np.isfinite(weights[6]["head.weight"]).all()


def test_late_flag_of_an_optimizer_without_a_mask_is_read_at_once(backend, arguments):
    data, _ = poisoned(3)
    trainer = Late(backend.classifier(), arguments(optim="sgd", **RUN), train_dataset=data)
    with pytest.raises(NonFiniteError, match="step 3"):
        trainer.train()
    assert trainer.state.global_step == 2


def test_late_clipping_gives_the_same_bytes(backend, trained):
    weights = []
    for cls in (Trainer, Late):
        model = backend.classifier()
        trained(model, rows(SAMPLES), cls, max_grad_norm=0.3, **RUN)
        weights.append(backend.weights(model))
    assert same_bytes(*weights)


@pytest.mark.parametrize("cls", [Trainer, Late])
@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_a_loss_that_is_nan_while_its_gradients_are_finite(backend, arguments, cls, clip):
    def criterion(logits, labels):
        return backend.cross_entropy(logits, labels) + math.nan

    trainer = cls(
        backend.classifier("logits"),
        arguments(max_grad_norm=clip, **RUN),
        train_dataset=rows(SAMPLES),
        criterion=criterion,
    )
    with pytest.raises(NonFiniteError, match="step 1"):
        trainer.train()


@pytest.mark.parametrize("filtered", [True, False])
def test_the_filter_touches_the_logged_average_alone(backend, trained, filtered):
    steps = []

    def criterion(logits, labels):
        steps.append(1)
        return backend.cross_entropy(logits, labels) + (math.nan if len(steps) == 3 else 0.0)

    options = RUN | {"logging_steps": 3, "nonfinite": "ignore", "logging_nan_inf_filter": filtered}
    model = backend.classifier("logits")
    trainer = trained(model, rows(SAMPLES), criterion=criterion, **options)
    losses = [e["loss"] for e in trainer.state.log_history if "loss" in e]
    assert math.isnan(losses[0]) is not filtered and math.isfinite(losses[1])
    assert math.isnan(trainer.result.training_loss) is not filtered
    if filtered:
        assert 0.5 < losses[0] < 2.0
    assert np.isfinite(backend.weights(model)["head.weight"]).all()


def test_an_overflow_of_the_loss_scaler_is_normal(backend, arguments, trained, caplog):
    if refuses_half(backend, arguments, fp16=True):
        return
    model = backend.classifier()
    before = backend.weights(model)
    options = RUN | {"num_train_epochs": 4}
    trainer = trained(model, rows(SAMPLES), fp16=True, scale_loss=2.0**24, **options)
    skipped = [e.get("skipped_steps", 0) for e in trainer.state.log_history if "loss" in e]
    scales = [e["loss_scale"] for e in trainer.state.log_history if "loss" in e]
    assert skipped[0] == 1 and 1 < skipped[-1] < 20 and trainer.result.metrics["skipped_steps"] == skipped[-1]
    assert scales[0] == 2.0**23 and scales[-1] == 2.0 ** (24 - skipped[-1])
    assert not same_bytes(before, backend.weights(model))
    assert np.isfinite(backend.weights(model)["head.weight"]).all()
    assert "not finite" not in caplog.text


def test_an_overflow_at_the_smallest_scale_stops(backend, arguments):
    if refuses_half(backend, arguments, fp16=True):
        return

    def criterion(logits, labels):
        return backend.cross_entropy(logits, labels) * 1e30

    trainer = Trainer(
        backend.classifier("logits"),
        arguments(fp16=True, scale_loss=4.0, **RUN),
        train_dataset=rows(SAMPLES),
        criterion=criterion,
    )
    with pytest.raises(NonFiniteError, match="step 3"):
        trainer.train()


@pytest.mark.parametrize("nonfinite", ["stop", "skip", "ignore"])
def test_a_nan_under_the_loss_scaler_is_one(backend, arguments, caplog, nonfinite):
    if refuses_half(backend, arguments, fp16=True):
        return
    data, _ = poisoned(3)
    model = backend.classifier()
    trainer = Trainer(model, arguments(fp16=True, nonfinite=nonfinite, **RUN), train_dataset=data)
    if nonfinite == "stop":
        with pytest.raises(NonFiniteError, match="step 3"):
            trainer.train()
        return
    trainer.train()
    assert trainer.state.global_step == 6 and ("step 3:" in caplog.text) is (nonfinite == "skip")
    assert np.isfinite(backend.weights(model)["head.weight"]).all(), "the scaler itself leaves such a step out"
