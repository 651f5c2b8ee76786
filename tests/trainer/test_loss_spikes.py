"""Loss spikes: a step far outside the running distribution is reported, or the run returns to the last checkpoint."""

import json
import math
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from oneloop import Trainer, TrainerCallback, TrainingArguments
from oneloop.data.order import Order
from oneloop.distributed.mesh import Mesh
from oneloop.errors import ArgumentError, CheckpointError, DataError, LossSpikeError, UnsupportedError
from oneloop.report import summary
from oneloop.report.log_reader import Directory
from oneloop.trainer.loss_spikes import READ_EVERY, Rollback, RunningRange, Spike, SpikeGuard
from tests.backends.support import rows, same_bytes
from tests.internals import backend_of, part_of

BATCH, SAMPLES, BAD = 4, 96, 17  # 24 steps; the bad one
GUARD = {"loss_spike": "rollback", "loss_spike_window": 8, "save_strategy": "steps", "save_steps": 5}
RUN = {"learning_rate": 0.05, "per_device_train_batch_size": BATCH, "max_steps": 24, "logging_steps": 1}
RUN |= {"optim": "adamw_torch"}


def samples_of(step):
    return Order(SAMPLES, 42, 0)[(step - 1) * BATCH : step * BATCH].tolist()


def planted(*steps, by=1e4):
    """Data whose samples of these steps (from 1) are far too large."""
    data = rows(SAMPLES)
    for index in (each for step in steps for each in samples_of(step)):
        data[index]["x"] = np.asarray(data[index]["x"]) * np.float32(by)
    return data


def events(folder, *kinds):
    found = [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]
    return [event for event in found if event["event"] in kinds]


def stored(folder, step, name="run.json"):
    return json.loads((folder / f"checkpoint-{step}" / name).read_text())


def shown(folder):
    """What the report page lists."""
    directory = Directory(folder)
    directory.read_new()
    return [(event["kind"], event["text"]) for event in summary.events(directory)]


def logged(trainer):
    return [entry["step"] for entry in trainer.state.log_history if "loss" in entry]


class At(TrainerCallback):
    """Calls functions at the end of steps; how often a run has begun, and with which step."""

    def __init__(self, **actions):
        self.actions, self.began = actions, []

    def on_train_begin(self, args, state, control, **kwargs):
        self.began.append(state.global_step)

    def on_step_end(self, args, state, control, **kwargs):
        action = self.actions.get(f"step{state.global_step}")
        if action is not None:
            action(control, len(self.began))


# -- the running distribution


def test_the_limit_is_the_median_and_robust_deviations_above_it():
    known = RunningRange(window=8, threshold=10.0)
    for value in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0):
        known.add(value)
        assert known.limit == math.inf, "the window is not full"
    known.add(100.0)
    assert known.median == 4.5 and known.limit == 4.5 + 10 * (7.0 - 4.5) / 0.6745
    known.add(8.0)  # the first one leaves
    assert list(known.recent) == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 100.0, 8.0]
    assert known.median == 5.5 and known.limit == 5.5 + 10 * (8.0 - 5.5) / 0.6745


def test_values_that_hardly_differ_have_a_limit_all_the_same():
    known, zeros = RunningRange(8, 10.0), RunningRange(8, 10.0)
    for _ in range(8):
        known.add(2.0)
        zeros.add(0.0)
    assert known.limit == 2.0 + 10 * 0.02 and zeros.limit == math.inf


# -- rollback


def test_rollback_leaves_the_samples_out(backend, trained, tmp_path, caplog):
    """As nonfinite="skip" does with a sample that is NaN: the weights are those without the step, to the last bit."""
    at = At()
    trainer = trained(backend.classifier(), planted(BAD), callbacks=[at], **RUN | GUARD)
    skipped = {"nonfinite": "skip", "output_dir": str(tmp_path / "skipped")}
    expected = trained(backend.classifier(), planted(BAD, by=math.nan), **RUN | skipped)
    assert same_bytes(backend.weights(trainer.model), backend.weights(expected.model))
    assert trainer.state.global_step == 24 and at.began == [0, 15]
    assert logged(trainer) == [step for step in range(1, 25) if step != BAD]
    assert max(entry["loss"] for entry in trainer.state.log_history if "loss" in entry) < 3
    metrics = trainer.result.metrics  # of all steps, not of those since the checkpoint
    assert metrics["train_steps_per_second"] * metrics["train_runtime"] == pytest.approx(24, rel=0.01)
    (found,) = events(tmp_path / "out", "rolled_back")
    assert (found["step"], found["of"], found["to"]) == (BAD, "loss", "checkpoint-15")
    assert found["left_out"] == [BAD, BAD] and found["positions"] == [0, 64, 68]
    assert found["samples"] == str(samples_of(BAD)) and found["value"] > 3 * found["limit"] > 3 * found["median"]
    losses = {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
    assert found["median"] == pytest.approx(np.median([losses[step] for step in range(BAD - 8, BAD)]), rel=1e-6)
    assert [event["step"] for event in events(tmp_path / "out", "started", "resumed", "ended")] == [0, 15, 24]
    steps = [json.loads(line)["step"] for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert steps == [entry["step"] for entry in trainer.state.log_history]
    (record,) = stored(tmp_path / "out", 20)["spikes"]["rollbacks"]
    assert record["steps"] == [BAD, BAD] and record["positions"] == [0, 64, 68] and record["checkpoint"] == 15
    (text,) = [r.getMessage() for r in caplog.records if "far above" in r.getMessage()]
    assert f"step {BAD}: the loss is" in text and "Returning to" in text and str(samples_of(BAD)) in text
    listed = [each for each in shown(tmp_path / "out") if each[0] != "save_waited"]
    assert [kind for kind, _ in listed] == ["started", "rolled_back", "resumed", "ended"]
    assert "to checkpoint-15; skipped: step 17 (epoch 0, positions 64 to 67); samples" in listed[1][1]


def test_a_run_that_leaves_them_out_from_the_beginning(backend, trained, tmp_path, monkeypatch):
    """With dropout, an average of the weights, accumulation and values that are read late."""
    given = RUN | GUARD | {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2, "ema_decay": 0.9}
    given |= {"logging_steps": 24}
    rolled_back = trained(backend.classifier(dropout=0.5), planted(BAD), **given)
    assert [event["to"] for event in events(tmp_path / "out", "rolled_back")] == ["checkpoint-15"]
    monkeypatch.setattr(SpikeGuard, "plan_ready", lambda self: setattr(self, "skipped_steps", {BAD}))
    expected = trained(backend.classifier(dropout=0.5), planted(BAD), output_dir=str(tmp_path / "expected"), **given)
    assert events(tmp_path / "expected", "rolled_back") == []
    assert same_bytes(backend.weights(rolled_back.model), backend.weights(expected.model))
    for name in ("optimizer.safetensors", "average.safetensors", "random.safetensors"):
        files = [tmp_path / run / "checkpoint-24" / name for run in ("out", "expected")]
        assert files[0].read_bytes() == files[1].read_bytes(), name
    assert rolled_back.state.log_history[0]["loss"] == expected.state.log_history[0]["loss"]
    for run in ("out", "expected"):
        assert stored(tmp_path / run, 24)["average"]["count"] == 24, "a step without an update is a step of the average"
        points = [json.loads(line)["step"] for line in (tmp_path / run / "curve.jsonl").read_text().splitlines()]
        assert points == [step for step in range(1, 25) if step != BAD]


@pytest.mark.once_on("mindspore", "paddle")
@pytest.mark.parametrize("step", [15, 20, 16])
def test_resuming_a_run_that_was_rolled_back(backend, trained, tmp_path, step):
    """From before the spike, from between (the checkpoint names the step to leave out), and from behind it."""
    at = At(step16=lambda control, runs: setattr(control, "should_save", runs > 1))
    whole = trained(backend.classifier(dropout=0.5), planted(BAD), callbacks=[at], **RUN | GUARD)
    assert at.began == [0, 15]
    other = {"resume": str(tmp_path / "out" / f"checkpoint-{step}"), "output_dir": str(tmp_path / "resumed")}
    at = At()
    resumed = trained(backend.classifier(dropout=0.5), planted(BAD), callbacks=[at], **RUN | GUARD | other)
    assert at.began == [step] if step > 15 else [15, 15]
    assert same_bytes(backend.weights(whole.model), backend.weights(resumed.model))
    assert logged(whole) == logged(resumed)


@pytest.mark.rare_on("mindspore", "paddle")
def test_with_model_init_and_another_number_of_samples_afterwards(backend, arguments, trained, tmp_path, caplog):
    """The model is made anew; a run of other batches does not leave out steps that are other samples now."""
    at = At(step16=lambda control, runs: setattr(control, "should_save", runs > 1))
    given = {"train_dataset": planted(BAD), "model_init": backend.classifier, "callbacks": [at]}
    made = Trainer(args=arguments(**RUN | GUARD), **given)
    made.train()
    plain = trained(backend.classifier(), planted(BAD), **RUN | GUARD | {"output_dir": str(tmp_path / "plain")})
    assert at.began == [0, 15] and same_bytes(backend.weights(made.model), backend.weights(plain.model))
    resume = {"resume": str(tmp_path / "out" / "checkpoint-16"), "output_dir": str(tmp_path / "other")}
    other = RUN | GUARD | {"loss_spike": "off", "per_device_train_batch_size": 2, "max_steps": 18} | resume
    trainer = trained(backend.classifier(), planted(BAD), **other)
    assert logged(trainer) == list(range(1, 19)) and "they are not skipped" in caplog.text


@pytest.mark.rare_on("mindspore", "paddle")
def test_a_run_without_it_goes_on_to_name_the_steps_left_out(backend, trained, tmp_path):
    """It looks at no loss of its own."""
    at = At(step16=lambda control, runs: setattr(control, "should_save", runs > 1))
    trained(backend.classifier(), planted(BAD), callbacks=[at], **RUN | GUARD)
    before = stored(tmp_path / "out", 16)["spikes"]
    off = {"loss_spike": "off", "resume": str(tmp_path / "out" / "checkpoint-16"), "output_dir": str(tmp_path / "off")}
    trainer = trained(backend.classifier(), planted(BAD), **RUN | GUARD | off)
    assert BAD not in logged(trainer)
    after = stored(tmp_path / "off", 20)["spikes"]
    assert after["rollbacks"] == before["rollbacks"] != [] and after["recent"] == before["recent"]


@pytest.mark.rare_on("mindspore", "paddle")
def test_two_spikes_and_several_steps_left_out(backend, trained, tmp_path):
    trainer = trained(
        backend.classifier(), planted(12, BAD), loss_spike_skip_steps=4, loss_spike_limit=1, **RUN | GUARD
    )
    found = events(tmp_path / "out", "rolled_back")
    assert [(event["to"], event["left_out"], event["positions"]) for event in found] == [
        ("checkpoint-10", [11, 12], [0, 40, 48]),  # no step before the checkpoint
        ("checkpoint-15", [16, 17], [0, 60, 68]),
    ]
    assert logged(trainer) == [step for step in range(1, 25) if step not in (11, 12, 16, 17)]
    assert [each["steps"] for each in stored(tmp_path / "out", 24)["spikes"]["rollbacks"]] == [[11, 12], [16, 17]]


def test_a_spike_of_the_gradient_norm(backend, trained, tmp_path):
    class Steep(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss = super().compute_loss(model, inputs)
            if self.state.global_step + 1 == BAD:
                loss = loss + 1e4 * (loss - backend_of(self).tensors.detach(loss))
            return loss

    trainer = trained(backend.classifier(), rows(SAMPLES), Steep, **RUN | GUARD)
    (found,) = events(tmp_path / "out", "rolled_back")
    assert (found["of"], found["step"]) == ("grad_norm", BAD) and BAD not in logged(trainer)


@pytest.mark.rare_on("mindspore", "paddle")
def test_spikes_that_go_on_stop_the_run(backend, trained, tmp_path):
    with pytest.raises(LossSpikeError, match="has returned to .*checkpoint-15 2 times before") as error:
        trained(backend.classifier(), planted(17, 18, 19), loss_spike_limit=2, **RUN | GUARD)
    assert "step 19: the loss" in str(error.value) and str(samples_of(19)) in str(error.value)
    assert [event["left_out"] for event in events(tmp_path / "out", "rolled_back")] == [[17, 17], [18, 18]]
    (failed,) = events(tmp_path / "out", "failed")
    assert failed["error"] == "LossSpikeError"


@pytest.mark.rare_on("mindspore", "paddle")
def test_without_a_checkpoint_training_continues(backend, trained, tmp_path, caplog):
    trainer = trained(backend.classifier(), planted(BAD), **RUN | GUARD | {"save_steps": 20})
    (found,) = events(tmp_path / "out", "loss_spike")
    assert found["step"] == BAD and found["samples"] == str(samples_of(BAD)) and BAD in logged(trainer)
    assert "there is no complete checkpoint to return to" in caplog.text
    (text,) = [text for kind, text in shown(tmp_path / "out") if kind == "loss_spike"]
    assert text.endswith(f"samples {samples_of(BAD)}")


@pytest.mark.rare_on("mindspore", "paddle")
def test_a_damaged_checkpoint_is_not_returned_to(backend, trained, tmp_path, caplog):
    damage = At(step16=lambda *_: (tmp_path / "out/checkpoint-15/model.safetensors").write_bytes(b"x"))
    given = RUN | GUARD | {"save_async": False}
    trained(backend.classifier(), planted(BAD), callbacks=[damage], **given)
    assert events(tmp_path / "out", "rolled_back") == [] and "no complete checkpoint" in caplog.text


# -- values are read late


@pytest.mark.rare_on("mindspore", "paddle")
def test_a_spike_is_found_before_the_next_checkpoint(backend, trained, tmp_path):
    """Nothing is logged: values are read every few steps, and before a save."""
    assert READ_EVERY > 3
    at = At()
    given = RUN | GUARD | {"logging_strategy": "no", "save_steps": 10}
    trained(backend.classifier(), planted(18), callbacks=[at], **given)
    assert at.began == [0, 10] and stored(tmp_path / "out", 20)["spikes"]["rollbacks"][0]["spike"]["step"] == 18


@pytest.mark.rare_on("mindspore", "paddle")
def test_a_spike_before_an_update_that_is_not_finite(backend, trained, tmp_path):
    """The spike is found first, although it has not been read when the run would stop."""
    data = planted(BAD)
    later = data[samples_of(18)[0]]
    later["x"] = np.asarray(later["x"]) * np.float32("nan")
    given = RUN | GUARD | {"logging_strategy": "no", "nonfinite": "skip"}
    trainer = trained(backend.classifier(), data, **given)
    assert [event["step"] for event in events(tmp_path / "out", "rolled_back")] == [BAD]
    assert trainer.result.metrics["skipped_steps"] == 1


@pytest.mark.rare_on("mindspore", "paddle")
def test_a_spike_in_the_last_step(backend, trained, tmp_path):
    given = RUN | GUARD | {"logging_strategy": "no", "max_steps": 18}
    trainer = trained(backend.classifier(), planted(18), **given)
    assert trainer.state.global_step == 18 and len(events(tmp_path / "out", "rolled_back")) == 1


@pytest.mark.rare_on("mindspore", "paddle")
def test_a_signal_while_a_spike_is_unread(backend, trained, tmp_path):
    """The run leaves without saving the spike; the resumed one finds it again and returns."""
    whole = trained(backend.classifier(dropout=0.5), planted(BAD), **RUN | GUARD)
    at = At(step18=lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    given = RUN | GUARD | {"output_dir": str(tmp_path / "left"), "logging_strategy": "no"}
    with pytest.raises(SystemExit):
        trained(backend.classifier(dropout=0.5), planted(BAD), callbacks=[at], **given)
    assert not (tmp_path / "left" / "checkpoint-18").exists()
    resumed = trained(backend.classifier(dropout=0.5), planted(BAD), resume=True, **given)
    assert len(events(tmp_path / "left", "rolled_back")) == 1
    assert same_bytes(backend.weights(whole.model), backend.weights(resumed.model))


# -- other data


@pytest.mark.rare_on("mindspore")
def test_a_stream(backend, trained, tmp_path):
    """It is read again up to the checkpoint; the batch of the step is dropped."""

    class Stream:
        def __iter__(self):
            data = planted(BAD)
            return iter([data[i] for i in Order(SAMPLES, 42, 0)[:].tolist()])

    streamed = trained(backend.classifier(), Stream(), **RUN | GUARD)
    assert events(tmp_path / "out", "rolled_back")[0]["samples"] == "unknown (not a map-style dataset)"
    indexed = trained(backend.classifier(), planted(BAD), **RUN | GUARD | {"output_dir": str(tmp_path / "indexed")})
    assert same_bytes(backend.weights(streamed.model), backend.weights(indexed.model))


# -- warn, off and refused


def test_warn_changes_nothing(backend, trained, tmp_path, caplog):
    warned = trained(backend.classifier(), planted(BAD), **RUN | GUARD | {"loss_spike": "warn"})
    (found,) = events(tmp_path / "out", "loss_spike")
    assert found["step"] == BAD and "Training continues (loss_spike='warn')" in caplog.text
    assert set(stored(tmp_path / "out", 20)["spikes"]) == {"version", "recent", "rollbacks"}
    plain = trained(backend.classifier(), planted(BAD), output_dir=str(tmp_path / "plain"), **RUN)
    assert same_bytes(backend.weights(warned.model), backend.weights(plain.model))


def guard_of(backend=None, **context):
    args = SimpleNamespace(loss_spike="warn", loss_spike_window=8, loss_spike_threshold=10.0)
    return SpikeGuard(SimpleNamespace(backend=backend, args=args, restart=None, **context))


def source_of(path, same_samples=True):
    return SimpleNamespace(path=path, same_samples=same_samples)


def test_steps_that_follow_a_spike_are_the_same_spike(caplog):
    reported = []
    guard = guard_of(events=SimpleNamespace(add=lambda kind, step, **facts: reported.append(step)))
    for step in (3, 4, 5, 7, 8, *range(10, 40, 2)):
        guard._report(Spike(step, "loss", 9.0, 1.0, 2.0), "[0]")
    assert reported == [3, 7, 10, 12, 14, 24]  # the first five, and the tenth
    assert sum("far above" in record.message for record in caplog.records) == 6


def test_all_processes_decide_by_the_values_of_the_main_process():
    of_main = [(1, {"loss": 2.0, "grad_norm": 3.0})]
    guard = guard_of(
        backend=SimpleNamespace(tensors=SimpleNamespace(scalars=np.array, is_tensor=lambda value: False)),
        processes=SimpleNamespace(broadcast_object=lambda value: of_main),
        mesh=Mesh.of_batches(2, 1),
        engine=SimpleNamespace(norm=3.5),
    )
    guard.end_update(1, 2.5)
    guard.check_pending()
    assert {name: list(known.recent) for name, known in guard.ranges.items()} == {"loss": [2.0], "grad_norm": [3.0]}


def test_rollbacks_before_the_checkpoint_are_kept_if_samples_are_others_now(caplog):
    made = [Rollback(Spike(last, "loss", 9.0, 1.0, 2.0), 4, last - 1, last, None) for last in (6, 9)]
    state = {"version": 1, "recent": {}, "rollbacks": [each.to_json() for each in made]}
    for fits, kept in ((True, made), (False, made[:1])):
        directory = SimpleNamespace(resolve=lambda path: path)
        guard = guard_of(state=SimpleNamespace(global_step=6), checkpointer=SimpleNamespace(directory=directory))
        guard.load({"spikes": state}, source_of(Path("checkpoint-6"), fits))
        assert guard.rollbacks == tuple(kept)
        assert guard.skipped_steps == {step for each in kept for step in (each.first, each.last)}
    assert sum("they are not skipped" in record.message for record in caplog.records) == 1


@pytest.mark.rare_on("mindspore", "paddle")
def test_off_is_not_in_checkpoints(backend, trained, tmp_path):
    trained(backend.classifier(), planted(BAD), **RUN | GUARD | {"loss_spike": "off"})
    assert "spikes" not in stored(tmp_path / "out", 20) and events(tmp_path / "out", "loss_spike") == []


def test_refused_before_the_first_step(backend, arguments):
    for given in ({"save_strategy": "no"}, {"save_strategy": "steps", "save_only_model": True}):
        with pytest.raises(ArgumentError, match="loss_spike='rollback' returns to the last checkpoint"):
            arguments(loss_spike="rollback", **given)

    online = type("Online", (Trainer,), {"__module__": "trl.online", "_buffered_inputs": None})
    with pytest.raises(UnsupportedError, match="Online, which generates its training data for several steps"):
        online(backend.classifier(), arguments(**RUN | GUARD), train_dataset=rows(SAMPLES)).train()

    class Once:
        def __iter__(self):
            return self

        def __next__(self):
            raise AssertionError("it is not read")

    with pytest.raises(DataError, match="can be read once"):
        Trainer(backend.classifier(), arguments(**RUN | GUARD), train_dataset=Once()).train()


@pytest.mark.rare_on("mindspore", "paddle")
def test_a_version_of_a_later_release_is_refused(backend, trained, tmp_path):
    trained(backend.classifier(), rows(SAMPLES), **RUN | GUARD | {"max_steps": 5})
    spikes = stored(tmp_path / "out", 5)["spikes"]
    trainer = Trainer(backend.classifier(), TrainingArguments(str(tmp_path / "new")))
    guard, source = part_of(trainer, "spikes"), source_of(tmp_path / "out" / "checkpoint-5")
    guard.load({"spikes": spikes}, source)
    assert len(guard.ranges["loss"].recent) == len(guard.ranges["grad_norm"].recent) == 5
    with pytest.raises(CheckpointError, match="loss spikes of version 2"):
        guard.load({"spikes": spikes | {"version": 2}}, source)
