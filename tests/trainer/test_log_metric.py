"""Trainer.log_metric: averages of values that the user's code measures."""

import math

import numpy as np
import pytest

from oneloop import Trainer, TrainerCallback
from oneloop.errors import ArgumentError
from tests.backends.support import rows


class Measures(Trainer):
    """Logs the first feature of each micro-batch, on the device, and how many values it has seen."""

    seen = ()

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        first = inputs["x"][:, 0].mean()
        self.log_metric("first", first, weight=len(inputs["labels"]))
        self.log_metric("plain", float(first))
        self.log_metric("size", len(inputs["labels"]))
        self.seen = (*self.seen, float(first))
        if not type(first).__module__.startswith("mindspore"):  # which has no kernel for it on a CPU
            first.zero_()  # what is done with it later does not count
        return super().compute_loss(model, inputs, return_outputs, **kwargs)


def logged(trainer, name):
    return [(entry["step"], entry[name]) for entry in trainer.state.log_history if name in entry]


def test_average_since_the_last_log(backend, trained):
    trainer = trained(
        backend.classifier(),
        rows(24),
        trainer_class=Measures,
        max_steps=4,
        per_device_train_batch_size=3,
        gradient_accumulation_steps=2,
        logging_steps=2,
    )
    assert len(trainer.seen) == 8
    expected = [(2, np.mean(trainer.seen[:4])), (4, np.mean(trainer.seen[4:]))]
    for name in ("first", "plain"):
        assert [step for step, _ in logged(trainer, name)] == [2, 4]
        assert np.allclose([value for _, value in logged(trainer, name)], [value for _, value in expected], rtol=1e-6)


def test_weights(backend, trained):
    class Weighted(Trainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            step = self.state.global_step
            self.log_metric("w", 10.0 * step, weight=backend.tensor(np.float32(1 + step)))
            return super().compute_loss(model, inputs, *args, **kwargs)

    trainer = trained(backend.classifier(), rows(8), trainer_class=Weighted, max_steps=3, logging_steps=3)
    assert logged(trainer, "w") == [(3, (10 * 2 + 20 * 3) / 6)]


def test_evaluations_have_the_average_of_the_whole_set(backend, trained):
    data = rows(10)
    trainer = trained(
        backend.classifier(),
        rows(8),
        trainer_class=Measures,
        eval_dataset=data,
        eval_strategy="steps",
        eval_steps=1,
        max_steps=2,
        logging_steps=2,
        per_device_eval_batch_size=4,
    )
    expected = np.mean([row["x"][0] for row in data])
    assert [step for step, _ in logged(trainer, "eval_first")] == [1, 2]
    assert np.allclose([value for _, value in logged(trainer, "eval_first")], expected, rtol=1e-5)
    # Batches count the same without a weight.
    means = [np.mean([row["x"][0] for row in data[begin : begin + 4]]) for begin in (0, 4, 8)]
    assert np.isclose(logged(trainer, "eval_plain")[0][1], np.mean(means), rtol=1e-5)
    # Values of the evaluation are not in the log of training, which the evaluation interrupts.
    of_training = trainer.seen[0], trainer.seen[4]  # after each an evaluation of three batches
    ((step, value),) = logged(trainer, "first")
    assert step == 2 and np.isclose(value, np.mean(of_training), rtol=1e-6)
    # After training, and for predictions.
    assert np.isclose(trainer.evaluate()["eval_first"], expected, rtol=1e-5)
    assert np.isclose(trainer.predict(data).metrics["test_first"], expected, rtol=1e-5)


def test_a_resumed_run_logs_the_same(backend, trained, tmp_path):
    given = {"trainer_class": Measures, "max_steps": 6, "logging_steps": 4, "per_device_train_batch_size": 3}
    whole = trained(backend.classifier(), rows(24), **given)
    given |= {"save_strategy": "steps", "save_steps": 2, "output_dir": tmp_path / "run"}
    trained(backend.classifier(), rows(24), **given | {"max_steps": 6})
    resumed = trained(backend.classifier(), rows(24), resume=str(tmp_path / "run" / "checkpoint-2"), **given)
    assert len(resumed.seen) == 4
    for name in ("first", "plain"):
        assert logged(resumed, name) == logged(whole, name) and len(logged(whole, name)) == 1


def test_a_value_that_is_not_finite_is_not_hidden(backend, trained):
    class Bad(Trainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            self.log_metric("bad", math.nan if self.state.global_step == 1 else 1.0)
            return super().compute_loss(model, inputs, *args, **kwargs)

    trainer = trained(backend.classifier(), rows(8), trainer_class=Bad, max_steps=4, logging_steps=2)
    (_, first), (_, second) = logged(trainer, "bad")
    assert math.isnan(first) and second == 1.0


def test_more_values_than_are_kept_on_the_device(backend, trained, monkeypatch):
    monkeypatch.setattr("oneloop.trainer.logged_metrics.UNREAD", 3)
    trainer = trained(backend.classifier(), rows(24), trainer_class=Measures, max_steps=8, logging_steps=8)
    assert np.isclose(logged(trainer, "plain")[0][1], np.mean(trainer.seen), rtol=1e-6)


def test_a_step_that_is_repeated_counts_once(trained):
    """After running out of memory the micro-batches are halved, and all of them are computed again."""
    torch = pytest.importorskip("torch")
    from tests.backends.support import kit_module

    class Small(Measures):
        def compute_loss(self, model, inputs, *args, **kwargs):
            loss = super().compute_loss(model, inputs, *args, **kwargs)
            if len(inputs["labels"]) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return loss

    trainer = trained(
        kit_module("torch").Kit().classifier(),
        rows(8),
        trainer_class=Small,
        max_steps=2,
        logging_steps=1,
        per_device_train_batch_size=4,
        auto_find_batch_size=True,
    )
    first, *rest = trainer.seen
    assert len(rest) == 4  # two halves of each step
    assert np.allclose([v for _, v in logged(trainer, "plain")], [np.mean(rest[:2]), np.mean(rest[2:])], rtol=1e-6)
    assert logged(trainer, "size") == [(1, 2.0), (2, 2.0)]


def test_from_a_callback_and_what_callbacks_add_to_the_logs(backend, trained):
    written = []

    class Own(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            trainer.log_metric("steps", state.global_step)

        def on_log(self, args, state, control, logs=None, **kwargs):
            logs["added"] = 7

    class Writes(TrainerCallback):
        writes_logs = True

        def on_log(self, args, state, control, logs=None, **kwargs):
            written.append(dict(logs))

    class Holds(Trainer):
        def train(self, *args, **kwargs):
            nonlocal trainer
            trainer = self
            return super().train(*args, **kwargs)

    trainer = None
    trained(
        backend.classifier(), rows(8), trainer_class=Holds, callbacks=[Writes(), Own()], max_steps=3, logging_steps=3
    )
    assert logged(trainer, "steps") == [(3, 2.0)]
    assert written[0]["added"] == 7 and logged(trainer, "added")[0] == (3, 7)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("loss", 1.0, "the name 'loss' cannot be used"),
        ("", 1.0, "the name '' cannot be used"),
        ("x", np.zeros(3), r"x is a ndarray of shape \(3,\); expected a number or a tensor with one element"),
        ("x", "1", "x is a str; expected a number"),
    ],
)
def test_what_cannot_be_averaged(backend, trained, name, value, told):
    class Wrong(Trainer):
        def compute_loss(self, *args, **kwargs):
            self.log_metric(name, value)
            return super().compute_loss(*args, **kwargs)

    with pytest.raises(ArgumentError, match=told):
        trained(backend.classifier(), rows(8), trainer_class=Wrong, max_steps=1)


def test_outside_of_training_and_evaluation(backend, arguments):
    trainer = Trainer(backend.classifier(), arguments(), train_dataset=rows(8))
    with pytest.raises(ArgumentError, match=r"neither is running. Call trainer.log\("):
        trainer.log_metric("x", 1.0)
