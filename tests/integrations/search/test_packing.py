"""A Trainer that is sent to another process, as a search on Ray does it; here without Ray."""

import threading

import pytest

from oneloop import Trainer, TrainerCallback, TrainerState
from oneloop.errors import ArgumentError
from oneloop.integrations.search.trainer_pickle import pack, unpack
from tests.backends.support import rows, same_bytes

cloudpickle = pytest.importorskip("cloudpickle")

RUN = {"max_steps": 4, "per_device_train_batch_size": 4, "learning_rate": 0.05, "logging_steps": 1}
SAVES = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}


class Counts(TrainerCallback):
    steps = 0

    def on_step_end(self, args, state, control, **kwargs):
        self.steps += 1


class Mine(Trainer):
    """With a constructor, an attribute and a loss of its own; fails when it is told to."""

    def __init__(self, factor, **given):
        self.factor, self.fails = factor, False
        super().__init__(**given)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        if self.fails and self.state.global_step == 2:
            raise KeyError("a broken loss")
        found = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        return (found[0] * self.factor, found[1]) if return_outputs else found * self.factor


@pytest.fixture
def build(backend, arguments, tmp_path):
    made = []

    def make(**given):
        made.append(tmp_path / f"run-{len(made)}")
        return Mine(
            3.0,
            args=arguments(made[-1], **RUN | SAVES | given),
            model_init=lambda: backend.classifier(dropout=0.3),
            train_dataset=rows(16),
            eval_dataset=rows(6, 1),
            compute_metrics=lambda prediction: {"rows": len(prediction.label_ids)},
            callbacks=[Counts()],
        )

    return make


def sent(trainer):
    """The Trainer as another process has it, and how many bytes travelled."""
    packed = cloudpickle.dumps(pack(trainer, cloudpickle.dumps))
    return unpack(cloudpickle.loads(packed)), len(packed)


def without_times(history):
    timed = ("runtime", "per_second")
    return [{key: value for key, value in entry.items() if not key.endswith(timed)} for entry in history]


def nothing(trainer):
    pass


def trained(trainer):
    trainer.train()


def evaluated(trainer):
    trainer.evaluate()


def failed(trainer):
    trainer.fails = True
    with pytest.raises(KeyError, match="a broken loss"):
        trainer.train()
    trainer.fails = False


@pytest.mark.parametrize("before", [nothing, evaluated, trained, failed])
@pytest.mark.once_on("mindspore")
def test_a_trainer_that_was_sent_trains_to_the_same_weights(backend, build, tmp_path, before):
    alone, trainer = build(), build()
    alone.train()
    before(trainer)
    there, _ = sent(trainer)
    assert there.model is None and there.optimizer is None and there.state == TrainerState()
    assert not there.is_in_train and type(there) is Mine and there.factor == 3.0
    there.args.output_dir = str(tmp_path / "there")
    output = there.train()
    assert output.global_step == 4
    assert same_bytes(backend.weights(alone.model), backend.weights(there.model))
    assert same_bytes(backend.optimizer(alone), backend.optimizer(there))
    assert without_times(there.state.log_history) == without_times(alone.state.log_history)
    assert (tmp_path / "there" / "checkpoint-4" / "manifest.json").is_file()
    assert (tmp_path / "there" / "log.jsonl").is_file() and (tmp_path / "there" / "run.jsonl").is_file()
    counts = {"trained": 8, "failed": 6}.get(before.__name__, 4)
    assert there.pop_callback(Counts).steps == counts, "a callback is sent with what it has counted"
    assert there.evaluate()["eval_rows"] == 6 and len(there.predict(rows(5)).predictions) == 5
    trainer.train()  # the one that stayed is none the worse for it
    assert same_bytes(backend.weights(alone.model), backend.weights(trainer.model))


def test_a_run_leaves_nothing_that_is_sent_along(build):
    trainer = build()
    _, before = sent(trainer)
    trainer.train()
    _, after = sent(trainer)
    assert after < before + 2000, "weights, logs or batches of the run travel with the Trainer"


def test_a_trainer_can_be_sent_on(backend, build):
    alone, trainer = build(), build()
    alone.train()
    there, _ = sent(trainer)
    there.train()
    further, _ = sent(there)
    further.train()
    assert same_bytes(backend.weights(alone.model), backend.weights(further.model))


def test_what_cannot_be_sent_is_named(build):
    trainer = build()
    trainer.guard = threading.Lock()
    with pytest.raises(ArgumentError, match=r"guard \(lock\) cannot be sent"):
        pack(trainer, cloudpickle.dumps)
