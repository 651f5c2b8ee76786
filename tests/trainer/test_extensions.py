"""An extension takes part in the runs of a Trainer by its hooks alone, on every framework."""

from types import SimpleNamespace

import numpy as np
import pytest

from oneloop import Trainer, TrainerCallback, extension
from oneloop.checkpoint.output_directory import OutputDirectory
from tests.backends.support import rows
from tests.internals import extension_of

RUN = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "per_device_train_batch_size": 4}


class Counted(extension.Extension):
    """Counts the steps of all runs, which it stores, and notes what it is told."""

    def __init__(self, core):
        super().__init__(core)
        self.heard, self.steps, self.total = [], 0, np.zeros(2)
        self.is_added = False

    def callbacks(self):
        outer = self

        class Counting(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                outer.steps += 1
                outer.total += outer.steps

        return [Counting()]

    def callbacks_changed(self):
        self.heard.append("callbacks_changed")

    def created(self):
        self.heard.append("created")

    def before_train(self):
        self.heard.append("before_train")

    def evaluation_loader(self, loader):
        self.heard.append("evaluation_loader")
        return loader

    def checkpoint_saved(self, state):
        self.heard.append(f"saved {state.global_step}")

    def model_saved(self):
        self.heard.append("model_saved")

    def run_ended(self):
        self.heard.append("run_ended")

    def collect_state(self):
        return {"steps": self.steps}, {"attributes/total": self.total.copy()}

    def restore_state(self, stored, arrays):
        self.steps, self.total = stored["steps"], arrays["attributes/total"].copy()


@pytest.fixture
def counted(monkeypatch):
    monkeypatch.setattr(extension, "_registered", [*extension._registered, Counted])
    return lambda trainer: extension_of(trainer, Counted)


def test_hooks_come_in_their_order(backend, trained, counted, tmp_path):
    trainer = trained(backend.classifier(), rows(16), eval_dataset=rows(4), **RUN)
    trainer.evaluate()
    trainer.save_model(str(tmp_path / "model"))
    heard = counted(trainer).heard
    assert heard[:3] == ["callbacks_changed", "created", "before_train"]
    assert heard[3:] == ["saved 2", "saved 4", "run_ended", "evaluation_loader", "model_saved"]
    assert counted(trainer).steps == 4


def test_its_state_is_in_checkpoints(backend, trained, counted, tmp_path):
    whole = counted(trained(backend.classifier(), rows(16), **RUN))
    again = counted(trained(backend.classifier(), rows(16), resume=f"{tmp_path}/out/checkpoint-2", **RUN))
    assert (again.steps, again.total.tolist()) == (whole.steps, whole.total.tolist()) == (4, [10.0, 10.0])


def test_each_trainer_has_its_own(backend, arguments, counted):
    first, second = (Trainer(backend.classifier(), arguments(), train_dataset=rows(4)) for _ in range(2))
    assert counted(first) is not counted(second)
    assert counted(first).core.trainer is first


def test_a_kind_is_registered_once(monkeypatch):
    monkeypatch.setattr(extension, "_registered", [])
    extension.register(Counted, Counted)
    extension.register(Counted)
    assert extension._registered == [Counted]


class Silent(extension.Extension):
    """Has no hook of its own."""


def test_hooks_that_an_extension_lacks_do_nothing(monkeypatch):
    monkeypatch.setattr(extension, "_registered", [Silent])
    every = extension.Extensions(SimpleNamespace(trainer=None))
    loader = object()
    every.callbacks_changed()
    every.created()
    every.before_train()
    every.run_ended()
    every.checkpoint_saved(None)
    every.model_saved()
    every.restore_state({}, {})
    every.restore_models(None)
    assert every.evaluation_loader(loader) is loader
    assert (every.callbacks(), every.collect_state(), every.trial, every.output_directory(None)) == (
        [],
        (None, {}),
        None,
        None,
    )
    assert every.new_model(lambda: "made") == "made"
    assert (every.generates_data, every.shares_python_random) == (False, False)
    assert every.gradient_state().sync_gradients is True
    with every.every[0].saving_models([], print):
        assert every.every[0].models_requested() == []


def test_a_store_that_keeps_nothing_elsewhere(tmp_path):
    args, told = SimpleNamespace(output_dir=str(tmp_path)), []
    events = SimpleNamespace(is_first_report=lambda what: told.append(what))
    core = SimpleNamespace(trainer=SimpleNamespace(args=args))
    directory = OutputDirectory(SimpleNamespace(core=core, events=events))
    assert (directory.checkpoints_elsewhere, directory.fetch(True)) == ([], (True, []))
    assert directory.provide_checkpoint(tmp_path, None) == tmp_path
    (stage := tmp_path / "stage").mkdir()
    assert directory.sharded_save(1, stage) is None and not stage.exists() and told == ["disk is not shared"]
    with directory.saving("folder") as folder:
        assert folder == "folder"
