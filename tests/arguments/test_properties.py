"""Device, framework, processes, levels and steps."""

import copy
import logging
import pickle
from datetime import timedelta
from types import SimpleNamespace

import pytest

from oneloop.arguments import TrainingArguments
from oneloop.backends import loading
from oneloop.enums import ParallelMode
from oneloop.errors import ArgumentError, UnsupportedError


class Device:
    def __init__(self, framework, spec):
        self.framework, self.spec = framework, spec

    def __str__(self):
        return self.spec or "cpu"


@pytest.fixture
def asked(monkeypatch):
    """Stands in for the frameworks, and lists what they were asked."""
    calls = []

    def load(name):
        def resolve(spec):
            calls.append((name, spec))
            return Device(name, spec)

        return SimpleNamespace(devices=SimpleNamespace(resolve=resolve))

    monkeypatch.setattr(loading, "load", load)
    monkeypatch.setattr(loading, "guess", lambda: "torch")
    return calls


def test_the_device_is_the_frameworks_own(asked):
    args = TrainingArguments("out", device="cuda:1")
    assert asked == []
    assert args.device.spec == "cuda:1" and args.device is args.device
    assert asked == [("torch", "cuda:1")]
    args.device = "cpu"
    assert args.device.spec == "cpu" and args.use_cpu


def test_reading_the_device_settles_the_framework(asked):
    args = TrainingArguments("out")
    assert args.device.framework == "torch"
    args.bind("torch")
    with pytest.raises(ArgumentError, match="first used with torch.*model of paddle"):
        args.bind("paddle")


def test_a_bound_framework_gives_the_device(asked):
    args = TrainingArguments("out")
    args.bind("paddle")
    assert args.device.framework == "paddle"


def test_a_copy_asks_again(asked):
    args = TrainingArguments("out")
    assert args.device is not None
    for copied in (copy.deepcopy(args), pickle.loads(pickle.dumps(args))):
        assert copied == args and copied.device is not args.device


def test_writing_down_asks_no_framework(asked):
    args = TrainingArguments("out")
    assert str(args) and args.to_dict() and args == copy.copy(args)
    assert asked == []


def test_no_framework(monkeypatch):
    monkeypatch.setattr(loading, "guess", lambda: None)
    with pytest.raises(UnsupportedError, match="none is installed"):
        _ = TrainingArguments("out").device


def test_one_device_per_process(asked):
    args = TrainingArguments("out", per_device_train_batch_size=3, per_device_eval_batch_size=5, device="cuda")
    assert (args.n_gpu, args._n_gpu, args.train_batch_size, args.eval_batch_size) == (1, 1, 3, 5)
    assert TrainingArguments("out", device="cpu").n_gpu == 0
    args._n_gpu = 1
    with pytest.raises(UnsupportedError, match="one process per device"):
        args._n_gpu = 4
    assert args.place_model_on_device is True


@pytest.fixture
def launched(monkeypatch):
    def launch(rank, size, local_rank):
        for name, value in {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": 2}.items():
            monkeypatch.setenv(name, str(value))

    return launch


def test_one_process():
    args = TrainingArguments("out")
    assert (args.world_size, args.process_index, args.local_process_index, args.local_rank) == (1, 0, 0, -1)
    assert args.parallel_mode == ParallelMode.NOT_PARALLEL
    assert args.should_log and args.should_save
    with args.main_process_first(desc="maps"):
        pass
    assert args.ddp_timeout_delta == timedelta(seconds=1800)


def test_the_launcher_tells_the_process(launched):
    launched(rank=3, size=4, local_rank=1)
    args = TrainingArguments("out")
    assert (args.world_size, args.process_index, args.local_process_index, args.local_rank) == (4, 3, 1, 1)
    assert args.parallel_mode == ParallelMode.DISTRIBUTED
    assert not args.should_log and not args.should_save
    with pytest.raises(ArgumentError, match="local_rank=0.*launcher"):
        TrainingArguments("out", local_rank=0)


def test_the_first_process_of_another_machine(launched):
    launched(rank=2, size=4, local_rank=0)
    args = TrainingArguments("out")
    assert args.should_log and not args.should_save
    args = TrainingArguments("out", log_on_each_node=False, save_on_each_node=True)
    assert not args.should_log and args.should_save


def test_log_levels(launched, monkeypatch):
    assert TrainingArguments("out", log_level="debug").get_process_log_level() == logging.DEBUG
    monkeypatch.setattr(logging.getLogger("oneloop"), "level", logging.ERROR)
    assert TrainingArguments("out").get_process_log_level() == logging.ERROR
    launched(rank=1, size=2, local_rank=1)
    assert TrainingArguments("out", log_level="debug").get_process_log_level() == logging.WARNING


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ({}, 0),
        ({"warmup_steps": 10}, 10),
        ({"warmup_ratio": 0.1}, 21),
        ({"warmup_ratio": None}, 0),
        ({"warmup_ratio": None, "warmup_steps": 0.1}, 21),
        ({"warmup_steps": 0.1}, 21),
        ({"warmup_steps": 5, "warmup_ratio": 0.1}, 5),
        ({"warmup_steps": 1}, 1),
    ],
)
def test_warmup_steps(given, steps):
    assert TrainingArguments("out", **given).get_warmup_steps(205) == steps
