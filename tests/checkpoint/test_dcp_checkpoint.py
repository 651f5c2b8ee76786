"""Runs with checkpoints in files of torch.distributed.checkpoint, FSDP and accelerate, made by the real writers."""

import argparse
import copy
import json
import pickle
import random
import shutil

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import torch.distributed.checkpoint as dcp

from oneloop import Trainer, TrainingArguments
from oneloop.checkpoint import store
from oneloop.converters import dcp_checkpoint, other_trainers, plain_pickle, torch_archive
from oneloop.errors import CheckpointError
from tests.checkpoint.test_deepspeed_checkpoint import Touch
from tests.checkpoint.test_transformers_checkpoint import StopAtOnce
from tests.distributed.launch import ROOT, run_script
from tests.takeover import common

BY_HAND = ROOT / "tests" / "takeover" / "by_hand.py"
WAYS = ("titan", "fsdp2-full")  # scripts/takeover has all of them


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Runs of two processes by torch's FSDP, of which one saved as torchtitan does."""
    folders = {}
    for way in WAYS:
        folders[way] = tmp_path_factory.mktemp(way)
        run_script("torch", 2, folders[way], BY_HAND, way)
    return folders


@pytest.fixture
def saved(written, tmp_path):
    return shutil.copytree(written["titan"] / "saved", tmp_path / "step-20")


def resume(path, output, callbacks=(), model=None, **given):
    shared = common.SHARED | {"save_strategy": "no", "per_device_train_batch_size": common.BATCH} | given
    args = TrainingArguments(output_dir=str(output), device="cpu", **shared)
    trainer = Trainer(model or common.model(), args, train_dataset=common.rows(common.BATCH), callbacks=list(callbacks))
    trainer.train(resume_from_checkpoint=str(path))
    return trainer


@pytest.mark.parametrize("way", WAYS)
def test_a_run_ends_as_it_would_have_there(written, tmp_path, way):
    losses = json.loads((written[way] / "there.json").read_text())
    trainer = resume(written[way] / "saved", tmp_path)
    found = common.losses(trainer)
    assert len(found) == 20
    assert max(abs(a - b) for a, b in zip(found, losses[20:])) <= 1e-5
    assert losses[20] - losses[39] > 0.3


def test_the_state_is_what_torch_loads(saved, tmp_path):
    trainer = resume(saved, tmp_path, [StopAtOnce()])
    assert trainer.state.global_step == 20 and trainer.lr_scheduler.last_epoch == 20
    weights = {n: torch.empty_like(v) for n, v in trainer.model.state_dict().items()}
    moments = {f"optimizer.state.{n}.exp_avg": torch.empty_like(p) for n, p in trainer.model.named_parameters()}
    dcp.load({**weights, **moments}, checkpoint_id=saved, no_dist=True)
    own = trainer.model.state_dict()
    assert all(torch.equal(own[n], v) for n, v in weights.items())
    state = trainer.optimizer.state
    for name, p in trainer.model.named_parameters():
        assert torch.equal(state[p]["exp_avg"], moments[f"optimizer.state.{name}.exp_avg"]), name
        assert state[p]["step"] == 20
    assert [g["weight_decay"] for g in trainer.optimizer.param_groups] == [0.05, 0.0]


def test_boxes_of_pieces(saved):
    """A part of a tensor that processes wrote in pieces, without the rest."""
    state = dcp_checkpoint.opened(saved)
    assert any(len(tensor.pieces) == 2 for tensor in state.weights.values())
    for name, tensor in state.weights.items():
        value = tensor.whole()
        for first in range(0, tensor.shape[0] + 1, 5):
            box = (slice(first, tensor.shape[0]), *(slice(n // 3, n - 1) for n in tensor.shape[1:]))
            assert (tensor.box(box) == value[box]).all(), name


def test_what_is_missing_is_said(saved, tmp_path, caplog):
    resume(saved, tmp_path, [StopAtOnce()])
    (text,) = [r.getMessage() for r in caplog.records if r.name == "oneloop.checkpoint.from_other_trainers"]
    assert "written by torch.distributed.checkpoint: " in text
    assert "dataloader of the old run is not used" in text


def test_without_a_schedule(tmp_path, caplog):
    """The step is the optimizer's, and the schedule is this run's."""
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    for _ in range(3):
        optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    dcp.save(state, checkpoint_id=tmp_path / "saved", no_dist=True)
    trainer = resume(tmp_path / "saved", tmp_path / "out", [StopAtOnce()])
    assert trainer.state.global_step == trainer.lr_scheduler.last_epoch == 3
    assert all(torch.equal(a, b) for a, b in zip(trainer.model.state_dict().values(), model.state_dict().values()))
    moments = [optimizer.state[p]["exp_avg"] for p in model.parameters()]
    assert all(
        torch.equal(trainer.optimizer.state[p]["exp_avg"], m) for p, m in zip(trainer.model.parameters(), moments)
    )
    assert "the old schedule is not stored, so this run's is set to its step" in caplog.text


def test_weights_alone_are_no_run(tmp_path):
    dcp.save({"model": common.model().state_dict()}, checkpoint_id=tmp_path / "saved", no_dist=True)
    with pytest.raises(CheckpointError, match="it has no state of an optimizer, only weights"):
        resume(tmp_path / "saved", tmp_path / "out")


def test_a_folder_of_accelerate(tmp_path):
    """What accelerator.save_state writes without FSDP is whole; its optimizer's state has numbers."""
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = common.model()
    groups = [[p for n, p in model.named_parameters() if ("norm" in n) is still] for still in (False, True)]
    optimizer = torch.optim.AdamW([{"params": groups[0]}, {"params": groups[1], "weight_decay": 0.0}], lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    for _ in range(2):
        for p in model.parameters():
            p.grad = torch.randn(p.shape)
        optimizer.step()
        schedule.step()
    accelerator.save_state(str(tmp_path / "saved"))
    assert other_trainers.writer(tmp_path / "saved") == "accelerate"
    trainer = resume(tmp_path / "saved", tmp_path / "out", [StopAtOnce()])
    assert trainer.state.global_step == 2 and trainer.lr_scheduler.last_epoch == 2
    for (name, p), q in zip(trainer.model.named_parameters(), model.parameters()):
        assert torch.equal(p, q), name
        assert torch.equal(trainer.optimizer.state[p]["exp_avg"], optimizer.state[q]["exp_avg"]), name


def test_an_adapter_alone(tmp_path):
    """As accelerate saves it for transformers' Trainer with FSDP: by the names of the adapter's own files."""
    peft = pytest.importorskip("peft")
    model = common.model("lora")
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=0.5)
    for p in trained.values():
        p.grad = torch.randn(p.shape)
    optimizer.step()
    (tmp_path / "saved").mkdir()
    torch.save(peft.get_peft_model_state_dict(model), tmp_path / "saved" / "pytorch_model_fsdp.bin")
    states = {n: optimizer.state[p] for n, p in trained.items()}
    groups = [optimizer.param_groups[0] | {"params": list(trained)}]
    torch.save({"state": states, "param_groups": groups}, tmp_path / "saved" / "optimizer.bin")
    trainer = resume(tmp_path / "saved", tmp_path / "out", [StopAtOnce()], common.model("lora"))
    for name, p in trainer.model.named_parameters():
        assert torch.equal(p, dict(model.named_parameters())[name]), name
        assert name not in trained or torch.equal(trainer.optimizer.state[p]["exp_avg"], states[name]["exp_avg"]), name


# -- what must not work


def test_missing_and_short_files_are_named(saved, tmp_path):
    file = saved / "__1_0.distcp"
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    with pytest.raises(CheckpointError, match=r"__1_0.distcp has \d+ bytes, and .* would be beyond its end"):
        resume(saved, tmp_path / "out")
    file.unlink()
    with pytest.raises(CheckpointError, match="step-20/__1_0.distcp is missing"):
        resume(saved, tmp_path / "out")


def changed(saved, change):
    """Write the metadata again after a change of its objects."""
    metadata = dcp.FileSystemReader(saved).read_metadata()
    change(metadata)
    with open(saved / ".metadata", "wb") as file:
        pickle.dump(metadata, file)


def elsewhere(name):
    def change(metadata):
        info = metadata.storage_data
        key = next(iter(info))
        info[key] = copy.copy(info[key])
        info[key].relative_path = name

    return change


def gap(metadata):
    next(f for f in metadata.state_dict_metadata.values() if len(getattr(f, "chunks", ())) == 2).chunks.pop()


def overlap(metadata):
    facts = next(f for f in metadata.state_dict_metadata.values() if len(getattr(f, "chunks", ())) == 2)
    facts.chunks[1].offsets = facts.chunks[0].offsets


def larger(metadata):
    next(f for f in metadata.state_dict_metadata.values() if hasattr(f, "chunks")).size = torch.Size([2**40, 2**40])


def beyond(metadata):
    info = metadata.storage_data
    key = next(iter(info))
    info[key] = copy.copy(info[key])
    info[key].offset = 2**60


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (elsewhere("../secret"), "names a file that is not in its folder"),
        (elsewhere("/etc/passwd"), "names a file that is not in its folder"),
        (elsewhere("."), "names a file that is not in its folder"),
        (gap, "chunks that are not the whole tensor"),
        (overlap, "chunks that are not the whole tensor"),
        (larger, "chunks that are not the whole tensor"),
        (beyond, "beyond its end"),
    ],
)
def test_metadata_that_does_not_fit_is_refused(saved, tmp_path, change, words):
    changed(saved, change)
    with pytest.raises(CheckpointError, match=words):
        resume(saved, tmp_path / "out")


def test_links_out_of_it_are_not_read(saved, tmp_path):
    shutil.move(saved / "__0_0.distcp", tmp_path / "elsewhere")
    (saved / "__0_0.distcp").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="is a link to a file outside of the checkpoint"):
        resume(saved, tmp_path / "out")


def test_nothing_of_the_metadata_is_executed(saved, tmp_path):
    trap = tmp_path / "executed"
    changed(saved, lambda metadata: setattr(metadata, "storage_meta", Touch(trap)))
    assert store.problems(saved) == []
    (saved / ".metadata").write_bytes(pickle.dumps(Touch(trap)))
    with pytest.raises(CheckpointError, match="is not the metadata"):
        resume(saved, tmp_path / "out")
    assert not trap.exists()


@pytest.mark.parametrize("name", ["pytorch_model_fsdp_0_rank0.bin", "optimizer_1.bin"])
def test_what_cannot_be_put_together_is_refused(written, tmp_path, name):
    path = shutil.copytree(written["fsdp2-full"] / "saved", tmp_path / "saved")
    (path / name).write_bytes(b"")
    with pytest.raises(CheckpointError, match="a file of one process|several models or optimizers"):
        resume(path, tmp_path / "out")


def test_changed_bytes_of_the_metadata(saved):
    """A CheckpointError, or the metadata of something; never another exception, and never a large allocation."""
    whole, draw = (saved / ".metadata").read_bytes(), random.Random(5)
    read = 0
    for _ in range(40):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        (saved / ".metadata").write_bytes(bytes(data))
        try:
            state = dcp_checkpoint.tree(saved)
            read += bool(state)
        except CheckpointError:
            pass
    assert read < 40
    for length in range(0, len(whole), 4999):
        (saved / ".metadata").write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            dcp_checkpoint.tree(saved)


def test_changed_bytes_of_an_archive(tmp_path):
    value = {"a": torch.arange(6.0).reshape(2, 3).T, "b": [torch.ones(2, dtype=torch.bfloat16)], "c": torch.Size([2])}
    torch.save(value, tmp_path / "file")
    whole, draw = (tmp_path / "file").read_bytes(), random.Random(7)
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        (tmp_path / "file").write_bytes(bytes(data))
        try:
            found = torch_archive.read(tmp_path / "file")
        except CheckpointError:
            continue
        for tensor in found.values() if isinstance(found, dict) else ():
            if hasattr(tensor, "whole"):
                tensor.whole()


@pytest.mark.parametrize(
    ("shape", "strides", "words"),
    [
        ((2**40,), (1,), "has 24 bytes"),
        ((3, 3), (0, 0), "has 24 bytes"),
        ((2**31, 2**31, 2**31), (0, 0, 0), "has 24 bytes"),
        ((2, -1), (1, 1), "shape is not one"),
        ((2,), (2**50,), "strides are none"),
        ((2, 3), (3,), "strides are none"),
        ((2,) * 40, (1,) * 40, "shape is not one"),
    ],
)
def test_tensors_larger_than_their_file(tmp_path, shape, strides, words, monkeypatch):
    torch.save(torch.arange(6.0), tmp_path / "file")
    original = torch_archive._Archive._tensor

    def other(self, storage, dtype, offset, given, steps):
        return original(self, storage, dtype, offset, shape, strides)

    monkeypatch.setattr(torch_archive._Archive, "_tensor", other)
    with pytest.raises(CheckpointError, match=words):
        torch_archive.read(tmp_path / "file")


def test_unknown_objects_keep_their_plain_data():
    data = pickle.dumps({"x": 1}, 4)
    extras = plain_pickle.Extras({}, lambda key: None)
    assert plain_pickle.loads(data, extras=extras) == {"x": 1}
    found = plain_pickle.loads(pickle.dumps(argparse.Namespace(step=3, inner=[1, {"a": 2}]), 4), extras=extras)
    assert found.name == "argparse.Namespace" and found.get("step") == 3 and found.get("inner") == [1, {"a": 2}]
    assert plain_pickle.loads(pickle.dumps({1, 2}, 4), extras=extras).name == "builtins.set"
    assert plain_pickle.loads(pickle.dumps({(1, 2): 3, "a": 1}, 4), extras=extras) == {"a": 1}
    assert plain_pickle.loads(pickle.dumps([2**100, 1], 4), extras=extras)[1] == 1
