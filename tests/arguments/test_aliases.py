"""Other spellings: in the constructor, as attributes, in dicts; and what contradicts what."""

import dataclasses

import pytest

from oneloop.arguments import TrainingArguments
from oneloop.errors import ArgumentError

# spelling, its value, stored name, the stored value
PAIRS = [
    ("evaluation_strategy", "steps", "eval_strategy", "steps"),
    ("per_gpu_train_batch_size", 3, "per_device_train_batch_size", 3),
    ("per_gpu_eval_batch_size", 3, "per_device_eval_batch_size", 3),
    ("recompute", True, "gradient_checkpointing", True),
    ("recompute_kwargs", {"use_reentrant": False}, "gradient_checkpointing_kwargs", {"use_reentrant": False}),
    ("dataset_drop_last", True, "dataloader_drop_last", True),
    ("dataset_num_workers", 2, "dataloader_num_workers", 2),
    ("to_static", True, "torch_compile", True),
    ("torchdynamo", "inductor", "torch_compile_backend", "inductor"),
    ("xpu_backend", "ccl", "ddp_backend", "ccl"),
    ("fp16_backend", "cpu_amp", "half_precision_backend", "cpu_amp"),
    ("f16_full_eval", True, "fp16_full_eval", True),
    ("push_to_hub_model_id", "model", "hub_model_id", "model"),
    ("push_to_hub_token", "secret", "hub_token", "secret"),
    ("use_cpu", True, "device_spec", "cpu"),
    ("no_cuda", True, "device_spec", "cpu"),
    ("use_mps_device", True, "device_spec", "mps"),
    ("adafactor", True, "optim", "adafactor"),
    ("group_by_length", True, "train_sampling_strategy", "group_by_length"),
    ("include_inputs_for_metrics", True, "include_for_metrics", ["inputs"]),
    ("tpu_metrics_debug", True, "debug", "tpu_metrics_debug"),
    ("fsdp", "full_shard auto_wrap", "sharding", "stage3 auto_wrap"),
    ("fsdp", "shard_grad_op", "sharding", "stage2"),
    ("fsdp", "hybrid_shard", "sharding", "stage3 hybrid"),
    ("fsdp", "no_shard", "sharding", "replicate"),
    ("sharded_ddp", "simple", "sharding", "stage1"),
    ("sharded_ddp", "zero_dp_2 offload", "sharding", "stage2 offload"),
    ("fsdp_min_num_params", 1000, "fsdp_config", {"min_num_params": 1000}),
    ("fsdp_transformer_layer_cls_to_wrap", "Block", "fsdp_config", {"transformer_layer_cls_to_wrap": "Block"}),
    ("sharding_parallel_degree", 2, "sharding_degree", 2),
    ("sharding_parallel_size", 2, "sharding_degree", 2),
    ("tensor_parallel_degree", 2, "tensor_parallel_size", 2),
    ("tensor_model_parallel_size", 2, "tensor_parallel_size", 2),
    ("sep_parallel_degree", 2, "sequence_parallel_size", 2),
    ("sep_parallel_size", 2, "sequence_parallel_size", 2),
    ("context_parallel_size", 2, "sequence_parallel_size", 2),
    ("expert_model_parallel_size", 2, "expert_parallel_size", 2),
    ("dataloader_shuffle", False, "train_sampling_strategy", "sequential"),
    ("deterministic_mode", True, "full_determinism", True),
    ("recompute_granularity", "full", "gradient_checkpointing", True),
    ("num_cycles", 2.0, "lr_scheduler_kwargs", {"num_cycles": 2.0}),
    ("lr_end", 0.01, "lr_scheduler_kwargs", {"lr_end": 0.01}),
    ("power", 2.0, "lr_scheduler_kwargs", {"power": 2.0}),
    ("push_to_hub_organization", "me", "hub_model_id", "me/out"),
]


def test_every_other_spelling_is_tried_here():
    assert {pair[0] for pair in PAIRS} | {"device", "dataset_prefetch_factor"} == set(TrainingArguments.__aliases__)


def test_one_that_means_nothing_without_another():
    args = TrainingArguments("out", dataset_prefetch_factor=3, dataset_num_workers=1)
    assert (args.dataloader_prefetch_factor, args.dataset_prefetch_factor) == (3, 3)
    args.dataset_prefetch_factor = 5
    assert args.dataloader_prefetch_factor == 5
    with pytest.raises(ArgumentError, match="dataloader_prefetch_factor"):
        TrainingArguments("out", dataset_prefetch_factor=3)


@pytest.mark.parametrize(("name", "value", "target", "stored"), PAIRS)
def test_in_the_constructor(name, value, target, stored):
    args = TrainingArguments("out", **{name: value})
    assert getattr(args, target) == stored
    assert getattr(args, name) == value


@pytest.mark.parametrize(("name", "value", "target", "stored"), PAIRS)
def test_in_a_dict(name, value, target, stored):
    assert getattr(TrainingArguments.from_dict({"output_dir": "out", name: value}), target) == stored


@pytest.mark.parametrize(("name", "value", "target", "stored"), PAIRS)
def test_as_an_attribute(name, value, target, stored):
    args = TrainingArguments("out")
    setattr(args, name, value)
    args.validate()
    assert getattr(args, target) == stored
    assert getattr(args, name) == value


@pytest.mark.parametrize(("name", "value", "target", "stored"), PAIRS)
def test_the_stored_name_reads_as_the_other(name, value, target, stored):
    args = TrainingArguments("out", **{target: stored})
    assert getattr(args, name) == value


@pytest.mark.parametrize(("name", "value", "target", "stored"), PAIRS)
def test_both_with_one_meaning_are_fine(name, value, target, stored):
    assert getattr(TrainingArguments("out", **{name: value, target: stored}), target) == stored


@pytest.mark.parametrize(("name", "value", "target", "stored"), PAIRS)
def test_empty_aliases_change_nothing(name, value, target, stored):
    args = TrainingArguments("out", **{name: None, target: stored})
    assert getattr(args, target) == stored


@pytest.mark.parametrize(
    "given",
    [
        {"evaluation_strategy": "steps", "eval_strategy": "epoch"},
        {"per_gpu_train_batch_size": 2, "per_device_train_batch_size": 3},
        {"use_cpu": True, "device": "gpu"},
        {"use_cpu": False, "device": "cpu"},
        {"use_cpu": True, "no_cuda": False},
        {"no_cuda": True, "use_cpu": False},
        {"use_mps_device": True, "use_cpu": True},
        {"adafactor": True, "optim": "sgd"},
        {"adafactor": False, "optim": "adafactor"},
        {"group_by_length": True, "train_sampling_strategy": "random"},
        {"fsdp": "full_shard", "sharding": "stage2"},
        {"fsdp": "full_shard", "sharded_ddp": "zero_dp_2"},
        {"fsdp_min_num_params": 5, "fsdp_config": {"min_num_params": 6}},
        {"include_inputs_for_metrics": False, "include_for_metrics": ["inputs"]},
        {"push_to_hub_organization": "me", "hub_model_id": "you/model"},
        {"hub_token": "first", "push_to_hub_token": "second"},
    ],
    ids=lambda given: "-".join(given),
)
def test_two_aliases_with_different_values(given):
    with pytest.raises(ArgumentError, match="are aliases of one argument, but have different values") as caught:
        TrainingArguments("out", **given)
    for name in given:
        assert name in str(caught.value)
    assert "first" not in str(caught.value) and "second" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "target", "stored"),
    [
        (
            {"include_inputs_for_metrics": True, "include_for_metrics": ["loss"]},
            "include_for_metrics",
            ["loss", "inputs"],
        ),
        ({"fsdp_min_num_params": 5, "fsdp_config": {"xla": False}}, "fsdp_config", {"xla": False, "min_num_params": 5}),
        ({"push_to_hub_organization": "me", "hub_model_id": "model"}, "hub_model_id", "me/model"),
        ({"push_to_hub_organization": "me", "push_to_hub_model_id": "model"}, "hub_model_id", "me/model"),
        ({"group_by_length": False, "train_sampling_strategy": "sequential"}, "train_sampling_strategy", "sequential"),
        ({"use_cpu": False, "device": "cuda:1"}, "device_spec", "cuda:1"),
        ({"per_gpu_train_batch_size": "3", "per_device_train_batch_size": 3.0}, "per_device_train_batch_size", 3),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_two_spellings_that_go_together(given, target, stored):
    assert getattr(TrainingArguments("out", **given), target) == stored


@pytest.mark.parametrize(
    ("on", "name", "target", "after"),
    [
        ({"device": "cpu"}, "use_cpu", "device_spec", None),
        ({"device": "cuda:0"}, "use_cpu", "device_spec", "cuda:0"),
        ({"optim": "adafactor"}, "adafactor", "optim", "adamw_torch"),
        ({"optim": "sgd"}, "adafactor", "optim", "sgd"),
        ({"group_by_length": True}, "group_by_length", "train_sampling_strategy", "random"),
        ({"include_for_metrics": ["inputs", "loss"]}, "include_inputs_for_metrics", "include_for_metrics", ["loss"]),
    ],
)
def test_a_switch_set_to_false_takes_back_its_own_value_only(on, name, target, after):
    args = TrainingArguments("out", **on)
    setattr(args, name, False)
    assert getattr(args, target) == after


@pytest.mark.parametrize(("name", "value", "target", "stored"), PAIRS)
def test_replace_takes_the_other_spelling_as_the_change(name, value, target, stored):
    args = dataclasses.replace(TrainingArguments("out"), **{name: value})
    assert getattr(args, target) == stored


def test_replace_takes_the_device():
    args = dataclasses.replace(TrainingArguments("out", device="cpu"), device="cuda:1")
    assert args.device_spec == "cuda:1"
