"""The course of a run when it is stopped, cut short, given more, or watched by callbacks."""

import json
import os
import signal

import pytest

from oneloop import EarlyStoppingCallback, Trainer, TrainerCallback
from oneloop.checkpoint import get_last_checkpoint, resume, store
from oneloop.checkpoint.reader import Checkpoint
from oneloop.distributed.preemption import Preempted
from oneloop.errors import CheckpointError
from tests.backends.support import rows, same_bytes
from tests.internals import backend_of

RUN = {"learning_rate": 0.1, "optim": "sgd", "per_device_train_batch_size": 4, "save_strategy": "steps"}


class SignalAt(TrainerCallback):
    """Sends the process a signal at a moment of its run."""

    def __init__(self, event, step):
        self.event, self.step, self.sent = event, step, False

    def _maybe(self, event, state):
        if event == self.event and state.global_step == self.step and not self.sent:
            self.sent = True
            os.kill(os.getpid(), signal.SIGTERM)

    def on_log(self, args, state, control, **kwargs):
        self._maybe("on_log", state)

    def on_prediction_step(self, args, state, control, **kwargs):
        self._maybe("on_prediction_step", state)

    def on_step_end(self, args, state, control, **kwargs):
        self._maybe("on_step_end", state)


def without_times(history):
    return [
        {key: value for key, value in entry.items() if not key.endswith(("runtime", "per_second"))} for entry in history
    ]


@pytest.mark.parametrize("event", ["on_log", "on_prediction_step", "on_step_end"])
@pytest.mark.parametrize("step", [3, 6])
@pytest.mark.once_on("mindspore")
def test_a_signal_at_any_moment_saves_and_the_resumed_run_misses_nothing(backend, trained, tmp_path, event, step):
    run = RUN | {"max_steps": 8, "save_steps": 100, "logging_steps": 3, "eval_strategy": "steps", "eval_steps": 3}
    run |= {"eval_dataset": rows(12, 1)}
    whole, left = backend.classifier(dropout=0.2), backend.classifier(dropout=0.2)
    unbroken = trained(whole, rows(16), output_dir=tmp_path / "whole", **run)
    with pytest.raises(Preempted) as raised:
        trained(left, rows(16), output_dir=tmp_path / "left", callbacks=[SignalAt(event, step)], **run)
    assert raised.value.code == 75
    assert get_last_checkpoint(tmp_path / "left") == str(tmp_path / "left" / f"checkpoint-{step}")
    resumed = trained(left, rows(16), resume=True, output_dir=tmp_path / "left", **run)
    assert same_bytes(backend.weights(whole), backend.weights(left))
    assert without_times(resumed.state.log_history) == without_times(unbroken.state.log_history)


def test_a_run_cut_short_within_an_epoch_can_be_given_more(backend, trained, tmp_path):
    run = RUN | {"save_strategy": "epoch", "lr_scheduler_type": "constant"}
    whole, longer = backend.classifier(), backend.classifier()
    trained(whole, rows(32), output_dir=tmp_path / "whole", max_steps=8, **run)
    trained(longer, rows(32), output_dir=tmp_path / "cut", max_steps=3, **run)
    trainer = trained(longer, rows(32), resume=True, output_dir=tmp_path / "cut", max_steps=8, **run)
    assert trainer.state.global_step == 8
    assert same_bytes(backend.weights(whole), backend.weights(longer))


def test_an_epoch_that_a_callback_ended_stays_ended_after_a_resume(backend, trained, tmp_path):
    class EndEarly(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_epoch_stop = state.global_step == 3

    run = RUN | {"num_train_epochs": 2, "save_steps": 1}
    whole, resumed = backend.classifier(), backend.classifier()
    first = trained(whole, rows(32), output_dir=tmp_path / "a", callbacks=[EndEarly()], **run)
    again = trained(
        resumed,
        rows(32),
        resume=str(tmp_path / "a/checkpoint-3"),
        output_dir=tmp_path / "b",
        callbacks=[EndEarly()],
        **run,
    )
    assert first.state.global_step == again.state.global_step == 11
    assert same_bytes(backend.weights(whole), backend.weights(resumed))


def test_early_stopping_starts_anew_with_a_new_run(backend, arguments):
    stopping = EarlyStoppingCallback(early_stopping_patience=1)
    args = arguments(**RUN | {"max_steps": 6, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "no"})
    trainer = Trainer(
        args=args, model_init=backend.classifier, train_dataset=rows(16), eval_dataset=rows(8, 1), callbacks=[stopping]
    )
    assert trainer.train().global_step == trainer.train().global_step


def test_last_checkpoint_passes_over_a_torn_one(backend, trained, tmp_path):
    trained(backend.classifier(), rows(16), output_dir=tmp_path, max_steps=4, save_steps=2, **RUN)
    newest = tmp_path / "checkpoint-4"
    (newest / "model.safetensors").write_bytes(b"torn")
    assert store.problems(newest)
    assert get_last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")


def test_a_checkpoint_of_another_framework_is_named_as_such(backend, arguments, trained, tmp_path, monkeypatch):
    trained(backend.classifier(), rows(16), output_dir=tmp_path, max_steps=2, save_steps=2, **RUN)
    trainer = Trainer(backend.classifier(), arguments(output_dir=tmp_path), train_dataset=rows(16))
    run = tmp_path / "checkpoint-2" / "run.json"
    data = json.loads(run.read_text())
    del data["layout"]  # as releases wrote it from which nothing could cross
    run.write_text(json.dumps(data))
    other = "torch" if backend.name == "paddle" else "paddle"
    monkeypatch.setattr(backend_of(trainer), "NAME", other)
    own = trainer._oneloop.run
    own.plan = own._plan_steps(None)
    with pytest.raises(CheckpointError, match=f"a run on {backend.name} before .* a model of {other}"):
        resume.load_run(own, Checkpoint(tmp_path / "checkpoint-2"))


def test_a_checkpoint_of_more_processes_keeps_its_samples_per_update(backend, trained, tmp_path, caplog):
    import json

    run = RUN | {"max_steps": 4, "save_steps": 2, "lr_scheduler_type": "constant"}
    whole, moved = backend.classifier(), backend.classifier()
    trained(whole, rows(64), output_dir=tmp_path / "a", gradient_accumulation_steps=2, **run)
    source = tmp_path / "a" / "checkpoint-2"
    # What two processes with one micro-batch each would have written.
    data = json.loads((source / "run.json").read_text())
    data["course"] |= {"processes": 2, "accumulation": 1}
    (source / "run.json").write_text(json.dumps(data))
    stage = store.open_stage(tmp_path / "b", 2)
    for file in source.iterdir():
        if file.name != store.MANIFEST:
            (stage / file.name).write_bytes(file.read_bytes())
    store.commit(stage, 2, "moved", "save", {})
    trained(moved, rows(64), resume=True, output_dir=tmp_path / "b", **run)
    assert "written by 2 process(es), this run has 1" in caplog.text
    assert same_bytes(backend.weights(whole), backend.weights(moved))
    with pytest.raises(CheckpointError, match="to 1, 2, 4, 8"):
        trained(
            backend.classifier(),
            rows(64),
            resume=str(tmp_path / "b" / "checkpoint-2"),
            output_dir=tmp_path / "c",
            **run | {"per_device_train_batch_size": 3},
        )


def test_layers_that_are_thawed_later_train_cleanly(backend, trained):
    """Gradients of a layer that a callback unfreezes are cleared and clipped like all others."""

    class Thaw(TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, **kwargs):
            weights[state.global_step] = backend.weights(model)
            if state.global_step == 2:
                backend.freeze(model.head, False)

    model, weights = backend.classifier(), {}
    backend.freeze(model.head)
    trained(model, rows(16), callbacks=[Thaw()], optimizers=(backend.sgd(model), None), max_steps=4, **RUN)
    assert not backend.has_gradients(model)
    weights[4] = backend.weights(model)
    assert same_bytes({"head": weights[0]["head.weight"]}, {"head": weights[2]["head.weight"]})
    assert not same_bytes({"head": weights[2]["head.weight"]}, {"head": weights[4]["head.weight"]})
