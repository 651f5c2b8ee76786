"""A signal in every phase of a run, with a stderr that works, is dead or closed: a checkpoint and the exit status.

The slow tests run all combinations, the others a part of them.
"""

import contextlib
import io
import itertools
import json
import os
import signal
import sys
import threading

import numpy as np
import pytest

from oneloop import Trainer, TrainerCallback
from oneloop.checkpoint import capture, store
from oneloop.distributed.preemption import Preempted
from oneloop.integrations.hub.pushing import HubPushes
from oneloop.trainer.run import Run
from tests.backends.support import rows, same_bytes

RUN = {"max_steps": 4, "per_device_train_batch_size": 4, "save_strategy": "steps", "save_steps": 3, "optim": "sgd"}
RUN |= {"per_device_eval_batch_size": 2}


class Sending(list):
    """Samples that send a signal when the third one is read: in the middle of an evaluation."""

    def __init__(self, number):
        super().__init__(rows(8))
        self.number, self.read = number, 0

    def __getitem__(self, index):
        self.read += 1
        if self.read == 3:
            os.kill(os.getpid(), self.number)
        return super().__getitem__(index)


class Evaluates(TrainerCallback):
    """Calls a method of the Trainer in an event, at step 2."""

    def __init__(self, event, call):
        self.trainer, self.call, self.ended = None, call, []
        setattr(self, event, self._act)

    def _act(self, args, state, control, **kwargs):
        if state.global_step == 2 and not self.ended:
            self.ended.append("began")
            self.call(self.trainer)
            self.ended.append("ended")


def evaluates(event):
    return lambda number: {"callback": Evaluates(event, lambda trainer: trainer.evaluate(Sending(number)))}


def kills(number):
    return lambda *args, **kwargs: os.kill(os.getpid(), number)


# The phase in which the signal comes: what the run is made of, and the step that is saved (0: nothing was trained yet).
PHASES = {
    "search for checkpoints": (lambda number: {"search": number}, 0),
    "setup": (lambda number: {"setup": number}, 1),
    "first evaluation": (lambda number: {"eval_dataset": Sending(number), "eval_on_start": True}, 0),
    "step": (lambda number: {"callback": Evaluates("on_step_end", kills(number))}, 2),
    "loop's evaluation": (
        lambda number: {"eval_dataset": Sending(number), "eval_strategy": "steps", "eval_steps": 2},
        2,
    ),
    "evaluation of on_step_end": (evaluates("on_step_end"), 2),
    "evaluation of on_log": (lambda number: evaluates("on_log")(number) | {"logging_steps": 1}, 2),
    "evaluation of on_step_begin": (evaluates("on_step_begin"), 3),  # it is finished, and so is the update
    "prediction of on_step_end": (
        lambda number: {"callback": Evaluates("on_step_end", lambda trainer: trainer.predict(Sending(number)))},
        2,
    ),
    "save": (lambda number: {"writing": number}, 4),
    "end": (lambda number: {"end": number}, 4),
    "upload": (lambda number: {"upload": number}, 4),
}
SIGNALS = {"SIGTERM": Preempted, "SIGINT": KeyboardInterrupt}


class Started(Trainer):
    setup = None

    def get_train_dataloader(self):
        if self.setup is not None:
            os.kill(os.getpid(), self.setup)
        return super().get_train_dataloader()


def trainer_of(backend, arguments, monkeypatch, phase, number):
    given = PHASES[phase][0](number)
    callback, setup = given.pop("callback", None), given.pop("setup", None)
    methods = (
        (Run, "find_checkpoint", "search"),
        (capture.Contents, "write", "writing"),
        (HubPushes, "run_ended", "upload"),
    )
    for owner, name, key in methods:
        if key in given:
            monkeypatch.setattr(owner, name, sending(getattr(owner, name), given.pop(key)))
    callbacks = [] if callback is None else [callback]
    if "end" in given:
        callbacks.append(type("Ends", (TrainerCallback,), {"on_train_end": kills(given.pop("end"))})())
    data = {"eval_dataset": given.pop("eval_dataset", None), "train_dataset": rows(32)}
    trainer = Started(backend.classifier(), arguments(**RUN | given), callbacks=callbacks, **data)
    trainer.setup = setup
    if callback is not None:
        callback.trainer = trainer
    return trainer


def sending(method, number):
    sent = []

    def sends(*args, **kwargs):
        if not sent:
            sent.append(os.kill(os.getpid(), number))
        return method(*args, **kwargs)

    return sends


@contextlib.contextmanager
def stderr(kind, monkeypatch):
    """Within it, stderr works, has no reader any more, or is closed."""
    if kind == "works":
        yield
        return
    reader, writer = os.pipe()
    os.close(reader)
    stream = io.TextIOWrapper(io.FileIO(writer, "w"), write_through=True)
    if kind == "closed":
        stream.close()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        patch.setattr(sys, "__stderr__", stream)
        yield
    with contextlib.suppress(OSError):
        stream.close()


def check(backend, arguments, monkeypatch, tmp_path, phase, name, kind):
    number, step = getattr(signal, name), PHASES[phase][1]
    before = signal.getsignal(number)
    trainer = trainer_of(backend, arguments, monkeypatch, phase, number)
    with stderr(kind, monkeypatch), pytest.raises(SIGNALS[name]) as left:
        trainer.train()
    monkeypatch.undo()
    assert signal.getsignal(number) is before, "the handler of before is back"
    assert f"interrupted ({name})" in str(left.value)
    if name == "SIGTERM":
        assert left.value.code == 75
    if phase == "save":
        step = trainer.state.global_step
        assert step in (3, 4)
    assert trainer.state.global_step == step
    if step == 0:
        assert "nothing to save" in str(left.value) and not list((tmp_path / "out").glob("checkpoint-*"))
        return trainer
    saved = store.latest(tmp_path / "out")
    assert saved.step == step and store.problems(saved.path) == [] and str(saved.path) in str(left.value)
    return trainer


REPRESENTATIVE = [(phase, "SIGTERM", "dead") for phase in PHASES]
REPRESENTATIVE += [("step", "SIGINT", "works"), ("evaluation of on_step_end", "SIGINT", "closed")]
EVERY = [each for each in itertools.product(PHASES, SIGNALS, ("works", "dead", "closed")) if each not in REPRESENTATIVE]


@pytest.fixture
def torch_kit():
    from tests.backends.kits.torch_kit import Kit

    return Kit()


@pytest.mark.parametrize(("phase", "name", "kind"), REPRESENTATIVE)
def test_a_checkpoint_and_the_status(torch_kit, arguments, monkeypatch, tmp_path, phase, name, kind):
    check(torch_kit, arguments, monkeypatch, tmp_path, phase, name, kind)


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "name", "kind"), EVERY)
def test_all_combinations(torch_kit, arguments, monkeypatch, tmp_path, phase, name, kind):
    check(torch_kit, arguments, monkeypatch, tmp_path, phase, name, kind)


@pytest.mark.slow
@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("phase", PHASES)
def test_on_every_framework(backend, arguments, monkeypatch, tmp_path, phase, name):
    check(backend, arguments, monkeypatch, tmp_path, phase, name, "works")


def test_what_was_pending_at_the_last_step_is_done_once(backend, arguments, tmp_path):
    """No later step is saved, so the step is saved again, and a second resume finds nothing to do."""
    given = RUN | {"eval_strategy": "steps", "eval_steps": 4}

    def pending(data):
        trainer = Trainer(backend.classifier(), arguments(**given), train_dataset=rows(32), eval_dataset=data)
        with contextlib.suppress(Preempted):
            trainer.train(resume_from_checkpoint=True if (tmp_path / "out").exists() else None)
        evaluated = sum("eval_loss" in entry for entry in trainer.state.log_history)
        run = json.loads((tmp_path / "out" / "checkpoint-4" / "run.json").read_text())
        state = json.loads((tmp_path / "out" / "checkpoint-4" / "trainer_state.json").read_text())
        return run["position"]["pending"].get("should_evaluate"), evaluated, len(state["log_history"])

    assert pending(Sending(signal.SIGTERM)) == (True, 0, 0)
    assert pending(rows(8)) == (False, 1, 1)
    assert pending(rows(8)) == (False, 1, 1)
    saved = store.latest(tmp_path / "out")
    assert saved.step == 4 and store.problems(saved.path) == []


@pytest.mark.parametrize("phase", ["evaluation of on_step_end", "first evaluation"])
def test_a_resumed_run_ends_with_the_same_bytes(backend, arguments, monkeypatch, tmp_path, phase):
    straight = Trainer(backend.classifier(), arguments(tmp_path / "straight", **RUN), train_dataset=rows(32))
    straight.train()
    check(backend, arguments, monkeypatch, tmp_path, phase, "SIGTERM", "works")
    resumed = Trainer(backend.classifier(), arguments(**RUN), train_dataset=rows(32))
    resumed.train(resume_from_checkpoint=phase != "first evaluation")
    assert same_bytes(backend.weights(resumed.model), backend.weights(straight.model))


@pytest.mark.parametrize("by_callback", [True, False])
def test_random_numbers_of_an_evaluation_that_was_given_up(torch_kit, arguments, monkeypatch, tmp_path, by_callback):
    """The checkpoint has the streams from before it."""

    class Noisy(Sending):
        def __getitem__(self, index):
            np.random.rand()
            return super().__getitem__(index)

    seen = []

    def evaluate(trainer):
        seen.append(np.random.get_state()[1:3])
        if by_callback:
            trainer.evaluate(Noisy(signal.SIGTERM))

    def noisily(trainer):
        np.random.rand()
        return Trainer.evaluate(trainer)

    if not by_callback:
        monkeypatch.setattr(Started, "_evaluate", lambda self, trial, ignore_keys: noisily(self))
    of_loop = {"eval_dataset": Noisy(signal.SIGTERM), "eval_strategy": "steps", "eval_steps": 2}
    given = {"callback": Evaluates("on_step_end", evaluate)} | ({} if by_callback else of_loop)
    monkeypatch.setitem(PHASES, "noisy", (lambda number: given, 2))
    check(torch_kit, arguments, monkeypatch, tmp_path, "noisy", "SIGTERM", "works")
    after = np.random.get_state()[1:3]
    assert (after[0] == seen[0][0]).all() and after[1] == seen[0][1]


def test_a_step_that_was_saved_is_not_saved_again(backend, arguments):
    """The signal comes with its save."""
    saved = []

    class Sends(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            if not saved:
                os.kill(os.getpid(), signal.SIGTERM)
            saved.append(state.global_step)

    args = arguments(**RUN, save_async=False)
    trainer = Trainer(backend.classifier(), args, train_dataset=rows(32), callbacks=[Sends()])
    with pytest.raises(Preempted, match="checkpoint-3"):
        trainer.train()
    assert saved == [3] and trainer.state.global_step == 3


def test_without_a_state_no_resume_is_advised(backend, arguments):
    callback = Evaluates("on_step_end", kills(signal.SIGTERM))
    args = arguments(**RUN | {"save_only_model": True})
    trainer = Trainer(backend.classifier(), args, train_dataset=rows(32), callbacks=[callback])
    with pytest.raises(Preempted) as left:
        trainer.train()
    assert "checkpoint-2" in str(left.value) and "no state to resume from" in str(left.value)
    assert "resume_from_checkpoint=True" not in str(left.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("phase", PHASES)
def test_in_a_thread_there_is_a_warning_and_the_run_goes_on(torch_kit, arguments, monkeypatch, caplog, phase, name):
    number, heard = getattr(signal, name), []
    before = signal.signal(number, lambda *_: heard.append(number))
    try:
        trainer = trainer_of(torch_kit, arguments, monkeypatch, phase, number)
        thread = threading.Thread(target=trainer.train)
        thread.start()
        thread.join()
    finally:
        signal.signal(number, before)
    assert heard and trainer.state.global_step == 4 and "train() runs in a thread" in caplog.text
