"""What values are taken, how they are stored, and what is out of range."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest

from oneloop.arguments import TrainingArguments
from oneloop.distributed.world import world
from oneloop.enums import IntervalStrategy
from oneloop.errors import ArgumentError
from oneloop.optim.catalog import OptimizerNames


@pytest.mark.parametrize(
    ("name", "given", "stored"),
    [
        ("learning_rate", "1e-4", 1e-4),
        ("learning_rate", 1, 1.0),
        ("learning_rate", np.float32(0.5), 0.5),
        ("max_grad_norm", math.inf, math.inf),
        ("max_steps", "100", 100),
        ("max_steps", 1e3, 1000),
        ("max_steps", "1e3", 1000),
        ("max_steps", np.int64(7), 7),
        ("seed", 2**32 - 1, 2**32 - 1),
        ("fp16", "true", True),
        ("fp16", "no", False),
        ("fp16", 1, True),
        ("fp16", np.bool_(True), True),
        ("eval_strategy", "steps", "steps"),
        ("eval_strategy", IntervalStrategy.STEPS, "steps"),
        ("eval_strategy", False, "no"),  # YAML's bare `no`
        ("save_strategy", "best", "best"),
        ("optim", OptimizerNames.SGD, "sgd"),
        ("optim", "adamw", "adamw"),
        ("optim_args", {"a": 1, "b": "x"}, "a=1,b=x"),
        ("label_names", "a, b", ["a", "b"]),
        ("label_names", '["a", "b"]', ["a", "b"]),
        ("label_names", ("a",), ["a"]),
        ("lr_scheduler_kwargs", '{"min_lr": 1e-6}', {"min_lr": 1e-6}),
        ("gradient_checkpointing_kwargs", {"use_reentrant": False}, {"use_reentrant": False}),
        ("deepspeed", "config.json", "config.json"),
        ("deepspeed", '{"zero": 1}', {"zero": 1}),
        ("device_spec", "CUDA:1", "cuda:1"),
        ("device_spec", "auto", None),
        ("device_spec", "cpu:0", "cpu"),
        ("debug", ["underflow_overflow"], "underflow_overflow"),
        ("debug", None, ""),
        ("eval_delay", None, 0),
        ("report_to", "none", []),
        ("report_to", ["none"], []),
        ("report_to", "tensorboard, wandb", ["tensorboard", "wandb"]),
        ("report_to", "tensorboard visualdl", ["tensorboard", "visualdl"]),
        ("report_to", ["wandb", "wandb"], ["wandb"]),
        ("include_num_input_tokens_seen", True, "all"),
        ("include_num_input_tokens_seen", False, "no"),
        ("resume_from_checkpoint", "true", True),
        ("resume_from_checkpoint", False, None),
        ("resume_from_checkpoint", "latest", "latest"),
        ("logging_steps", 0.1, 0.1),
        ("logging_steps", 10.0, 10),
        ("logging_steps", 1.0, 1),
        ("warmup_steps", "0.1", 0.1),
        ("trackio_static_space_id", False, False),
        ("sharding", ["stage2", "offload"], "stage2 offload"),
        ("sharding", "auto_wrap,stage3", "stage3 auto_wrap"),
        ("hub_token", "<HUB_TOKEN>", None),
    ],
)
def test_a_value_is_stored_as(name, given, stored):
    value = getattr(TrainingArguments("out", **{name: given}), name)
    assert value == stored
    assert type(value) is type(stored) or isinstance(value, str)


@pytest.mark.parametrize(("given", "stored"), [(True, "end_to_end"), (" Wrapped", "wrapped"), ("no", False)])
def test_ways_of_packing(given, stored):
    assert TrainingArguments("out", packing=given, max_length=8).packing == stored


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("learning_rate", -1e-4),
        ("learning_rate", math.nan),
        ("learning_rate", math.inf),
        ("learning_rate", "fast"),
        ("learning_rate", True),
        ("learning_rate", None),
        ("weight_decay", -0.1),
        ("adam_beta1", 1.0),
        ("adam_beta2", -0.1),
        ("max_grad_norm", -1),
        ("max_steps", 0),
        ("max_steps", -2),
        ("max_steps", 2.5),
        ("max_steps", True),
        ("num_train_epochs", -1),
        ("per_device_train_batch_size", 0),
        ("per_device_train_batch_size", -8),
        ("gradient_accumulation_steps", 0),
        ("seed", -1),
        ("seed", 2**32),
        ("label_smoothing_factor", 1.0),
        ("warmup_ratio", 1.5),
        ("warmup_steps", -1),
        ("warmup_steps", 2.5),
        ("logging_steps", 1.5),
        ("logging_steps", -5),
        ("logging_steps", 0),
        ("save_steps", 0),
        ("save_total_limit", 0),
        ("save_interval_minutes", 0),
        ("scale_loss", 0),
        ("ddp_timeout", 0),
        ("sharding_degree", 0),
        ("fp16", "maybe"),
        ("fp16", 2),
        ("fp16", None),
        ("eval_strategy", "step"),
        ("eval_strategy", True),
        ("optim", "adam"),
        ("lr_scheduler_type", "quadratic"),
        ("nonfinite", "raise"),
        ("fp16_opt_level", "O4"),
        ("report_to", "tensorbord"),
        ("report_to", "all,wandb"),
        ("debug", "overflow"),
        ("device", "tpu"),
        ("device", "cuda:x"),
        ("device", 0),
        ("sharding", "stage4"),
        ("sharding", "stage1 stage2"),
        ("sharding", "offload"),
        ("include_for_metrics", "labels"),
        ("lr_scheduler_kwargs", "{min_lr}"),
        ("lr_scheduler_kwargs", "[1]"),
        ("optim_args", "rank"),
        ("label_names", 3),
        ("fsdp_config", "no-such-file.json"),
        ("local_rank", 3),
        ("output_dir", 3),
        ("run_name", 3),
    ],
)
def test_an_invalid_value(name, given):
    with pytest.raises(ArgumentError) as caught:
        TrainingArguments(**{"output_dir": "out", name: given})
    message = str(caught.value)
    assert message.startswith(f"Invalid {name}=") and "expected" in message
    shown = repr(float(given)) if isinstance(given, int) and "." in message.split(" ")[1] else repr(given)
    assert f"{name}={shown}: " in message


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"fp16": True, "bf16": True}, "fp16 and bf16"),
        ({"fp16_full_eval": True, "bf16_full_eval": True}, "fp16_full_eval and bf16_full_eval"),
        ({"dataloader_prefetch_factor": 2}, "dataloader_num_workers"),
        ({"dataloader_persistent_workers": True}, "dataloader_num_workers"),
        ({"dataloader_multiprocessing_context": "spawn"}, "dataloader_num_workers"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau"}, "eval_strategy"),
        ({"lr_scheduler_type": "greedy"}, "eval_strategy"),
        ({"optim_target_modules": "all-linear"}, "GaLore"),
        ({"optim": "galore_adamw"}, "optim_target_modules"),
        ({"eval_strategy": "steps", "eval_steps": 0}, "eval_steps"),
        ({"eval_strategy": "steps", "logging_steps": 0, "logging_strategy": "no"}, "eval_steps"),
    ],
)
def test_arguments_that_contradict_each_other(given, words):
    with pytest.raises(ArgumentError, match=words):
        TrainingArguments("out", **given)


def test_an_unknown_key_of_a_config():
    with pytest.raises(ArgumentError, match=r"accelerator_config\['split'\]=True.*split_batches"):
        TrainingArguments("out", accelerator_config={"split": True})


def test_a_wrong_token_is_not_shown():
    with pytest.raises(ArgumentError) as caught:
        TrainingArguments("out", hub_token=123456)
    assert "123456" not in str(caught.value) and "hub_token" in str(caught.value)


def test_output_dir_has_the_default_of_transformers_5():
    args = TrainingArguments()
    assert args.output_dir == args.run_name == TrainingArguments(learning_rate=1e-4).output_dir == "trainer_output"
    args.output_dir = "there"
    args.validate()
    assert args.output_dir == args.run_name == "there"
    with pytest.raises(ArgumentError, match="output_dir is empty"):
        TrainingArguments("")


def test_output_dir_is_the_only_positional_argument():
    assert TrainingArguments("out").output_dir == "out"
    with pytest.raises(ArgumentError, match="by name"):
        TrainingArguments("out", True)
    with pytest.raises(ArgumentError, match="twice"):
        TrainingArguments("out", output_dir="there")


def test_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    args = TrainingArguments(tmp_path / "run", logging_dir="~/logs")
    assert args.output_dir == str(tmp_path / "run")
    assert args.logging_dir == str(tmp_path / "logs")


def test_a_config_from_a_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"min_num_params": 10}))
    assert TrainingArguments("out", fsdp_config=path).fsdp_config == {"min_num_params": 10}
    assert TrainingArguments("out", fsdp_config=str(path)).fsdp_min_num_params == 10


def test_a_config_from_an_object():
    class Config:
        def to_dict(self):
            return {"non_blocking": True}

    assert TrainingArguments("out", accelerator_config=Config()).accelerator_config.non_blocking is True


def test_an_assigned_value_is_checked_by_validate():
    args = TrainingArguments("out")
    args.learning_rate = "1e-3"
    args.validate()
    assert args.learning_rate == 1e-3
    args.learning_rate = -1
    with pytest.raises(ArgumentError, match="learning_rate=-1"):
        args.validate()


LARGE = {"400 digits": 10**400, "5000 digits": 10**5000, "2**70": 2**70, "-2**70": -(2**70), "2**63": 2**63}
LARGE |= {"float": 1e300, "text": "9" * 400, "fraction": Fraction(10**400)}


@pytest.mark.parametrize("kind", LARGE)
@pytest.mark.parametrize("name", ["max_steps", "per_device_train_batch_size", "learning_rate", "logging_steps"])
def test_numbers_that_are_too_large(tmp_path, name, kind):
    value = LARGE[kind]
    if name == "learning_rate" and value == 1e300:
        assert TrainingArguments(str(tmp_path), learning_rate=value).learning_rate == 1e300
        return
    with pytest.raises(ArgumentError, match=f"Invalid {name}=") as error:
        TrainingArguments(str(tmp_path), **{name: value})
    assert len(str(error.value)) < 300


def test_a_key_that_occurs_twice(tmp_path):
    with pytest.raises(ArgumentError, match="'min_lr' occurs twice"):
        TrainingArguments(str(tmp_path), lr_scheduler_kwargs='{"min_lr": 1e-6, "min_lr": 1e-5}')


def test_a_configuration_that_is_not_utf8(tmp_path):
    (tmp_path / "accelerator.json").write_bytes(b'{"split_batches": "\xe9"}')
    with pytest.raises(ArgumentError, match="accelerator.json is not UTF-8"):
        TrainingArguments(str(tmp_path), accelerator_config=str(tmp_path / "accelerator.json"))


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK is 'x': expected an integer"),
        ({"RANK": "0", "WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "process 2 of 2: expected RANK to be 0 to 1"),
        ({"RANK": "-1", "WORLD_SIZE": "1"}, "process -1 of 1"),
        ({"PADDLE_TRAINER_ID": "first", "PADDLE_TRAINERS_NUM": "2"}, "PADDLE_TRAINER_ID is 'first'"),
        ({"MS_ROLE": "MS_WORKER", "MS_NODE_ID": "?", "MS_WORKER_NUM": "2"}, "MS_NODE_ID is '\\?'"),
    ],
)
def test_variables_of_launchers(monkeypatch, variables, words):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ArgumentError, match=words):
        world()


def test_the_scheduler_of_mindspore_is_no_process_of_the_run(monkeypatch):
    monkeypatch.setenv("MS_ROLE", "MS_SCHED")
    monkeypatch.setenv("MS_WORKER_NUM", "2")
    assert world().rank == world().size == 2
