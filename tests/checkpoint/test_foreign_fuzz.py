"""Checkpoints of other programs that an enemy has changed: each is a CheckpointError or a run that can be resumed,
within little memory, and nothing of them is called."""

import os
import tracemalloc

import pytest

pytest.importorskip("torch")

import torch

from oneloop import Trainer, TrainerCallback, TrainingArguments
from oneloop.checkpoint import store
from oneloop.cli import checkpoints as command
from oneloop.converters import other_trainers, torch_archive
from oneloop.converters.stored_tensors import is_covered
from oneloop.errors import CheckpointError
from tests.checkpoint import foreign_files

LARGEST = 48 << 20  # bytes beyond those of a run with the unchanged checkpoint
FEW, MANY = 12, 400


class StopAtOnce(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        control.should_training_stop = True


def resume(path, output):
    rows = [{"x": torch.ones(3) * i, "labels": i % 2} for i in range(8)]
    args = TrainingArguments(str(output), max_steps=4, report_to="none", device="cpu", save_strategy="no")
    trainer = Trainer(foreign_files.Model(), args, train_dataset=rows, callbacks=[StopAtOnce()])
    trainer.train(resume_from_checkpoint=str(path))
    return trainer


@pytest.fixture(scope="module", params=foreign_files.FORMS)
def whole(request, tmp_path_factory):
    return foreign_files.make(request.param, tmp_path_factory.mktemp("whole"))


def test_unchanged_it_is_resumed(whole, tmp_path):
    model, optimizer, _ = foreign_files.trained()
    assert store.problems(whole, True) == []
    trainer = resume(whole, tmp_path / "out")
    assert trainer.state.global_step == 1
    for (name, p), q in zip(trainer.model.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(p, q), name
        assert torch.equal(trainer.optimizer.state[p]["exp_avg"], optimizer.state[q]["exp_avg"]), name


def test_it_is_listed_and_described(whole, capsys):
    (whole.parent / "notes").mkdir(exist_ok=True)
    (whole.parent / "notes" / "latest").write_text("no checkpoint")
    for target, action in ((whole, "verify"), (whole.parent, "list")):
        assert command.run(action, str(target)) == 0
        text = capsys.readouterr().out
        assert "1 checkpoint, " in text and f"{whole.name}, written by " in text
        parts = "weights (4 tensors), optimizer state (exp_avg, exp_avg_sq, step), step"
        whole_files = "weights, optimizer state, schedule, step and log history"
        assert f"carried over: {parts}" in text or f"carried over: {whole_files}" in text
        assert ("the old schedule is not stored" in text) != (", schedule" in text)


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_changed_it_is_refused_or_resumed(whole, tmp_path, count, monkeypatch):
    monkeypatch.setattr(os, "system", lambda *_: pytest.fail("something of the file was called"))
    refused = 0
    tracemalloc.start()
    try:
        for seed in range(count):
            path = foreign_files.copied(whole, tmp_path)
            done = foreign_files.change(path, foreign_files.draws(seed))
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                if seed % 4 and not store.problems(path, False):
                    other_trainers.summary(path)
                    store.problems(path, True)
                else:
                    resume(path, tmp_path / "out")
            except CheckpointError:
                refused += 1
            except Exception as error:
                raise AssertionError(f"seed {seed}, {done}: {type(error).__name__}: {error}") from error
            peak = tracemalloc.get_traced_memory()[1] - before
            assert peak < LARGEST, f"seed {seed}, {done}: {peak} bytes"
    finally:
        tracemalloc.stop()
    assert refused > count // 16


def test_many_names_of_the_same_bytes_are_not_read(tmp_path):
    """A small file whose tensors would take 8 GB."""
    model, optimizer, _ = foreign_files.trained()
    block = torch.zeros(1 << 20)
    weights = model.state_dict() | {f"x{i}": block for i in range(2000)}
    torch.save({"model": weights, "optimizer": optimizer.state_dict(), "step": 1}, tmp_path / "a.ckpt")
    assert (tmp_path / "a.ckpt").stat().st_size < 6 << 20
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="has 2000 tensors that the model does not have, such as x0, x1, "):
            resume(tmp_path / "a.ckpt", tmp_path / "out")
        assert tracemalloc.get_traced_memory()[1] < LARGEST
    finally:
        tracemalloc.stop()


def test_a_pickle_is_not_larger_than_its_file(tmp_path):
    """By the directory of the archive it has 1 GB."""
    torch.save({"a": 1}, tmp_path / "a.ckpt")
    data = bytearray((tmp_path / "a.ckpt").read_bytes())
    entry = data.rindex(b"PK\x01\x02", 0, data.rindex(b"data.pkl"))
    data[entry + 20 : entry + 28] = (1 << 30).to_bytes(4, "little") * 2  # compressed and not
    (tmp_path / "a.ckpt").write_bytes(bytes(data))
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="its data.pkl has 1073741824 bytes"):
            torch_archive.read(tmp_path / "a.ckpt")
        assert tracemalloc.get_traced_memory()[1] < LARGEST
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("axis", [0, 1])
def test_many_pieces_are_compared_in_little_time(axis):
    shape = (60_000, 2) if axis == 0 else (2, 60_000)
    size = (1, 2) if axis == 0 else (2, 1)
    boxes = [((i, 0) if axis == 0 else (0, i), size) for i in range(60_000)]
    assert is_covered(shape, boxes)
    assert not is_covered(shape, [*boxes[:-1], boxes[0]])


def test_pieces_cover_a_tensor_exactly():
    grid = [((i, j), (2, 3)) for i in (0, 2) for j in (0, 3)]
    assert is_covered((4, 6), grid)
    assert not is_covered((4, 6), [*grid[:3], ((1, 3), (2, 3))])
    assert not is_covered((4, 6), grid[:3])
    assert not is_covered((4, 6), [*grid[:3], ((2, 4), (2, 3))])
    assert is_covered((), [((), ())]) and not is_covered((), [])
    assert is_covered((0, 3), [])
