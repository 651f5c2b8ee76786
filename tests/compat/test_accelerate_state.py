"""The accelerator of a Trainer: accelerate's state objects behind it, and its names on every framework."""

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from oneloop import Trainer, TrainingArguments
from oneloop.compat import accelerate_plugins, accelerate_state
from oneloop.compat.accelerator import Accelerator, _part
from tests.backends.support import rows
from tests.internals import strategy_of

accelerate = pytest.importorskip("accelerate")


@pytest.fixture
def trainer(backend, trained):
    return trained(backend.classifier(), rows(8), max_steps=1, per_device_train_batch_size=2)


def test_the_process(backend, trainer):
    accelerator = trainer.accelerator
    assert (accelerator.num_processes, accelerator.process_index, accelerator.local_process_index) == (1, 0, 0)
    assert accelerator.is_main_process and accelerator.is_local_main_process and accelerator.is_last_process
    assert accelerator.distributed_type == "NO" and accelerator.mixed_precision == "no"
    assert accelerator.device == trainer.args.device
    assert accelerator.state.num_processes == 1 and accelerator.state.mixed_precision == "no"
    assert accelerator.state.deepspeed_plugin is None
    assert accelerator.parallelism_config is None and not accelerator.is_fsdp2


def test_options_of_loaders_follow_the_argument(trainer):
    config = trainer.args.accelerator_config
    config.even_batches, config.dispatch_batches, config.non_blocking = False, False, False
    accelerator = trainer.accelerator
    assert accelerator.dataloader_config is config
    assert (accelerator.even_batches, accelerator.dispatch_batches, accelerator.non_blocking) == (False, False, False)


def test_weights(backend, trainer):
    found = trainer.accelerator.get_state_dict(trainer.model)
    wanted = backend.weights(trainer.model)
    assert set(wanted) <= set(found)
    for name, value in wanted.items():
        np.testing.assert_array_equal(backend.numpy(found[name]), value)


def test_tied_weights_have_all_their_names(backend, arguments, monkeypatch):
    trainer = Trainer(backend.classifier(), arguments())
    strategy = strategy_of(trainer)
    monkeypatch.setattr(strategy, "model_tensors", lambda model: ({"first": 1, "other": 2}, {"second": "first"}))
    assert trainer.accelerator.get_state_dict(trainer.model) == {"first": 1, "other": 2, "second": 1}


def test_samples_that_a_loader_has_repeated_are_left_out(backend, arguments, monkeypatch):
    class OfTwo(Accelerator):
        num_processes = 2
        gradient_state = SimpleNamespace(in_dataloader=True, end_of_dataloader=False, remainder=3)

    accelerator, values = OfTwo(Trainer(backend.classifier(), arguments())), {"labels": np.arange(8)}
    monkeypatch.setattr(accelerate_state, "is_imported", lambda: True)
    assert accelerator.gather_for_metrics(values)["labels"].tolist() == list(range(8))
    accelerator.gradient_state.end_of_dataloader = True  # three samples are left for the last batch of all processes
    assert accelerator.gather_for_metrics(values)["labels"].tolist() == [0, 1, 2]


def test_another_model_is_placed_and_the_own_is_the_wrapped_one(backend, trainer):
    other = backend.classifier()
    assert trainer.accelerator.prepare_model(other, evaluation_mode=True) is not trainer.model_wrapped
    assert trainer.accelerator.prepare_model(trainer.model) is trainer.model_wrapped


def test_split_between_processes(trainer):
    with trainer.accelerator.split_between_processes([1, 2, 3]) as part:
        assert part == [1, 2, 3]
    assert [_part(list(range(7)), rank, 3, False) for rank in range(3)] == [[0, 1, 2], [3, 4], [5, 6]]
    assert [_part((1, 2, 3), rank, 2, True) for rank in range(2)] == [(1, 2), (3, 3)]
    assert _part({"a": [1, 2, 3]}, 1, 2, False) == {"a": [3]}
    assert _part(np.arange(3), 1, 2, True).tolist() == [2, 2]


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


# Each in its own process: the states are shared by a process, and initialised once.
STATES = """
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from oneloop import Trainer, TrainingArguments
from oneloop.compat.check import redirect
TrainingArguments("out", use_cpu=True)
assert not PartialState._shared_state  # a script of oneloop's own
redirect("transformers")
args = TrainingArguments("out", use_cpu=True, report_to="none", bf16=True)
assert PartialState._shared_state and args.distributed_state.device.type == "cpu"
assert not AcceleratorState._shared_state
trainer = Trainer(torch.nn.Linear(2, 2), args)
print(AcceleratorState().mixed_precision, type(trainer.accelerator.state).__name__)
print(isinstance(trainer.accelerator.gradient_state, GradientState), AcceleratorState().deepspeed_plugin)
Trainer(torch.nn.Linear(2, 2), TrainingArguments("out", use_cpu=True, report_to="none"))
print(AcceleratorState().mixed_precision)

# Two processes that shard the model, and then one that does not.
from types import SimpleNamespace
from oneloop.compat import accelerate_plugins as plugins, accelerate_state
alone, plugins.world = plugins.world, lambda: SimpleNamespace(size=2)
args = TrainingArguments("out", use_cpu=True, report_to="none")
args.sharding = "stage2"
accelerate_state.accelerator_state(args)
print(AcceleratorState().distributed_type.value, AcceleratorState().fsdp_plugin is plugins.plugin_of(args))
plugins.world = alone
Trainer(torch.nn.Linear(2, 2), TrainingArguments("out", use_cpu=True, report_to="none"))
print(AcceleratorState().distributed_type.value)
"""


def test_states_of_accelerate_are_initialised_as_by_transformers():
    pytest.importorskip("torch")
    assert run(STATES) == ["bf16", "AcceleratorState", "True", "None", "no", "FSDP", "True", "NO"]


def test_accelerate_is_not_imported_for_it():
    pytest.importorskip("torch")
    code = "import sys, torch, oneloop; oneloop.Trainer(torch.nn.Linear(2, 2), oneloop.TrainingArguments('out'))"
    assert run(f"{code}; print('accelerate' in sys.modules)") == ["False"]


# -- what shards the model

CONFIG = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"}


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        ({}, [False, False]),
        ({"sharding": "stage1"}, [False, False]),
        ({"sharding": "stage2"}, [False, True]),
        ({"sharding": "stage3 auto_wrap"}, [False, True]),
        ({"deepspeed": CONFIG}, [True, False]),
    ],
)
def test_engines_are_seen_on_several_processes(given, flags, monkeypatch, tmp_path):
    torch = pytest.importorskip("torch")
    trainer = Trainer(torch.nn.Linear(2, 2), TrainingArguments(str(tmp_path), device="cpu", report_to="none"))
    for name, value in given.items():
        setattr(trainer.args, name, value)
    seen = [[trainer.is_deepspeed_enabled, trainer.is_fsdp_enabled]]
    monkeypatch.setattr(accelerate_plugins, "world", lambda: SimpleNamespace(size=2))
    seen.append([trainer.is_deepspeed_enabled, trainer.is_fsdp_enabled])
    assert seen == [[False, False], flags]
    assert trainer.deepspeed is None, "before training"


@pytest.mark.parametrize(("sharding", "reshards"), [("stage2", False), ("stage3", True)])
def test_the_plugin_of_fsdp_says_what_is_done(sharding, reshards, monkeypatch, tmp_path):
    pytest.importorskip("torch")
    monkeypatch.setattr(accelerate_plugins, "world", lambda: SimpleNamespace(size=2))
    args = TrainingArguments(str(tmp_path), device="cpu", sharding=sharding, fsdp_config={"ignored_modules": "head.*"})
    plugin = accelerate_plugins.plugin_of(args)
    assert (plugin.fsdp_version, plugin.reshard_after_forward, plugin.ignored_modules) == (2, reshards, "head.*")
    assert accelerate_plugins.plugin_of(args) is plugin
    assert type(plugin.cpu_offload).__name__ == "OffloadPolicy"
    args.sharding = ""
    assert accelerate_plugins.plugin_of(args) is None


def test_the_plugin_of_fsdp_has_the_precision_and_where_the_weights_are(monkeypatch, tmp_path):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(accelerate_plugins, "world", lambda: SimpleNamespace(size=2))
    args = TrainingArguments(str(tmp_path), device="cpu", bf16=True)
    args.sharding = "stage3 offload"
    plugin = accelerate_plugins.plugin_of(args)
    assert type(plugin.cpu_offload).__name__ == "CPUOffloadPolicy"
    assert plugin.mixed_precision_policy.param_dtype is torch.bfloat16


def test_variables_of_the_launcher_are_set_again(monkeypatch):
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2")
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with accelerate_plugins._without_settings_of_launcher():
        assert "ACCELERATE_DEEPSPEED_ZERO_STAGE" not in os.environ and "ACCELERATE_USE_DEEPSPEED" in os.environ
    assert os.environ["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "2"


def test_fsdp_is_that_of_pytorch(backend, arguments, monkeypatch):
    trainer = Trainer(backend.classifier(), arguments())
    trainer.args.sharding = "stage2"
    monkeypatch.setattr(accelerate_plugins, "world", lambda: SimpleNamespace(size=2))
    assert trainer.is_fsdp_enabled == (backend.name == "torch")
