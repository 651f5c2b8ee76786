"""Evaluations whose metric is NaN: none is the best, whether it comes first, in between or from another trainer."""

import json
import math
from types import SimpleNamespace

import pytest

from oneloop import EarlyStoppingCallback, Trainer, TrainerControl, TrainerState
from oneloop.optim.plateau import Greedy, Plateau
from tests.backends.support import rows, same_bytes

NAN = math.nan
RUN = {"per_device_train_batch_size": 4, "learning_rate": 0.1, "optim": "sgd", "eval_strategy": "steps"}
RUN |= {"eval_steps": 1, "metric_for_best_model": "score"}


def scored(scores, weights=None, backend=None):
    """A Trainer whose evaluation after step N has scores[N - 1]."""

    class Scored(Trainer):
        def evaluate(self, *args, **kwargs):
            metrics = {"eval_score": scores[self.state.global_step - 1]}
            if weights is not None:
                weights[self.state.global_step] = backend.weights(self.model)
            self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics=metrics)
            return metrics

    return Scored


@pytest.mark.parametrize(("greater", "best"), [(True, 3), (False, 2)])
def test_the_best_model_is_never_one_of_nan(backend, trained, tmp_path, greater, best):
    scores, weights = [NAN, 2.0, 5.0, NAN], {}
    options = RUN | {"max_steps": 4, "load_best_model_at_end": True, "greater_is_better": greater}
    trainer = trained(backend.classifier(), rows(16), scored(scores, weights, backend), eval_dataset=rows(4), **options)
    assert (trainer.state.best_metric, trainer.state.best_global_step) == (scores[best - 1], best)
    assert trainer.state.best_model_checkpoint == str(tmp_path / "out" / f"checkpoint-{best}")
    assert same_bytes(backend.weights(trainer.model), weights[best]) and not same_bytes(weights[1], weights[best])


def test_with_nothing_but_nan_there_is_no_best(backend, trained, tmp_path, caplog):
    options = RUN | {"max_steps": 2, "load_best_model_at_end": True}
    trainer = trained(backend.classifier(), rows(16), scored([NAN, NAN]), eval_dataset=rows(4), **options)
    assert caplog.text.count("eval_score, the metric of the best model, is NaN at step 1") == 1
    assert caplog.text.count("the metric of the best model") == 1, "once for a run"
    assert trainer.state.best_metric is trainer.state.best_model_checkpoint is None
    assert not list((tmp_path / "out").glob("checkpoint-*"))


@pytest.mark.parametrize(
    ("scores", "steps"),
    [
        ([NAN, 3.0, 2.0, 4.0, 1.0, 5.0], 6),  # what follows it has something to improve on
        ([NAN, NAN, 1.0, 1.0, 1.0, 1.0], 2),  # it counts as no progress
        ([NAN, 3.0, NAN, 2.0, 9.0, 9.0], 4),
    ],
)
def test_early_stopping(backend, trained, caplog, scores, steps):
    stopping = EarlyStoppingCallback(early_stopping_patience=2)
    options = RUN | {"num_train_epochs": 2, "greater_is_better": True}
    trainer = trained(
        backend.classifier(), rows(12), scored(scores), eval_dataset=rows(4), callbacks=[stopping], **options
    )
    assert trainer.state.global_step == steps
    bad = [step for step, score in enumerate(scores[:steps], 1) if math.isnan(score)]
    said = [r.getMessage() for r in caplog.records if "EarlyStoppingCallback: eval_score is NaN" in r.getMessage()]
    assert [f"at step {step}," in text for step, text in zip(bad, said, strict=True)] == [True] * len(bad)


def test_early_stopping_that_was_left_with_nan_by_another_trainer():
    stopping, control = EarlyStoppingCallback(), TrainerControl()
    stopping.best = NAN
    args = SimpleNamespace(metric_for_best_model="score", greater_is_better=True)
    stopping.on_evaluate(args, TrainerState(), control, metrics={"eval_score": 1.0})
    assert stopping.best == 1.0 and not control.should_training_stop


def test_a_best_of_nan_in_a_checkpoint_of_transformers(arguments, tmp_path):
    """Some of its versions take a first metric of NaN for the best."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tests.backends.kits.torch_kit import Kit

    shared = {"per_device_train_batch_size": 4, "save_steps": 1, "save_strategy": "steps", "report_to": "none"}
    theirs = transformers.TrainingArguments(str(tmp_path / "theirs"), use_cpu=True, max_steps=1, **shared)
    transformers.Trainer(Kit().classifier(), theirs, train_dataset=rows(16)).train()
    path = tmp_path / "theirs" / "checkpoint-1"
    state = json.loads((path / "trainer_state.json").read_text())
    (path / "trainer_state.json").write_text(json.dumps(state | {"best_metric": NAN, "best_global_step": 1}))
    stopping, options = EarlyStoppingCallback(early_stopping_patience=2), RUN | shared | {"optim": "adamw_torch"}
    args = arguments(max_steps=4, greater_is_better=True, **options)
    trainer = scored([NAN, 1.0, 2.0, 3.0])(
        Kit().classifier(), args, train_dataset=rows(16), eval_dataset=rows(4), callbacks=[stopping]
    )
    trainer.train(resume_from_checkpoint=str(path))
    assert (trainer.state.best_metric, trainer.state.best_global_step, stopping.best) == (3.0, 4, 3.0)


@pytest.mark.parametrize("rule", [Plateau, Greedy])
def test_learning_rates_that_follow_a_metric(rule):
    """One of NaN counts as no progress, and the next one is compared with the best before it."""
    given = {"patience": 0, "factor": 0.5, "min_lr": 0.0}
    followed = rule(1.0, **given)
    followed.update(NAN)
    assert followed.lrs == [0.5] and followed.state_dict()["best"] is None
    followed.update(3.0)
    assert followed.best == 3.0


def test_a_smoothed_metric_is_a_number_again_after_one_that_was_nan():
    """GreedyLR follows a rolling mean: what is not finite has no part in it."""
    followed, plain = (Greedy(1.0, smooth=True, window_size=2, patience=100) for _ in range(2))
    for metric in (4.0, NAN, 2.0, math.inf, 1.0):
        followed.update(metric)
    for metric in (4.0, 2.0, 1.0):
        plain.update(metric)
    assert followed.best == plain.best == 1.5
