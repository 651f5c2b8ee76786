"""Subclasses that save and load parts of a checkpoint themselves, as libraries on top of transformers' Trainer do."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from oneloop import Trainer, TrainerCallback
from oneloop.checkpoint import store
from oneloop.errors import UnsupportedError
from tests.backends.support import rows, same_bytes
from tests.checkpoint.test_command import write

RUN = {
    "max_steps": 6,
    "per_device_train_batch_size": 4,
    "save_strategy": "steps",
    "save_steps": 2,
    "learning_rate": 0.05,
    "logging_steps": 2,
}
EXTRA = "coefficient.json"


@pytest.fixture
def make(backend, arguments, tmp_path):
    """A Trainer of a class, on a model with dropout."""

    def make(cls, output="out", seed=0, callbacks=None, **given):
        args = arguments(tmp_path / output, **RUN | given)
        model = backend.classifier(dropout=0.2, seed=seed)
        return cls(model, args, train_dataset=rows(24), eval_dataset=rows(8, 1), callbacks=callbacks)

    return make


@pytest.fixture
def unbroken(make, backend):
    trainer = make(Trainer, "unbroken")
    trainer.train()
    return backend.weights(trainer.model), backend.optimizer(trainer), figures(trainer)


def figures(trainer):
    """What is logged, without times."""
    return [(line["step"], line["loss"]) for line in trainer.state.log_history if "loss" in line]


class Adapts(Trainer):
    """A coefficient that changes with every step, saved and read back after super(), as in TRL's GRPO."""

    coefficient = 0.0

    def training_step(self, *args, **kwargs):
        self.coefficient += 1.0
        return super().training_step(*args, **kwargs)

    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        if folder.exists():  # it is not if the disk is full
            assert store.problems(folder) == [] and self.state.global_step == read_step(folder)
        (folder / EXTRA).write_text(json.dumps(self.coefficient))

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        file = Path(checkpoint, EXTRA)
        if file.exists():
            self.coefficient = json.loads(file.read_text())


def read_step(folder):
    return json.loads((folder / "trainer_state.json").read_text())["global_step"]


def listed(folder):
    return set(json.loads((Path(folder) / store.MANIFEST).read_text())["files"])


class Hears(TrainerCallback):
    def __init__(self):
        self.heard = []

    def on_save(self, args, state, control, **kwargs):
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        self.heard.append((state.global_step, sorted(path.name for path in folder.parent.glob("checkpoint-*"))))
        if (folder / EXTRA).exists():
            assert EXTRA in listed(folder) and store.problems(folder) == []


@pytest.mark.parametrize("in_background", [True, False])
def test_files_that_save_checkpoint_adds(make, backend, tmp_path, unbroken, in_background):
    """The directory is there when super() returns; what is added is verified from then on, and on_save comes last."""
    hears = Hears()
    trainer = make(Adapts, callbacks=[hears], save_async=in_background, save_total_limit=2)
    trainer.train()
    assert hears.heard == [
        (2, ["checkpoint-2"]),
        (4, ["checkpoint-2", "checkpoint-4"]),
        (6, ["checkpoint-4", "checkpoint-6"]),
    ]
    folder = tmp_path / "out" / "checkpoint-4"
    assert EXTRA in listed(folder) and store.problems(folder) == []
    assert "unsealed" not in json.loads((folder / store.MANIFEST).read_text())
    (folder / EXTRA).write_text("5.0")  # as long as before
    assert store.problems(folder) == [f"{EXTRA} has changed since it was written (checksum)"]
    (folder / EXTRA).write_text("4.0")
    resumed = make(Adapts, seed=3)
    resumed.train(resume_from_checkpoint=str(folder))
    assert resumed.coefficient == trainer.coefficient == 6.0
    assert same_bytes(backend.weights(resumed.model), unbroken[0])
    assert same_bytes(backend.optimizer(resumed), unbroken[1])
    assert figures(resumed) == unbroken[2]


class Stops(BaseException):
    pass


class StopsWhileAdding(Adapts):
    def _save_checkpoint(self, model, trial):
        Trainer._save_checkpoint(self, model, trial)
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        (folder / EXTRA).write_text("4")
        if self.state.global_step == 4:
            raise Stops


def test_a_run_that_ends_while_files_are_added(make, backend, tmp_path, unbroken, caplog):
    """Everything that oneloop saves is complete before, and the previous checkpoint is still there."""
    trainer = make(StopsWhileAdding, save_total_limit=1)
    with pytest.raises(Stops):
        trainer.train()
    folder = tmp_path / "out" / "checkpoint-4"
    assert sorted(path.name for path in folder.parent.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]
    assert store.problems(folder) == [] and EXTRA not in listed(folder)
    resumed = make(Adapts, seed=3, save_total_limit=1)
    resumed.train(resume_from_checkpoint=True)
    assert f"these files may not be: {EXTRA}" in caplog.text
    assert same_bytes(backend.weights(resumed.model), unbroken[0])
    assert [path.name for path in folder.parent.glob("checkpoint-*")] == ["checkpoint-6"]


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_run_that_ends_while_the_manifest_is_replaced(make, backend, tmp_path, unbroken, monkeypatch, point):
    replace = os.replace

    def stops(source, target):
        if point == "after" or Path(target).name != store.MANIFEST or "checkpoint-4" not in str(target):
            replace(source, target)
        if Path(target).name == store.MANIFEST and "checkpoint-4" in str(target):
            raise Stops

    with monkeypatch.context() as patch, pytest.raises(Stops):
        patch.setattr(os, "replace", stops)
        make(Adapts).train()
    folder = tmp_path / "out" / "checkpoint-4"
    assert store.problems(folder) == [] and (EXTRA in listed(folder)) is (point == "after")
    resumed = make(Adapts, seed=3)
    resumed.train(resume_from_checkpoint=True)
    assert same_bytes(backend.weights(resumed.model), unbroken[0]) and resumed.coefficient == 6.0


class WritesFirst(Trainer):
    """Makes the directory itself and writes into it before super(), as TRL's asynchronous trainers do."""

    def _save_checkpoint(self, model, trial):
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        (folder / "rollouts").mkdir(parents=True, exist_ok=True)
        (folder / "rollouts" / "position.json").write_text(str(self.state.global_step))
        (folder / "run.json").write_text("not ours")
        super()._save_checkpoint(model, trial)


def test_files_that_were_there_before_super(make, backend, tmp_path, unbroken):
    for _ in range(2):  # the second run replaces the checkpoints of the first
        make(WritesFirst).train()
    folder = tmp_path / "out" / "checkpoint-2"
    assert (folder / "rollouts" / "position.json").read_text() == "2"
    assert "rollouts/position.json" in listed(folder) and store.problems(folder) == []
    resumed = make(WritesFirst, seed=3)
    resumed.train(resume_from_checkpoint=str(folder))
    assert same_bytes(backend.weights(resumed.model), unbroken[0])


class SavesAlone(Trainer):
    def _save_checkpoint(self, model, trial):
        self.save_model(str(Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"), _internal_call=True)


def test_on_save_of_an_override_that_saves_alone(make, tmp_path):
    hears = Hears()
    make(SavesAlone, callbacks=[hears]).train()
    assert [step for step, _ in hears.heard] == [2, 4, 6]


class RemovesSome(Trainer):
    """Leaves the weights alone in the checkpoint, and an empty one of step 4."""

    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        for name in ("optimizer.safetensors", "random.safetensors", "run.json"):
            (folder / name).unlink()
        if self.state.global_step == 4:
            folder.rename(folder.with_name("moved"))


def test_an_override_that_removes_files(make, backend, tmp_path):
    trainer = make(RemovesSome)
    trainer.train()
    folder = tmp_path / "out" / "checkpoint-6"
    assert store.problems(folder) == [] and "optimizer.safetensors" not in listed(folder)
    assert not (tmp_path / "out" / "checkpoint-4").exists()
    fresh = make(Trainer, seed=3)
    fresh._load_from_checkpoint(str(folder))
    assert same_bytes(backend.weights(fresh.model), backend.weights(trainer.model))


def test_files_are_listed_anew_where_it_is_not_known_what_was_there(tmp_path):
    """The disk could not say it when the checkpoint was committed. What is gone since then is not missing."""
    path = write(tmp_path, 2)
    (path / "run.json").unlink()
    (path / "more.txt").write_text("added")
    store.finalize_manifest(path, {})
    assert listed(path) == {"model.safetensors", "random.safetensors", "trainer_state.json", "more.txt"}


def test_a_full_disk_does_not_end_the_run(make, tmp_path, monkeypatch, caplog):
    """The override cannot write into a checkpoint that is not there."""
    commit = store.commit

    def fails(folder, step, *rest, **given):
        if step == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return commit(folder, step, *rest, **given)

    monkeypatch.setattr(store, "commit", fails)
    hears = Hears()
    trainer = make(Adapts, callbacks=[hears])
    trainer.train()
    assert trainer.state.global_step == 6 and [step for step, _ in hears.heard] == [2, 6]
    assert "checkpoint-4 was NOT saved" in caplog.text


def test_a_full_disk_for_the_files_of_the_override_does_not_end_the_run(make, tmp_path, caplog):
    """The checkpoint stays without them, and so does the one before it."""

    class Fails(Trainer):
        def _save_checkpoint(self, model, trial):
            super()._save_checkpoint(model, trial)
            folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            (folder / "mine.txt").write_text("mine")
            if self.state.global_step == 4:
                raise OSError(errno.ENOSPC, "No space left on device")

    hears = Hears()
    trainer = make(Fails, callbacks=[hears], save_total_limit=1)
    trainer.train()
    assert trainer.state.global_step == 6 and [step for step, _ in hears.heard] == [2, 4, 6]
    assert caplog.text.count("_save_checkpoint of Fails failed: [Errno 28] No space left on device") == 1
    assert [c.step for c in store.find(Path(trainer.args.output_dir))] == [6]


def test_the_checkpoint_before_a_failed_override_is_kept_and_its_own_is_not_sealed(make, tmp_path):
    class Fails(Trainer):
        def _save_checkpoint(self, model, trial):
            super()._save_checkpoint(model, trial)
            folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            (folder / "mine.txt").write_text("mine")
            if self.state.global_step == 6:
                raise OSError(errno.EIO, "Input/output error")

    trainer = make(Fails, save_total_limit=1)
    trainer.train()
    output = Path(trainer.args.output_dir)
    assert [c.step for c in store.find(output)] == [4, 6] and not store.problems(output / "checkpoint-6")
    assert [store.unlisted(c.open()) for c in store.find(output)] == [[], ["mine.txt"]]


def test_another_error_of_the_override_is_raised(make):
    class Fails(Trainer):
        def _save_checkpoint(self, model, trial):
            super()._save_checkpoint(model, trial)
            raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        make(Fails).train()


# -- parts


class OwnParts(Trainer):
    """Stores each part in files of its own, and does not call super()."""

    calls = ()

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.calls = []

    def _save_optimizer_and_scheduler(self, output_dir):
        self.calls.append("save optimizer")
        Path(output_dir, "steps.json").write_text(json.dumps(self.lr_scheduler.state_dict()))

    def _save_scaler(self, output_dir):
        self.calls.append("save scaler")

    def _save_rng_state(self, output_dir):
        self.calls.append("save rng")
        np.save(Path(output_dir, "numpy_state.npy"), np.random.get_state()[1])

    def _load_optimizer_and_scheduler(self, checkpoint):
        self.calls.append("load optimizer")
        self.lr_scheduler.load_state_dict(json.loads(Path(checkpoint, "steps.json").read_text()))

    def _load_scaler(self, checkpoint):
        self.calls.append("load scaler")

    def _load_rng_state(self, checkpoint):
        self.calls.append("load rng")
        self.loaded = np.load(Path(checkpoint, "numpy_state.npy"))

    def _load_callback_state(self):
        self.calls.append("load callbacks")

    def _load_from_checkpoint(self, checkpoint_path):
        """With one argument, as that of sentence-transformers."""
        self.calls.append("load model")


class KeepsWeights(TrainerCallback):
    def __init__(self, backend):
        self.backend = backend

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.weights = self.backend.weights(model)


def test_parts_that_overrides_store(make, backend, tmp_path, caplog):
    """oneloop stores and restores none of them; the files of the overrides are committed with the others."""
    trainer = make(OwnParts, optim="sgd")
    trainer.train()
    assert "does not call super()" not in caplog.text, "an override reads what another has written"
    folder = tmp_path / "out" / "checkpoint-2"
    assert {"steps.json", "numpy_state.npy"} <= listed(folder) and store.problems(folder) == []
    assert "optimizer.safetensors" not in listed(folder)
    run = json.loads((folder / "run.json").read_text())
    assert run["optimizer"] == {} and run["scheduler"] is None and run["engine"]["scaler"] is None
    assert trainer.calls == ["save optimizer", "save scaler", "save rng"] * 3
    begins = KeepsWeights(backend)
    resumed = make(OwnParts, optim="sgd", seed=3, callbacks=[begins])
    before = backend.weights(resumed.model)
    resumed.train(resume_from_checkpoint=str(folder))
    assert resumed.calls[:5] == ["load model", "load callbacks", "load optimizer", "load scaler", "load rng"]
    assert resumed.loaded.tobytes() == np.load(folder / "numpy_state.npy").tobytes()
    assert resumed.state.global_step == 6 and same_bytes(begins.weights, before)
    assert resumed.lr_scheduler.last_epoch == 6


def test_an_optimizer_that_nobody_has_stored(make, tmp_path, caplog):
    class WithoutOptimizer(Trainer):
        def _save_optimizer_and_scheduler(self, output_dir):
            pass

    make(WithoutOptimizer).train()
    folder = tmp_path / "out" / "checkpoint-4"
    lost = "_save_optimizer_and_scheduler of WithoutOptimizer does not call super()"
    assert caplog.text.count(lost) == 1, "there were three saves"
    make(Trainer, seed=3).train(resume_from_checkpoint=str(folder))
    assert f"{folder} has no optimizer state" in caplog.text


PARTS = (
    *("_save_optimizer_and_scheduler", "_save_scaler", "_save_rng_state", "_load_optimizer_and_scheduler"),
    *("_load_scaler", "_load_rng_state", "_load_from_checkpoint"),
)


def test_parts_with_super_resume_to_the_same_bits(make, backend, tmp_path, unbroken):
    """Each that saves adds a file of its own in the directory that it is given; test_override_counts has one at a
    time."""

    def override(name):
        def method(self, folder, *rest):
            getattr(Trainer, name)(self, folder, *rest)
            assert Path(folder).is_dir()
            if "save" in name:
                Path(folder, name).write_text(str(self.state.global_step))
            else:
                assert Path(folder, "_save_scaler").read_text() == "4"

        return method

    cls = type("Own", (Trainer,), {name: override(name) for name in PARTS})
    make(cls).train()
    folder = tmp_path / "out" / "checkpoint-4"
    assert listed(folder) >= set(PARTS[:3]) and store.problems(folder) == []
    resumed = make(cls, seed=3)
    resumed.train(resume_from_checkpoint=str(folder))
    assert same_bytes(backend.weights(resumed.model), unbroken[0])
    assert same_bytes(backend.optimizer(resumed), unbroken[1])
    assert figures(resumed) == unbroken[2]


def test_random_numbers_that_are_not_restored(make, backend, tmp_path, unbroken):
    """An override of _load_rng_state that does nothing, as that of trainers that resume the model only."""

    class Without(Trainer):
        def _load_rng_state(self, checkpoint):
            pass

    make(Trainer).train()
    resumed = make(Without, seed=3)
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
    assert not same_bytes(backend.weights(resumed.model), unbroken[0]), "dropout draws other numbers"


def test_a_part_outside_of_a_save_is_refused(make, tmp_path):
    trainer = make(Trainer)
    for name in ("_save_optimizer_and_scheduler", "_save_scaler", "_save_rng_state"):
        with pytest.raises(UnsupportedError, match="can only be called within a save"):
            getattr(trainer, name)(str(tmp_path))
    for name in ("_load_optimizer_and_scheduler", "_load_scaler", "_load_rng_state"):
        getattr(trainer, name)(None)


class KeepsEverySecond(Trainer):
    def _rotate_checkpoints(self, use_mtime=False, output_dir=None):
        for path in Path(output_dir).glob("checkpoint-*"):
            if int(path.name.rpartition("-")[2]) % 4:
                store.delete(path)


def test_an_override_of_the_rotation(make, tmp_path):
    make(KeepsEverySecond, max_steps=8).train()
    assert sorted(path.name for path in (tmp_path / "out").glob("checkpoint-*")) == ["checkpoint-4", "checkpoint-8"]
