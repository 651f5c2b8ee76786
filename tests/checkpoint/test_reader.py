"""A checkpoint is read once in a resume: manifest, state and run.json are opened a single time."""

import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from oneloop import TrainerCallback
from oneloop.checkpoint import store
from oneloop.checkpoint.output_directory import OutputDirectory
from oneloop.checkpoint.reader import Checkpoint
from oneloop.errors import CheckpointError
from tests.backends.support import rows
from tests.checkpoint.test_command import write, write_foreign

RUN = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "logging_steps": 1}
READ_ONCE = ("manifest.json", "run.json", "trainer_state.json")


class Opened:
    """How often files were opened, by folder and name."""

    def __init__(self, patch):
        self.counts, self._open = Counter(), os.open
        patch.setattr(os, "open", self)

    def __call__(self, path, *args, **kwargs):
        if isinstance(path, (str, os.PathLike)):
            self.counts["/".join(Path(path).parts[-2:])] += 1
        return self._open(path, *args, **kwargs)


class CountUntilStep(TrainerCallback):
    def __init__(self, opened):
        self.opened, self.counts = opened, None

    def on_step_begin(self, *args, **kwargs):
        self.counts = self.counts or dict(self.opened.counts)


@pytest.mark.parametrize(("wanted", "given"), [(True, {}), ("path", {"ema_decay": 0.9})], ids=["newest", "path"])
def test_a_resume_reads_each_file_of_its_checkpoint_once(backend, trained, tmp_path, monkeypatch, wanted, given):
    trained(backend.classifier(), rows(32), output_dir=tmp_path, **RUN | given)
    store.delete(tmp_path / "checkpoint-4")
    opened = Opened(monkeypatch)
    callback = CountUntilStep(opened)
    resumed = True if wanted is True else str(tmp_path / "checkpoint-2")
    trained(backend.classifier(), rows(32), resume=resumed, callbacks=[callback], output_dir=tmp_path, **RUN | given)
    assert {name: callback.counts[f"checkpoint-2/{name}"] for name in READ_ONCE} == dict.fromkeys(READ_ONCE, 1)


def test_a_damaged_file_is_seen_although_it_was_read(tmp_path, backend, trained):
    trained(backend.classifier(), rows(32), output_dir=tmp_path, **RUN)
    path = tmp_path / "checkpoint-2"
    assert Checkpoint(path).problems() == [] and Checkpoint(path).run.run_id
    file = path / "run.json"
    file.write_bytes(file.read_bytes().replace(b'"epoch"', b'"epoc_"', 1))
    assert Checkpoint(path).problems() == ["run.json has changed since it was written (checksum)"]


def test_a_checkpoint_without_run_json(tmp_path, backend, trained):
    trained(backend.classifier(), rows(32), output_dir=tmp_path, save_only_model=True, **RUN)
    checkpoint = Checkpoint(tmp_path / "checkpoint-2")
    assert checkpoint.problems() == [] and checkpoint.run is None
    with pytest.raises(CheckpointError, match="without optimizer and RNG state"):
        checkpoint.complete_run()


# -- directories of checkpoints


def test_a_manifest_that_was_read_is_that_of_its_own_checkpoint_alone(tmp_path):
    """Others in the directory are read for theirs."""
    write(tmp_path, 1, "a"), write(tmp_path, 2, "b")
    write_foreign(tmp_path, 3)
    opened = Checkpoint(tmp_path / "checkpoint-2")
    assert [(c.step, c.run_id) for c in store.find(tmp_path, opened)] == [(1, "a"), (2, "b"), (3, None)]
    foreign = Checkpoint(tmp_path / "checkpoint-3")
    assert [(c.step, c.run_id) for c in store.find(tmp_path, foreign)] == [(1, "a"), (2, "b"), (3, None)]


def test_former_best_checkpoints_go_and_do_not_count(tmp_path):
    for step, reason in enumerate(["save", "best", "save", "best", "save"], 1):
        write(tmp_path, step, "run", reason)
    write(tmp_path, 9, "another", "best")
    best, newest = str(tmp_path / "checkpoint-4"), str(tmp_path / "checkpoint-5")
    assert store.rotate(tmp_path, "run", 4, {newest, best}, best=best) == []
    assert [c.step for c in store.find(tmp_path)] == [1, 3, 4, 5, 9]
    assert [path.name for path in store.rotate(tmp_path, "run", 2, {newest, best}, best=best)] == [
        "checkpoint-1",
        "checkpoint-3",
    ]
    assert [c.step for c in store.find(tmp_path)] == [4, 5, 9]


def test_a_former_best_that_cannot_be_deleted_counts(tmp_path, monkeypatch):
    for step, reason in enumerate(["save", "best", "save"], 1):
        write(tmp_path, step, "run", reason)
    delete, failed = store.delete, []

    def refused(path):
        if path.name == "checkpoint-2":
            raise PermissionError("not allowed")
        delete(path)

    monkeypatch.setattr(store, "delete", refused)
    removed = store.rotate(tmp_path, "run", 2, set(), lambda path, error: failed.append(path.name))
    assert [path.name for path in removed] == ["checkpoint-1"] and failed == ["checkpoint-2"]
    assert [c.step for c in store.find(tmp_path)] == [2, 3]


@pytest.mark.parametrize("manifest", [None, "{", "{}"])
def test_a_broken_manifest_is_a_problem_and_no_error(tmp_path, manifest):
    checkpoint = Checkpoint(write(tmp_path, 1))
    file = checkpoint.path / "manifest.json"
    file.unlink() if manifest is None else file.write_text(manifest)
    (problem,) = checkpoint.problems()
    assert problem.startswith("manifest.json is missing or cannot be read") and store.unlisted(checkpoint) == []


def test_what_a_part_of_the_run_needs_is_not_deleted(tmp_path):
    args = SimpleNamespace(output_dir=str(tmp_path), save_total_limit=1)
    core = SimpleNamespace(trainer=SimpleNamespace(args=args))
    directory = OutputDirectory(SimpleNamespace(id="run", core=core, events=None))
    for step in (1, 2, 3):
        write(tmp_path, step, "run")
    write(tmp_path, 4, "another")
    directory.delete_superseded(str(tmp_path / "checkpoint-3"), None, (tmp_path / "checkpoint-1",))
    assert [c.step for c in store.find(tmp_path)] == [1, 3, 4]
    directory.delete_later(1)
    assert [c.step for c in store.find(tmp_path)] == [1, 4], "those of another run stay"


# -- the checkpoint of a run


def test_only_the_checkpoint_of_the_resume_is_kept_and_only_until_the_run_has_begun(backend, arguments, tmp_path):
    """What was read must not stand for another checkpoint, nor for what is written there later."""
    from oneloop import Trainer

    trainer = Trainer(backend.classifier(), arguments(output_dir=tmp_path / "run", **RUN), train_dataset=rows(32))
    trainer.train()
    opened, checkpointers = [], []

    class Look(Trainer):
        def _load_optimizer_and_scheduler(self, checkpoint):
            checkpointer = self._oneloop.run.checkpointer
            checkpointers.append(checkpointer)
            opened.append(checkpointer.open(checkpoint))
            opened.append(checkpointer.open(checkpoint))
            opened.append(checkpointer.open(tmp_path / "run" / "checkpoint-4"))
            super()._load_optimizer_and_scheduler(checkpoint)

    again = Look(backend.classifier(), arguments(output_dir=tmp_path / "run", **RUN), train_dataset=rows(32))
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    first, second, other = opened
    assert first is second and other is not first and other.path.name == "checkpoint-4"
    assert checkpointers[0].open(tmp_path / "run" / "checkpoint-2") is not first


def test_an_override_that_resumes_from_another_checkpoint(backend, arguments, tmp_path):
    from oneloop import Trainer

    class Another(Trainer):
        def _inner_training_loop(self, *args, resume_from_checkpoint=None, **kwargs):
            another = resume_from_checkpoint and str(tmp_path / "run" / "checkpoint-2")
            return super()._inner_training_loop(*args, resume_from_checkpoint=another, **kwargs)

    given = RUN | {"output_dir": tmp_path / "run"}
    Trainer(backend.classifier(), arguments(**given), train_dataset=rows(32)).train()
    steps = []

    class Steps(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            steps.append(state.global_step)

    again = Another(backend.classifier(), arguments(**given), train_dataset=rows(32), callbacks=[Steps()])
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-4"))
    assert steps == [2, 3]
