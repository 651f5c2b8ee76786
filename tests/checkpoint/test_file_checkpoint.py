"""Runs in one file: as Lightning writes its `.ckpt` (tests/takeover has the real writer), and as scripts do."""

import contextlib
import os
import pickle
import random
import shutil

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from oneloop import Trainer, TrainingArguments
from oneloop.checkpoint import store
from oneloop.cli import checkpoints as command
from oneloop.converters import file_checkpoint, other_trainers
from oneloop.errors import CheckpointError
from tests.checkpoint.test_deepspeed_checkpoint import Touch
from tests.checkpoint.test_transformers_checkpoint import StopAtOnce
from tests.takeover import common


class Module(nn.Module):
    """As a LightningModule: the model, and something beside it."""

    def __init__(self):
        super().__init__()
        self.model = common.model()
        self.register_buffer("seen", torch.zeros(3))


def state(steps=3, epochs=None):
    """What Lightning stores after some updates, and the module with its optimizer."""
    torch.manual_seed(1)
    module = Module()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    for _ in range(steps):
        for p in module.parameters():
            p.grad = torch.randn(p.shape)
        optimizer.step()
        schedule.step()
    current = {"ready": 4, "completed": 4, "started": 4, "processed": 4}
    batches = {"total": {"completed": 2 * steps}, "current": current, "is_last_batch": False}
    epoch = {"current": {"completed": 1, "ready": 2}}
    loops = {"fit_loop": {"epoch_progress": epoch, "epoch_loop.batch_progress": batches}}
    schedule.last_epoch = steps if epochs is None else epochs
    found = {
        "epoch": 1,
        "global_step": steps,
        "pytorch-lightning_version": "2.6.6",
        "state_dict": module.state_dict(),
        "loops": loops,
        "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_path": "x"}},
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [schedule.state_dict()],
        "MixedPrecision": {"scale": 1024.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 7},
        "hyper_parameters": {"lr": 0.01},
    }
    return found, module, optimizer


@pytest.fixture
def saved(tmp_path):
    found, module, optimizer = state()
    torch.save(found, tmp_path / "epoch=1-step=3.ckpt")
    return tmp_path / "epoch=1-step=3.ckpt", module, optimizer


def resume(path, output, model=None, data=None, **given):
    shared = common.SHARED | {"save_strategy": "no", "per_device_train_batch_size": common.BATCH} | given
    args = TrainingArguments(output_dir=str(output), device="cpu", **shared)
    data = common.rows(common.BATCH) if data is None else data
    trainer = Trainer(model or common.model(), args, train_dataset=data, callbacks=[StopAtOnce()])
    trainer.train(resume_from_checkpoint=str(path))
    return trainer


def check_equal(trainer, model, optimizer):
    own, stored = dict(trainer.model.named_parameters()), dict(model.named_parameters())
    assert set(own) == set(stored)
    for name, p in own.items():
        assert torch.equal(p, stored[name]), name
        for key, value in optimizer.state[stored[name]].items():
            assert torch.equal(trainer.optimizer.state[p][key], value), (name, key)


def test_the_model_of_a_lightning_module(saved, tmp_path, caplog):
    """Without the prefix of its names, and with moments, schedule and step."""
    path, module, optimizer = saved
    trainer = resume(path, tmp_path / "out")
    check_equal(trainer, module.model, optimizer)
    assert trainer.state.global_step == trainer.lr_scheduler.last_epoch == 3
    (text,) = [r.getMessage() for r in caplog.records if r.name == "oneloop.checkpoint.from_other_trainers"]
    assert "written by the Trainer of Lightning 2.6.6 (one file)" in text
    assert (
        "the state of its callbacks (ModelCheckpoint) is not used" in text and "schedule and step are restored" in text
    )
    assert "Lightning stores neither losses nor random states" in text


def test_the_whole_module(saved, tmp_path):
    path, module, optimizer = saved
    check_equal(resume(path, tmp_path / "out", Module()), module, optimizer)


def test_the_folder_of_a_divided_module(saved, tmp_path):
    """Names in the optimizer have the prefix too; its groups have other options."""
    path, module, optimizer = saved
    found, names = torch.load(path, weights_only=True), {id(p): n for n, p in module.named_parameters()}
    states = {names[id(p)]: state for p, state in optimizer.state.items()}
    options = found["optimizer_states"][0]["param_groups"][0] | {"lr": 0.5, "params": list(states)}
    tree = {"state_dict": found.pop("state_dict"), "optimizer_0": {"state": states, "param_groups": [options]}}
    del found["optimizer_states"]
    folder = tmp_path / "epoch=1-step=3.folder.ckpt"
    dcp.save(tree, checkpoint_id=folder, no_dist=True)
    torch.save(found, folder / "meta.pt")
    assert store.problems(folder, True) == []
    check_equal(resume(folder, tmp_path / "out"), module.model, optimizer)
    data = bytearray((folder / "__0_0.distcp").read_bytes())
    data[data.index(module.model.lm_head.weight.detach().numpy().tobytes())] ^= 1
    (folder / "__0_0.distcp").write_bytes(bytes(data))
    assert store.problems(folder, False) == []
    assert "__0_0.distcp has changed since it was written" in store.problems(folder, True)[0]
    dcp.save(tree | {"optimizer_1": tree["optimizer_0"]}, checkpoint_id=folder, no_dist=True)
    assert "runs with several are not read" in store.problems(folder)[0]


def test_the_same_weights_twice_are_not_guessed(saved, tmp_path):
    found = torch.load(saved[0], weights_only=True)
    found["state_dict"] |= {n.replace("model.", "teacher.", 1): v for n, v in found["state_dict"].items()}
    torch.save(found, saved[0])
    with pytest.raises(CheckpointError, match=r"such weights 2 times, under model\., teacher\."):
        resume(saved[0], tmp_path / "out")


def test_names_of_compiled_modules(saved, tmp_path):
    found = torch.load(saved[0], weights_only=True)
    found["state_dict"] = {n.replace("model.", "model._orig_mod.", 1): v for n, v in found["state_dict"].items()}
    torch.save(found, saved[0])
    check_equal(resume(saved[0], tmp_path / "out"), saved[1].model, saved[2])


def test_the_loss_scale(saved):
    assert other_trainers.named_state(saved[0]).scaler["scale"] == 1024.0
    assert other_trainers.named_state(saved[0]).scaler["growth_interval"] == 7


def test_the_position_in_data_without_a_length(saved):
    """Batches are counted there, and an update had two."""
    assert other_trainers.position(saved[0]) == (1, 2)


def test_a_schedule_by_epochs_is_set_to_the_step(tmp_path, caplog):
    torch.save(state(epochs=1)[0], tmp_path / "last.ckpt")
    trainer = resume(tmp_path / "last.ckpt", tmp_path / "out")
    assert trainer.lr_scheduler.last_epoch == 3
    assert "the schedule made 1 steps in 3 updates" in caplog.text


def test_a_file_of_a_script(tmp_path, caplog):
    _, module, optimizer = state()
    torch.save(
        {"model": module.model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": 3}, tmp_path / "ckpt.pt"
    )
    check_equal(resume(tmp_path / "ckpt.pt", tmp_path / "out"), module.model, optimizer)
    assert "written by torch.save (one file)" in caplog.text
    assert "the old schedule is not stored" in caplog.text


@pytest.mark.parametrize(
    ("left_out", "words"),
    [
        ("optimizer_states", r"no state of an optimizer, only weights \(save_weights_only=True"),
        ("state_dict", "has no weights"),
    ],
)
def test_what_a_run_needs(saved, tmp_path, left_out, words):
    found = torch.load(saved[0], weights_only=True)
    del found[left_out]
    torch.save(found, saved[0])
    with pytest.raises(CheckpointError, match=words):
        resume(saved[0], tmp_path / "out")


def test_several_optimizers_are_refused(saved, tmp_path):
    found = torch.load(saved[0], weights_only=True)
    found["optimizer_states"] *= 2
    torch.save(found, saved[0])
    with pytest.raises(CheckpointError, match="runs with several are not read"):
        resume(saved[0], tmp_path / "out")


def test_the_folder_of_files_is_no_checkpoint(saved, tmp_path):
    shutil.copy(saved[0], saved[0].with_name("a.ckpt"))
    os.utime(saved[0].with_name("a.ckpt"), (1, 1))
    with pytest.raises(CheckpointError, match=r"checkpoints of Lightning. Pass one of them, such as .*step=3\.ckpt"):
        resume(saved[0].parent, tmp_path / "out")


def test_listed_and_verified(saved, tmp_path, capsys):
    for target in (saved[0], saved[0].parent):
        assert command.run("verify", str(target)) == 0
        text = capsys.readouterr().out
        assert "1 checkpoint, " in text and "epoch=1-step=3.ckpt     3" in text and "foreign" in text
    data = bytearray(saved[0].read_bytes())
    data[len(data) // 2] ^= 1
    saved[0].write_bytes(bytes(data))
    assert command.run("verify", str(saved[0])) == 1
    assert "has changed since it was written" in capsys.readouterr().out


def test_prune_leaves_them(saved, capsys):
    shutil.copy(saved[0], saved[0].with_name("last.ckpt"))
    assert command.run("prune", str(saved[0].parent), keep=1, others=True) == 0
    assert saved[0].exists() and saved[0].with_name("last.ckpt").exists()


def test_nothing_of_the_file_is_executed(saved, tmp_path):
    trap = tmp_path / "executed"
    found = torch.load(saved[0], weights_only=True)
    found["hyper_parameters"] = Touch(trap)
    torch.save(found, saved[0])
    assert store.problems(saved[0]) == []
    saved[0].write_bytes(pickle.dumps(Touch(trap)))
    with pytest.raises(CheckpointError, match="is not a directory"):
        resume(saved[0], tmp_path / "out")
    assert not trap.exists()


def test_changed_bytes(tmp_path):
    """A CheckpointError, or a state; never another exception."""
    found = state()[0]
    small = {name: value for name, value in found["state_dict"].items() if name.endswith("norm.weight")}
    optimizer = {"state": {0: found["optimizer_states"][0]["state"][0]}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    path, draw = tmp_path / "last.ckpt", random.Random(3)
    torch.save(found | {"state_dict": small, "optimizer_states": [optimizer]}, path)
    assert file_checkpoint.problems(path) == []
    whole, wrong = path.read_bytes(), 0
    begin = whole.index(b"data.pkl")
    for i in range(300):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            data[draw.randrange(begin, begin + 3000) if i % 2 else draw.randrange(len(data))] = draw.randrange(256)
        path.write_bytes(bytes(data))
        wrong += bool(file_checkpoint.problems(path))
        with contextlib.suppress(CheckpointError):
            file_checkpoint.position(path)
    assert wrong > 100
