"""Disks and directories that fail, checkpoints that are damaged, and secrets: nothing is lost and nothing leaks."""

import errno
import json
import logging
import os

import pytest

from oneloop import Trainer
from oneloop.checkpoint import capture, store
from oneloop.errors import ArgumentError, CheckpointError, DiskError
from tests.backends.support import rows
from tests.test_bad_input import one_error

STEPS = {"max_steps": 4, "save_steps": 2, "save_strategy": "steps", "per_device_train_batch_size": 4}


def is_whole(checkpoint):
    return not store.problems(checkpoint)


def leftovers(folder):
    """Half-written files and folders."""
    return [path.name for path in folder.rglob("*") if "partial" in path.name or "replaced" in path.name]


@pytest.fixture
def full_disk(monkeypatch):
    """After `good` checkpoints, a tensor file is half written when the disk is full (or something else happens)."""

    def fill(good=0, error=None):
        plain, written = capture.write, []

        def write(path, tensors, metadata=None):
            if path.name.strip(".").startswith("model"):
                written.append(path)
            if len(written) > good:
                path.write_bytes(b"half of it")
                raise error or OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            return plain(path, tensors, metadata)

        monkeypatch.setattr(capture, "write", write)

    return fill


@pytest.fixture
def output(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def below_a_file(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    return str(tmp_path / "file" / "out")


# -- directories


def test_an_output_directory_below_a_file(backend, arguments, below_a_file):
    trainer = Trainer(backend.classifier(), arguments(below_a_file), train_dataset=rows(), eval_dataset=rows())
    with one_error(CheckpointError, "output_dir", below_a_file, "Not a directory", "another directory"):
        trainer.train()
    assert trainer.state.global_step == 0
    for save in (trainer.save_model, trainer.save_state, lambda: trainer.save_metrics("eval", {"eval_loss": 1.0})):
        with one_error(DiskError, below_a_file, "Not a directory", "another directory"):
            save()


def test_an_evaluation_is_not_lost_over_its_log(backend, arguments, below_a_file, caplog):
    trainer = Trainer(backend.classifier(), arguments(below_a_file), eval_dataset=rows())
    assert trainer.evaluate()["eval_loss"] > 0
    trainer.evaluate()
    assert len([record for record in caplog.records if "log.jsonl" in record.getMessage()]) == 1


@pytest.mark.parametrize("writer", ["tensorboard", "visualdl"])
def test_a_logging_directory_below_a_file(writer, trained, backend, below_a_file):
    pytest.importorskip(writer)
    with one_error(ArgumentError, "logging_dir", below_a_file, 'report_to="none"'):
        trained(backend.classifier(), rows(), logging_dir=below_a_file, report_to=writer, max_steps=1)


# -- saves that fail


@pytest.mark.parametrize("background", [True, False], ids=["in the background", "at once"])
def test_a_full_disk_leaves_the_checkpoint_before_it(background, backend, trained, output, full_disk, caplog):
    full_disk(good=1)
    trainer = trained(backend.classifier(), rows(), save_async=background, save_total_limit=1, **STEPS)
    assert trainer.state.global_step == 4
    assert [path.name for path in output.glob("checkpoint-*")] == ["checkpoint-2"]
    assert is_whole(output / "checkpoint-2") and not leftovers(output)
    failed, unsaved = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "checkpoint-4 was NOT saved" in failed and "No space left" in failed
    assert "checkpoint-2 is unaffected. It was the last save." in failed
    assert "of the 4 steps of this run, those after checkpoint-2 are on no disk" in unsaved
    assert "trainer.save_model(DIR)" in unsaved and "exit status of this process will be 74" in unsaved


def test_another_error_of_the_writer_is_raised(backend, trained, output, full_disk):
    full_disk(good=1, error=RuntimeError("the writer broke"))
    with one_error(CheckpointError, "cannot write a checkpoint", "the writer broke"):
        trained(backend.classifier(), rows(), **STEPS)
    assert is_whole(output / "checkpoint-2") and not (output / "checkpoint-4").exists()
    assert not leftovers(output)


def test_a_checkpoint_is_not_overwritten_by_half_of_another(backend, trained, output, full_disk):
    trained(backend.classifier(), rows(), **STEPS)
    before = store.read_manifest(output / "checkpoint-4")
    full_disk()
    trained(backend.classifier(seed=1), rows(), overwrite_output_dir=True, **STEPS)
    assert store.read_manifest(output / "checkpoint-4") == before
    assert is_whole(output / "checkpoint-2") and is_whole(output / "checkpoint-4") and not leftovers(output)


def test_an_override_of_save_model_that_fails_leaves_nothing(backend, trained, output, caplog):
    class Own(Trainer):
        def save_model(self, output_dir=None, _internal_call=False):
            super().save_model(output_dir)
            if self.state.global_step == 4:
                raise OSError(errno.ENOSPC, "No space left on device")

    trained(backend.classifier(), rows(), trainer_class=Own, **STEPS)
    assert is_whole(output / "checkpoint-2") and not (output / "checkpoint-4").exists()
    assert not leftovers(output) and "NOT saved" in caplog.text


def test_a_saved_model_is_not_overwritten_by_half_of_another(backend, trained, output, full_disk):
    trainer = trained(backend.classifier(), rows(), max_steps=1)
    trainer.save_model()
    before = (output / "model.safetensors").read_bytes()
    trainer.train()
    full_disk()
    with one_error(DiskError, str(output), "No space left", "free some space"):
        trainer.save_model()
    assert (output / "model.safetensors").read_bytes() == before
    assert not leftovers(output)


# -- checkpoints that do not fit


def cut(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])


def change(folder):
    state = json.loads((folder / "trainer_state.json").read_text())
    (folder / "trainer_state.json").write_text(json.dumps(state | {"global_step": 1}))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut, ["model.safetensors has"]),
        (change, ["trainer_state.json has"]),
        (lambda folder: (folder / "optimizer.safetensors").unlink(), ["optimizer.safetensors is missing"]),
        (lambda folder: (folder / "manifest.json").write_text("{"), ["manifest.json"]),
    ],
    ids=["cut", "changed", "incomplete", "without a manifest"],
)
def test_a_damaged_checkpoint(damage, words, backend, trained, output):
    trained(backend.classifier(), rows(), **STEPS)
    damage(output / "checkpoint-4")
    with one_error(CheckpointError, "checkpoint-4 is incomplete or corrupt", "checkpoint-2", *words):
        trained(backend.classifier(), rows(), resume=str(output / "checkpoint-4"), **STEPS)


def test_nothing_but_damaged_checkpoints(backend, trained, output):
    trained(backend.classifier(), rows(), **STEPS)
    for step in (2, 4):
        cut(output / f"checkpoint-{step}")
    with one_error(CheckpointError, "none of the 2 checkpoints", "Remove resume_from_checkpoint"):
        trained(backend.classifier(), rows(), resume=True, **STEPS)


def test_a_checkpoint_of_another_model_or_without_its_course(backend, trained, output):
    trained(backend.classifier(), rows(), save_only_model=True, **STEPS)
    checkpoint = str(output / "checkpoint-4")
    with one_error(CheckpointError, "save_only_model=True", "start a new run"):
        trained(backend.classifier(), rows(), resume=checkpoint, **STEPS)
    with one_error(CheckpointError, "do not match the model", "missing: ", "norm"):
        trained(backend.classifier(norm=True), rows(), resume=checkpoint, **STEPS)


# -- secrets

SECRET = "hf_ThisIsTheToken"


def test_a_token_is_nowhere(backend, arguments, output, caplog, capfd):
    caplog.set_level(logging.DEBUG, logger="oneloop")  # also puts back what log_level sets
    args = arguments(hub_token=SECRET, report_to=["tensorboard", "visualdl"], log_level="debug", **STEPS)
    trainer = Trainer(backend.classifier(), args, train_dataset=rows(), eval_dataset=rows())
    trainer.train()
    trainer.save_model()
    trainer.save_state()
    trainer.save_metrics("eval", trainer.evaluate())
    for text in (repr(args), str(args), str(args.to_dict()), args.to_json_string(), str(args.to_sanitized_dict())):
        assert SECRET not in text and "<HUB_TOKEN>" in text
    files = [path for path in output.rglob("*") if path.is_file()]
    names = {path.name.split(".")[0] for path in files}
    assert {"training_args", "log", "events", "vdlrecords", "trainer_state", "run", "model"} <= names
    for path in files:
        assert SECRET.encode() not in path.read_bytes(), path.name
    assert SECRET not in caplog.text and SECRET not in "".join(capfd.readouterr())
    with pytest.raises(ArgumentError) as caught:
        arguments(hub_token=SECRET, push_to_hub_token="another")
    assert SECRET not in str(caught.value)
