"""What a Trainer can be asked before, during and after train(), and after one that failed.

The table of methods is in lifetimes.py. Callbacks go through it while training, and the run ends with the same bytes as
one that nobody asked anything.
"""

import inspect
import os
import signal
from dataclasses import dataclass

import numpy as np
import pytest

from oneloop import Trainer, TrainerCallback
from oneloop.distributed.preemption import Preempted
from oneloop.errors import NonFiniteError
from tests.backends.support import available, same_bytes, tagged
from tests.integrations.hub.stand_in import serving
from tests.trainer.lifetimes import (
    AFTER,
    BEFORE,
    EVAL,
    EVENTS,
    EXPORTS,
    FAILED,
    NO_DATA,
    NO_OPTIMIZER,
    OUTSIDE,
    RUN,
    STEPS,
    TABLE,
    TRAIN,
    Scene,
    Service,
    accuracy,
)

pytest.importorskip("huggingface_hub")

# Parts of the loop and of oneloop's insides: nobody outside of it calls them, see test_user_names.py.
INTERNAL = {
    *("accumulate", "agree", "call", "handle_empty_epoch", "is_first_report", "interrupted", "is_dealt", "is_over"),
    *("log_evaluate_save", "make_plan", "make_room", "open_epoch", "local_batches", "share_batches"),
    "update",
}
APART = {"train", "hyperparameter_search"}  # which have tests of their own below


def some_slow(moments, quick):
    return [pytest.param(each, marks=[] if each in quick else pytest.mark.slow) for each in moments]


def without_times(history):
    timed = ("runtime", "per_second")
    return [{key: value for key, value in entry.items() if not key.endswith(timed)} for entry in history]


class At(TrainerCallback):
    """Does something once, at an event of a step."""

    def __init__(self, event, step, action):
        self.event, self.step, self.action, self.done = event, step, action, False
        setattr(self, event, self._maybe)

    def _maybe(self, args, state, control, **kwargs):
        if not self.done and state.global_step == self.step:
            self.done = True  # what it calls may come by here again
            self.action()


class Breaks(Trainer):
    """Fails where it is told to, until it is told no more."""

    breaks_in = None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        if self.breaks_in == "compute_loss" and self.state.global_step == 3:
            raise Broken
        found = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if self.breaks_in == "loss" and self.state.global_step == 3:
            return found * float("nan")
        return found

    def get_train_dataloader(self):
        if self.breaks_in == "data":
            raise Broken
        return super().get_train_dataloader()


class Broken(Exception):
    pass


@pytest.fixture
def hub(monkeypatch):
    with serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.fixture
def build(backend, arguments, tmp_path):
    """A Trainer with its model from model_init, in a directory of its own."""
    made = []

    def make(trainer_class=Trainer, callbacks=(), dropout=0.0, collator=None, metrics=accuracy, **given):
        def model():
            model = backend.classifier(dropout=dropout)
            model.main_input_name = "x"  # which floating-point operations are counted from
            return model

        made.append(tmp_path / f"run-{len(made)}")
        return trainer_class(
            args=arguments(made[-1], **RUN | given),
            data_collator=collator,
            train_dataset=TRAIN,
            eval_dataset=EVAL,
            model_init=model,
            compute_metrics=metrics,
            callbacks=[Service(), *callbacks],
        )

    return make


@dataclass
class Undisturbed:
    """A run that nobody asks anything and that does not fail."""

    weights: dict
    history: list
    first_epoch: list  # indices of the samples in its batches
    loss: float  # of the evaluation set


RUNS: dict[str, Undisturbed] = {}  # by framework


@pytest.fixture
def plain(backend, build):
    if backend.name not in RUNS:
        seen, known = [], [sample["x"].tobytes() for sample in TRAIN]

        def collate(samples):
            if trainer.is_in_train and len(samples) == 4:  # evaluations have larger batches
                seen.append([known.index(sample["x"].tobytes()) for sample in samples])
            return {key: np.stack([sample[key] for sample in samples]) for key in ("x", "labels")}

        trainer = build(collator=collate)
        trainer.train()
        weights, history = backend.weights(trainer.model), list(trainer.state.log_history)
        RUNS[backend.name] = Undisturbed(weights, history, seen[:10], trainer.evaluate()["eval_loss"])
    return RUNS[backend.name]


@pytest.fixture
def scene(backend, plain, tmp_path, hub):
    """A Scene of a Trainer."""
    count = iter(range(10**6))

    def make(trainer, moment):
        folder = tmp_path / f"scene-{next(count)}"
        return Scene(trainer, backend, moment, folder, hub, plain.first_epoch)

    return make


def go_through(scene, trainer, moment, table):
    """Every row of the table at this moment; what went wrong, by name."""
    wrong = {}
    for row in table:
        if not row.fits(moment):
            continue
        try:
            row.run(scene(trainer, moment))
        except (Exception, pytest.fail.Exception) as error:
            wrong[row.name] = f"{type(error).__name__}: {error}"
    return wrong


def test_the_table_has_every_public_name():
    public = {name for name in dir(Trainer) if not name.startswith("_")}
    assert public - INTERNAL - APART == {row.name for row in (*TABLE, *EXPORTS)}
    methods = {name for name in public if callable(inspect.getattr_static(Trainer, name))}
    assert {"evaluate", "predict", "save_model", "create_optimizer"} <= methods  # dir() looks into the bases


@pytest.mark.parametrize("moment", NO_OPTIMIZER)
def test_before_the_first_step(build, scene, moment):
    wrong = {}
    for row in TABLE:  # a Trainer for each: none relies on what another has set up
        trainer = build() if moment == BEFORE else broken(build, moment)
        assert trainer.state.global_step == 0 and not trainer.is_in_train
        wrong |= go_through(scene, trainer, moment, [row])
    assert wrong == {}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.once_on("mindspore")
def test_in_a_callback(build, scene, event):
    wrong, was_in_train = {}, []

    def ask():
        was_in_train.append(trainer.is_in_train)
        wrong.update(go_through(scene, trainer, event, TABLE))

    callback = At(event, EVENTS[event], ask)
    trainer = build(callbacks=[callback])
    trainer.train()
    assert callback.done and was_in_train == [event != "on_train_end"]
    assert wrong == {} and trainer.state.global_step == STEPS


def test_after_train(build, scene):
    for table in (TABLE, TABLE[::-1]):
        trainer = build()
        assert not trainer.is_in_train
        trainer.train()
        assert not trainer.is_in_train
        assert go_through(scene, trainer, AFTER, table) == {}


def broken(build, moment):
    """A Trainer whose train() has failed, and the step at which it stood then."""

    def metrics(prediction):
        if trainer.is_in_train and trainer.state.global_step == 4 and trainer.breaks_in == "metrics":
            raise Broken
        return accuracy(prediction)

    def fail():
        if trainer.breaks_in == "callback":
            raise Broken

    def leave():
        if trainer.breaks_in == "signal":
            os.kill(os.getpid(), signal.SIGTERM)

    ways = ("callback", "compute_loss", "metrics", "signal", "loss", "data")
    errors = {"signal": Preempted, "loss": NonFiniteError}
    way = ways[FAILED.index(moment)]
    trainer = build(Breaks, [At("on_step_end", 3, fail), At("on_step_end", 3, leave)], metrics=metrics)
    trainer.breaks_in, handler = way, signal.getsignal(signal.SIGTERM)
    with pytest.raises(errors.get(way, Broken)):
        trainer.train()
    trainer.breaks_in = None
    assert signal.getsignal(signal.SIGTERM) is handler
    return trainer


@pytest.mark.parametrize("moment", [each for each in FAILED if each != NO_DATA])
@pytest.mark.once_on("mindspore")
def test_after_a_train_that_failed(build, scene, moment):
    trainer = broken(build, moment)
    assert trainer.state.global_step == (4 if "evaluation" in moment else 3) and not trainer.is_in_train
    assert go_through(scene, trainer, moment, TABLE) == {}


@pytest.mark.parametrize(
    ("backend", "moment"),
    [
        pytest.param(kit, *each.values, marks=each.marks, id=f"{kit.name}-{each.values[0]}")
        for i, kit in enumerate(available())
        for each in some_slow(FAILED, FAILED if i == 0 else (FAILED[0], FAILED[-1]))
    ],
)
def test_a_train_after_one_that_failed_is_a_new_run(backend, build, plain, moment):
    trainer = broken(build, moment)
    trainer.train()
    assert same_bytes(backend.weights(trainer.model), plain.weights)
    assert without_times(trainer.state.log_history) == without_times(plain.history)


def test_a_run_that_failed_has_let_go_of_its_directory_and_its_model(backend, arguments, tmp_path):
    """Another run may save there at once, and the noise of neftune is gone from the embedding."""
    fails = At("on_step_end", 2, lambda: 1 / 0)
    run = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1, "neftune_noise_alpha": 50.0}
    data, trainers = tagged([5, 4, 5, 3]), []
    for callbacks in ([fails], []):
        args = arguments(tmp_path / "shared", **run)
        trainers.append(Trainer(backend.tagger(), args, train_dataset=data, callbacks=callbacks))
    model, seen = trainers[0].model, []
    trainers[0].add_callback(At("on_step_end", 1, lambda: seen.extend(losses())))
    batch = {key: backend.tensor(np.stack([sample[key] for sample in data])) for key in data[0]}

    def losses():
        return [float(backend.numpy(trainers[0].compute_loss(model, dict(batch)))) for _ in range(2)]

    with pytest.raises(ZeroDivisionError):
        trainers[0].train()
    assert seen[0] != seen[1], "there is noise while training"
    after = losses()
    assert after[0] == after[1]
    assert trainers[1].train().global_step == 3
    assert (tmp_path / "shared" / "checkpoint-3" / "manifest.json").is_file()


def test_a_run_that_is_asked_everything_ends_with_the_same_bytes(backend, build, scene):
    """With dropout: nothing that is asked draws from the streams that training draws from."""
    quiet = [row for row in TABLE if not row.disturbs]

    def ask(event):
        for row in quiet:
            if row.fits(event) and not (row.refused and event in row.refused):
                row.call(scene(trainer, event))

    alone = build(dropout=0.4)
    callbacks = [At(event, step, lambda event=event: ask(event)) for event, step in EVENTS.items()]
    trainer = build(callbacks=callbacks, dropout=0.4)
    for each in (alone, trainer):
        each.train()
    assert all(callback.done for callback in callbacks)
    assert same_bytes(backend.weights(alone.model), backend.weights(trainer.model))
    assert same_bytes(backend.optimizer(alone), backend.optimizer(trainer))


@pytest.mark.slow
@pytest.mark.parametrize("moment", (*OUTSIDE, *EVENTS))
def test_export(build, scene, moment):
    wrong = []
    trainer = broken(build, moment) if moment in FAILED else build()
    if moment in EVENTS:
        ask = lambda: wrong.append(go_through(scene, trainer, moment, EXPORTS))  # noqa: E731
        trainer.add_callback(At(moment, EVENTS[moment], ask))
    if moment == AFTER or moment in EVENTS:
        trainer.train()
    if moment in OUTSIDE:
        wrong.append(go_through(scene, trainer, moment, EXPORTS))
    assert wrong == [{}]


@pytest.mark.parametrize("moment", some_slow(OUTSIDE, (FAILED[0],)))
def test_hyperparameter_search(backend, build, plain, moment):
    """Not within train(): it trains itself."""
    pytest.importorskip("optuna")
    trainer = broken(build, moment) if moment in FAILED else build(Breaks)
    if moment == AFTER:
        trainer.train()
    rates, losses = iter((1e-3, RUN["learning_rate"])), []

    def objective(metrics):
        losses.append(metrics["eval_loss"])
        return losses[-1]

    best = trainer.hyperparameter_search(lambda trial: {"learning_rate": next(rates)}, objective, 2, backend="optuna")
    assert len(losses) == 6 and best.objective == min(losses[2], losses[5])
    assert losses[5] == plain.loss != losses[2]
    assert trainer.args.learning_rate == RUN["learning_rate"] and trainer.hp_search_backend is None
    trainer.train()
    assert same_bytes(backend.weights(trainer.model), plain.weights)
