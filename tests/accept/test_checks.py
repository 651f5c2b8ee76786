"""Each check of the acceptance kit passes here, and fails when the feature that it is about is broken."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from oneloop import Trainer
from oneloop.accept import Failed, NotRun
from oneloop.accept.checks import BY_NAME, CHECKS, precision, processes
from oneloop.accept.place import Place
from oneloop.backends.torch import engine
from oneloop.checkpoint.checkpointer import Checkpointer
from tests.backends.support import DEVICE, names

ROOT = Path(__file__).resolve().parents[2]
HERE = [name for name in ("mindspore", "torch", "paddle") if name in names()]

pytestmark = pytest.mark.skipif(DEVICE != "cpu" or "torch" not in names(), reason="PyTorch is not installed")


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path, "torch", "cpu")


def fails(place, name, words):
    with pytest.raises(Failed, match=words):
        BY_NAME[name].run(place)


def test_every_check_has_a_test_that_breaks_it():
    text = Path(__file__).read_text(encoding="utf-8") + (ROOT / "tests/device/on_device/test_accept.py").read_text()
    assert [check.name for check in CHECKS if f'fails(place, "{check.name}"' not in text] == []


@pytest.mark.parametrize("framework", HERE)
@pytest.mark.parametrize("name", ["train", "accumulation"])
def test_basic_checks_pass_on_every_framework(tmp_path, framework, name):
    assert BY_NAME[name].run(Place(tmp_path, framework, "cpu"))


def test_a_run_that_does_not_learn(place, monkeypatch):
    monkeypatch.setattr(engine, "step_optimizer", lambda optimizer: None)
    fails(place, "train", "the loss does not fall")


def scaled(monkeypatch, factor):
    compute = Trainer.compute_loss

    def wrong(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return compute(self, model, inputs, False, num_items_in_batch) * factor(self)

    monkeypatch.setattr(Trainer, "compute_loss", wrong)


def test_a_loss_that_is_not_that_of_the_model(place, monkeypatch):
    scaled(monkeypatch, lambda trainer: 1.01)
    fails(place, "train", "differ from those of the reference")


def test_accumulation_that_weighs_wrongly(place, monkeypatch):
    scaled(monkeypatch, lambda trainer: 1.02 if trainer.args.gradient_accumulation_steps > 1 else 1.0)
    fails(place, "accumulation", "losses differ by")


def test_bf16(place, monkeypatch):
    assert BY_NAME["bf16"].run(place)["largest difference from float32"] > 0
    monkeypatch.setattr(torch, "autocast", lambda *args, **kwargs: contextlib.nullcontext())
    fails(place, "bf16", "nothing is computed in half precision")


def test_fp16_is_for_accelerators(place):
    with pytest.raises(NotRun, match="fp16 is for accelerators"):
        precision.fp16(place)


def test_saves(place, monkeypatch):
    figures = BY_NAME["save_stall"].run(Place(place.folder / "good", "torch", "cpu"))
    assert figures["blocked, ms"] < figures["written at once, ms"]
    monkeypatch.setattr(Checkpointer, "in_background", property(lambda self: False))
    fails(place, "save_stall", "a save in the background blocks training")


def test_lora(place, monkeypatch):
    peft = pytest.importorskip("peft")
    assert BY_NAME["lora"].run(Place(place.folder / "good", "torch", "cpu"))["tensors saved"] == 8
    make = peft.get_peft_model

    def unfrozen(*args):
        return make(*args).requires_grad_(True)

    monkeypatch.setattr(peft, "get_peft_model", unfrozen)
    fails(place, "lora", "weights of the base model have changed: base_model")


@pytest.mark.parametrize("name", ["ddp", "stage1", "stage2", "stage3"])
def test_one_device_is_said(tmp_path, name):
    with pytest.raises(NotRun, match="one device"):
        BY_NAME[name].run(Place(tmp_path, "torch", "cuda", 1))


def test_what_is_not_installed_is_said(place, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in ("lora", "trl_sft"):
        with pytest.raises(NotRun, match="not installed: transformers, .*pip install transformers"):
            BY_NAME[name].run(place)


@pytest.mark.parametrize("name", ["ddp", "stage3", "lora", "trl_sft", "plan", "compile"])
def test_what_exists_for_pytorch_only_is_said(tmp_path, name):
    with pytest.raises(NotRun, match="exists for torch only"):
        BY_NAME[name].run(Place(tmp_path, "paddle", "cpu"))


def test_the_cpu_does_not_measure_memory(place):
    with pytest.raises(NotRun, match="does not measure its peak"):
        BY_NAME["plan"].run(place)


# -- in processes of their own

BREAK = """
import os
if os.environ.get("ACCEPT_BREAKS") == "resume":
    from oneloop.optim.scheduler import Scheduler
    Scheduler.load_state_dict = lambda self, state: None
if os.environ.get("ACCEPT_BREAKS") == "average":
    from torch.nn.parallel import DistributedDataParallel as DDP
    forward = DDP.forward

    def alone(self, *args, **kwargs):
        self.require_backward_grad_sync = False
        return forward(self, *args, **kwargs)

    DDP.forward = alone
"""


@pytest.fixture
def broken(monkeypatch, tmp_path):
    """Child processes begin with one feature broken."""

    def begin(name):
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken" / "sitecustomize.py").write_text(BREAK)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'broken'}:{ROOT}")
        monkeypatch.setenv("ACCEPT_BREAKS", name)

    return begin


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.mark.slow
@pytest.mark.parametrize("framework", HERE)
def test_kill_and_resume(tmp_path, framework):
    assert BY_NAME["kill_resume"].run(Place(tmp_path, framework, "cpu"))["files compared"] >= 2


@pytest.mark.slow
def test_a_resume_that_forgets_its_schedule(place, broken):
    broken("resume")
    fails(place, "kill_resume", "other bytes: model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp", "stage1", "stage2", "stage3"])
def test_processes(place, name):
    assert BY_NAME[name].run(place)["processes"] == 2


@pytest.mark.slow
def test_processes_that_do_not_average_their_gradients(place, broken):
    broken("average")
    fails(place, "ddp", "losses differ from those of one process")


@pytest.mark.parametrize(("name", "left"), [("stage1", {}), ("stage2", {}), ("stage3", {"sharding": "stage1"})])
@pytest.mark.slow
def test_sharding_that_does_not_happen(place, monkeypatch, name, left):
    run = Place.script

    def without(self, module, options, *more, **named):
        kept = {key: value for key, value in options["arguments"].items() if key != "sharding"}
        return run(self, module, options | {"arguments": kept | left}, *more, **named)

    monkeypatch.setattr(Place, "script", without)
    if name == "stage1":
        fails(place, "stage1", "100 % of the optimizer state")
    elif name == "stage2":
        fails(place, "stage2", "100 % of the optimizer state")
    else:
        fails(place, "stage3", "100 % of the weights")


@pytest.mark.slow
def test_fewer_processes_than_asked_for(place, monkeypatch):
    run = Place.script
    monkeypatch.setattr(Place, "script", lambda self, module, options, launcher: run(self, module, options))
    with pytest.raises(Failed, match="1 processes trained together instead of 2"):
        processes.ddp(place)


@pytest.mark.slow
def test_trl(place, monkeypatch):
    pytest.importorskip("trl")
    assert BY_NAME["trl_sft"].run(place)["last loss"] < 3
    monkeypatch.setattr(Place, "program", lambda self, command, *words: self._raise_for(self._run(*words)))
    fails(place, "trl_sft", "TRL's trainer is not oneloop's")


@pytest.mark.slow
def test_compile(place, monkeypatch):
    assert BY_NAME["compile"].run(place)["graphs"] >= 1
    monkeypatch.setattr(torch, "compile", lambda model, *args, **kwargs: model)
    fails(place, "compile", "nothing was compiled")


@pytest.mark.slow
def test_on_the_simulated_device():
    """In a process that has it from its start."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/device/on_device/test_accept.py"]
    environment = os.environ | {"ON_DEVICE": "npu", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout[-3000:]
