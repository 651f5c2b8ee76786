"""A Trainer whose train() is called again: what begins anew, what stays, and that changes made between are heeded."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from oneloop import Trainer, TrainerCallback, TrainerControl, TrainerState
from tests.backends.support import available, rows, same_bytes

RUN = {
    "max_steps": 6,
    "per_device_train_batch_size": 4,
    "learning_rate": 0.05,
    "logging_steps": 2,
    "save_strategy": "steps",
    "save_steps": 2,
    "save_async": False,
}
TRAIN, EVAL = rows(16), rows(6, 1)


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def without_times(history):
    timed = ("runtime", "per_second")
    return [{key: value for key, value in entry.items() if not key.endswith(timed)} for entry in history]


def run_ids(trainer):
    """Of the checkpoints in the output directory, by step."""
    folder = Path(trainer.args.output_dir)
    manifests = [json.loads(path.read_text()) for path in folder.glob("checkpoint-*/manifest.json")]
    return {manifest["step"]: manifest["run_id"] for manifest in manifests}


@pytest.fixture
def initialised(backend, arguments, tmp_path):
    """A Trainer with its model from model_init, with dropout, in a directory of its own."""
    made = []

    def make(**given):
        own = {key: given.pop(key) for key in ("callbacks", "compute_metrics") if key in given}
        made.append(tmp_path / f"run-{len(made)}")
        args = arguments(made[-1], **RUN | given)
        model_init = lambda: backend.classifier(dropout=0.3)  # noqa: E731
        return Trainer(args=args, model_init=model_init, train_dataset=TRAIN, eval_dataset=EVAL, **own)

    return make


# -- what is there before and after


def is_new(state):
    """As a Trainer has it before train(): nothing but the states of its callbacks."""
    return (
        list(state.stateful_callbacks) == ["TrainerControl"] and replace(state, stateful_callbacks={}) == TrainerState()
    )


def test_what_a_trainer_has_before_and_after(backend, initialised):
    trainer = initialised()
    assert trainer.optimizer is None and trainer.lr_scheduler is None and trainer.is_in_train is False
    assert is_new(trainer.state) and trainer.control == TrainerControl()
    assert trainer.model is trainer.model_wrapped
    seen = []

    class Looks(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, optimizer=None, lr_scheduler=None, **kwargs):
            same = state is trainer.state and control is trainer.control and args is trainer.args
            same = same and model is trainer.model and optimizer is trainer.optimizer
            seen.append((same and lr_scheduler is trainer.lr_scheduler, trainer.is_in_train))

    first = trainer.model
    trainer.add_callback(Looks())
    output = trainer.train()
    assert seen == [(True, True)] * 6
    assert trainer.optimizer is not None and trainer.lr_scheduler is not None and trainer.is_in_train is False
    assert trainer.model is not first, "model_init makes a model for each train()"
    assert output.global_step == trainer.state.global_step == trainer.state.max_steps == 6
    assert output.training_loss == trainer.state.log_history[-1]["train_loss"]
    assert trainer.state.epoch == 1.5 and trainer.state.train_batch_size == 4
    assert trainer.control == TrainerControl(should_training_stop=True), "it has reached its last step"


def test_nothing_needs_train(backend, arguments, tmp_path):
    """A Trainer that only evaluates, predicts, logs and saves."""
    trainer = Trainer(backend.classifier(), arguments(), eval_dataset=EVAL, compute_metrics=accuracy)
    before = backend.weights(trainer.model)
    metrics, prediction = trainer.evaluate(), trainer.predict(EVAL)
    assert metrics["eval_accuracy"] == prediction.metrics["test_accuracy"] == accuracy(prediction)["accuracy"]
    assert metrics["eval_loss"] == prediction.metrics["test_loss"]
    trainer.log({"fact": 1.0})
    trainer.save_model()
    trainer.save_state()
    folder = tmp_path / "out"
    assert {"model.safetensors", "training_args.json", "trainer_state.json", "log.jsonl"} <= {
        path.name for path in folder.iterdir()
    }
    stored = TrainerState.load_from_json(folder / "trainer_state.json")
    assert stored == trainer.state and stored.global_step == 0
    assert without_times(stored.log_history) == [
        {"eval_loss": metrics["eval_loss"], "eval_accuracy": metrics["eval_accuracy"], "step": 0},
        {"fact": 1.0, "step": 0},
    ]
    assert same_bytes(before, backend.weights(trainer.model))
    assert trainer.optimizer is None and trainer.is_in_train is False


def test_an_evaluation_before_train_changes_nothing_in_it(backend, initialised):
    plain, trainer = initialised(), initialised()
    plain.train()
    trainer.evaluate()
    trainer.predict(EVAL)
    trainer.save_model()
    trainer.train()
    assert same_bytes(backend.weights(plain.model), backend.weights(trainer.model))
    assert without_times(trainer.state.log_history) == without_times(plain.state.log_history)


# -- train() again


def test_a_second_train_is_a_run_of_its_own(backend, initialised):
    fresh, trainer = initialised(), initialised()
    fresh.train()
    trainer.train()
    first = trainer.state, trainer.optimizer, trainer.lr_scheduler, run_ids(trainer)
    trainer.train()
    assert same_bytes(backend.weights(fresh.model), backend.weights(trainer.model))
    assert same_bytes(backend.optimizer(fresh), backend.optimizer(trainer))
    for before, now in zip(first, (trainer.state, trainer.optimizer, trainer.lr_scheduler)):
        assert before is not now
    assert without_times(trainer.state.log_history) == without_times(fresh.state.log_history)
    assert trainer.state.total_flos == fresh.state.total_flos
    (before,), (now,) = set(first[3].values()), set(run_ids(trainer).values())
    assert before != now and first[3].keys() == run_ids(trainer).keys() == {2, 4, 6}


def test_a_third_train_goes_on_from_a_checkpoint(backend, initialised):
    trainer = initialised()
    trainer.train()
    trainer.train()
    weights, history, ids = backend.weights(trainer.model), trainer.state.log_history, run_ids(trainer)
    trainer.train(resume_from_checkpoint=str(Path(trainer.args.output_dir) / "checkpoint-4"))
    assert same_bytes(weights, backend.weights(trainer.model))
    assert without_times(trainer.state.log_history)[:-1] == without_times(history)[:-1]
    now = run_ids(trainer)
    assert now[2] == ids[2] and now[4] == ids[4], "they are the second run's"
    assert now[6] != ids[6], "which was further, so this is a branch with an id of its own"
    trainer.train()  # and the next one begins anew
    assert same_bytes(weights, backend.weights(trainer.model))
    assert len(set(run_ids(trainer).values())) == 1 and trainer.state.global_step == 6


def test_a_second_train_of_one_model_goes_on_with_its_weights(backend, arguments, tmp_path):
    """Without model_init: the weights stay, and the optimizer, the schedule and the state are new."""
    once, twice = backend.classifier(), backend.classifier()
    given = {"train_dataset": TRAIN}
    Trainer(once, arguments(tmp_path / "a", **RUN), **given).train()
    fresh = Trainer(once, arguments(tmp_path / "b", **RUN), **given)
    trainer = Trainer(twice, arguments(tmp_path / "c", **RUN), **given)
    trainer.train()
    for each in (fresh, trainer):
        each.train()
    assert same_bytes(backend.weights(once), backend.weights(twice))
    assert without_times(trainer.state.log_history) == without_times(fresh.state.log_history)


def test_a_given_optimizer_is_the_one_of_every_run(backend, arguments):
    model = backend.classifier()
    optimizer = backend.sgd(model)
    trainer = Trainer(model, arguments(**RUN), train_dataset=TRAIN, optimizers=(optimizer, None))
    assert trainer.optimizer is optimizer and trainer.lr_scheduler is None
    trainer.train()
    schedule = trainer.lr_scheduler
    assert trainer.optimizer is optimizer and schedule is not None
    trainer.train()
    assert trainer.optimizer is optimizer and trainer.lr_scheduler is not schedule


def test_a_failed_resume_leaves_a_trainer_that_trains(backend, initialised):
    fresh, trainer = initialised(), initialised()
    fresh.train()
    with pytest.raises(ValueError, match="is not a directory"):
        trainer.train(resume_from_checkpoint="nowhere")
    assert not trainer.is_in_train and is_new(trainer.state)
    trainer.train()
    assert same_bytes(backend.weights(fresh.model), backend.weights(trainer.model))


@pytest.mark.parametrize("event", ["on_step_end", "on_log", "on_epoch_end", "on_save", "on_substep_end"])
def test_evaluating_in_a_callback_leaves_the_training_alone(backend, initialised, event):
    """The model has dropout; an evaluation draws no random number."""
    losses = []

    class Evaluates(TrainerCallback):
        busy = False

    def evaluate(self, args, state, control, model=None, **kwargs):
        if not self.busy:  # evaluate() logs as well
            self.busy = True
            losses.append(trainer.evaluate()["eval_loss"])
            assert not model.training, "until training goes on"
            self.busy = False

    setattr(Evaluates, event, evaluate)
    more = {"gradient_accumulation_steps": 2} if event == "on_substep_end" else {}
    plain, trainer = initialised(**more), initialised(callbacks=[Evaluates()], **more)
    outputs = [plain.train(), trainer.train()]
    assert len(losses) >= 2 and len(set(losses)) >= 2, "the weights move between them"
    assert same_bytes(backend.weights(plain.model), backend.weights(trainer.model))
    assert same_bytes(backend.optimizer(plain), backend.optimizer(trainer))
    assert outputs[0].training_loss == outputs[1].training_loss


# -- changes between two runs


def doubled(samples):
    return {
        "x": np.stack([2 * sample["x"] for sample in samples]),
        "labels": np.array([sample["labels"] for sample in samples]),
    }


def set_argument(name, value):
    def change(backend, trainer):
        setattr(trainer.args, name, value)

    return change


def set_attribute(name, value):
    def change(backend, trainer):
        setattr(trainer, name, value)

    return change


def freeze(backend, trainer):
    backend.freeze(trainer.model.hidden)


# What is changed on the Trainer, and the Trainer as it would have been built.
CHANGES = {
    "learning_rate": (set_argument("learning_rate", 0.01), {"learning_rate": 0.01}),
    "max_steps": (set_argument("max_steps", 3), {"max_steps": 3}),
    "batch size": (set_argument("per_device_train_batch_size", 2), {"per_device_train_batch_size": 2}),
    "accumulation": (set_argument("gradient_accumulation_steps", 2), {"gradient_accumulation_steps": 2}),
    "weight_decay": (set_argument("weight_decay", 0.5), {"weight_decay": 0.5}),
    "schedule": (set_argument("lr_scheduler_type", "cosine"), {"lr_scheduler_type": "cosine"}),
    "optim": (set_argument("optim", "sgd"), {"optim": "sgd"}),
    "seed of the data": (set_argument("data_seed", 7), {"data_seed": 7}),
    "max_grad_norm": (set_argument("max_grad_norm", 0.01), {"max_grad_norm": 0.01}),
    "smoothing": (set_argument("label_smoothing_factor", 0.3), {"label_smoothing_factor": 0.3}),
    "logging_steps": (set_argument("logging_steps", 1), {"logging_steps": 1}),
    "save_steps": (set_argument("save_steps", 3), {"save_steps": 3}),
    "evaluations": (set_argument("eval_strategy", "epoch"), {"eval_strategy": "epoch"}),
    "train_dataset": (set_attribute("train_dataset", rows(16, 5)), {"train_dataset": rows(16, 5)}),
    "data_collator": (set_attribute("data_collator", doubled), {"data_collator": doubled}),
    "requires_grad": (freeze, {"frozen": True}),
}


EVERYWHERE = ("learning_rate", "accumulation", "train_dataset", "requires_grad")  # the others are slow on all but one


@pytest.mark.parametrize(
    ("backend", "change"),
    [
        pytest.param(
            kit, change, id=f"{kit.name}-{change}", marks=[] if i == 0 or change in EVERYWHERE else pytest.mark.slow
        )
        for i, kit in enumerate(available())
        for change in CHANGES
    ],
)
def test_what_is_changed_between_two_runs_is_heeded(backend, arguments, tmp_path, change):
    apply, given = CHANGES[change]
    own = {key: given[key] for key in given if key in ("train_dataset", "data_collator")}
    given = {key: value for key, value in given.items() if key not in (*own, "frozen")}
    base = {"train_dataset": TRAIN, "eval_dataset": EVAL}
    run = RUN | {"max_steps": 4}
    trainer = Trainer(backend.classifier(), arguments(tmp_path / "changed", **run), **base)
    other = Trainer(backend.classifier(), arguments(tmp_path / "first", **run), **base)
    for each in (trainer, other):
        each.train()
    first = backend.weights(trainer.model)
    apply(backend, trainer)
    if change == "requires_grad":
        freeze(backend, other)
    fresh = Trainer(other.model, arguments(tmp_path / "second", **run | given), **base | own)
    for each in (trainer, fresh):
        each.train()
    assert same_bytes(backend.weights(fresh.model), backend.weights(trainer.model))
    assert same_bytes(backend.optimizer(fresh), backend.optimizer(trainer))
    assert without_times(trainer.state.log_history) == without_times(fresh.state.log_history)
    assert run_ids(fresh).keys() <= run_ids(trainer).keys()
    moved = [name for name, value in backend.weights(trainer.model).items() if (value != first[name]).any()]
    assert {name.split(".")[0] for name in moved} == ({"head"} if change == "requires_grad" else {"hidden", "head"})


def test_metrics_and_evaluation_sets_given_between(backend, initialised):
    trainer = initialised(eval_strategy="steps", eval_steps=3)
    trainer.train()
    assert not any("eval_accuracy" in entry for entry in trainer.state.log_history)
    trainer.compute_metrics, trainer.eval_dataset = accuracy, {"a": EVAL[:3], "b": EVAL[3:]}
    trainer.train()
    found = [entry for entry in trainer.state.log_history if "eval_a_accuracy" in entry]
    assert [entry["step"] for entry in found] == [3, 6]
    parts = {name: accuracy(trainer.predict(part))["accuracy"] for name, part in trainer.eval_dataset.items()}
    assert found[-1]["eval_a_accuracy"] == parts["a"]
    last = [entry for entry in trainer.state.log_history if "eval_b_accuracy" in entry][-1]
    assert last["eval_b_accuracy"] == parts["b"] and last["step"] == 6


def test_a_loss_given_between(backend, arguments, tmp_path):
    def loss(outputs, labels, num_items_in_batch=None):
        return backend.cross_entropy(outputs["logits"], labels) * 3

    trainers = [
        Trainer(backend.classifier(), arguments(tmp_path / name, **RUN | {"optim": "sgd"}), train_dataset=TRAIN)
        for name in ("changed", "first")
    ]
    for each in trainers:
        each.train()
    trainers[0].compute_loss_func = loss
    args = arguments(tmp_path / "second", **RUN | {"optim": "sgd"})
    fresh = Trainer(trainers[1].model, args, train_dataset=TRAIN, compute_loss_func=loss)
    for each in (trainers[0], fresh):
        each.train()
    assert same_bytes(backend.weights(fresh.model), backend.weights(trainers[0].model))
    assert fresh.state.log_history[0]["loss"] == trainers[0].state.log_history[0]["loss"]


def test_callbacks_added_and_removed_between(backend, initialised):
    class Counts(TrainerCallback):
        steps = 0

        def on_step_end(self, args, state, control, **kwargs):
            self.steps += 1

    first, second = Counts(), Counts()
    trainer = initialised(callbacks=[first])
    trainer.train()
    trainer.add_callback(second)
    trainer.train()
    assert trainer.pop_callback(first) is first
    trainer.train()
    assert (first.steps, second.steps) == (12, 12)


def test_an_output_directory_given_between(backend, initialised, tmp_path):
    trainer = initialised()
    trainer.train()
    trainer.args.output_dir = str(tmp_path / "elsewhere")
    trainer.train()
    assert sorted(run_ids(trainer)) == [2, 4, 6]
    lines = [json.loads(line) for line in (tmp_path / "elsewhere" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4, 6, 6]
    assert {line["run"] for line in lines} == set(run_ids(trainer).values())


def test_a_model_that_is_assigned_is_the_one_that_is_trained(backend, arguments):
    """After a first run, and before the first one: as SetFit does for each trial of a search."""
    data, weights = rows(16), []
    args = {"per_device_train_batch_size": 4, "max_steps": 4, "learning_rate": 0.1, "optim": "sgd"}
    first, second = backend.classifier(), backend.classifier(seed=1)
    trainer = Trainer(first, arguments(**args), train_dataset=data, eval_dataset=data)
    trainer.train()
    after_first = backend.weights(first)
    trainer.model = second
    trainer.train()
    assert trainer.callback_handler.model is trainer.model_wrapped is trainer.model is second
    assert same_bytes(backend.weights(first), after_first), "the first one is left alone"
    weights.append(backend.weights(second))
    for assigned in (True, False):
        model = backend.classifier(seed=1)
        trainer = Trainer(backend.classifier() if assigned else model, arguments(**args), train_dataset=data)
        trainer.model = model
        trainer.train()
        weights.append(backend.weights(model))
    assert same_bytes(weights[0], weights[1]) and same_bytes(weights[1], weights[2])
