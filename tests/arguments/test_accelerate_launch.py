"""Files of `accelerate config`: what `accelerate launch` makes of their keys reaches the arguments, or is refused."""

import os

import pytest

from oneloop import TrainingArguments
from oneloop.arguments import accelerate_launch
from oneloop.arguments.sharding import recomputes, reshards
from oneloop.errors import ArgumentError, UnsupportedError

FSDP2 = """
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
enable_cpu_affinity: false
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_cpu_ram_efficient_loading: true
  fsdp_offload_params: false
  fsdp_reshard_after_forward: false
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_transformer_layer_cls_to_wrap: BertLayer
  fsdp_version: 2
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 2
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""
FSDP1 = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_activation_checkpointing: false
  fsdp_auto_wrap_policy: SIZE_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_cpu_ram_efficient_loading: false
  fsdp_forward_prefetch: true
  fsdp_min_num_params: 2000
  fsdp_offload_params: true
  fsdp_reshard_after_forward: SHARD_GRAD_OP
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_sync_module_states: false
  fsdp_use_orig_params: true
  fsdp_version: 1
mixed_precision: 'no'
num_machines: 1
num_processes: 2
use_cpu: false
"""
DEEPSPEED = """
compute_environment: LOCAL_MACHINE
deepspeed_config:
  deepspeed_moe_layer_cls_names: MixtralSparseMoeBlock,JetMoEBlock
  gradient_accumulation_steps: 4
  gradient_clipping: 0.7
  offload_optimizer_device: none
  offload_param_device: none
  zero3_init_flag: false
  zero3_save_16bit_model: true
  zero_stage: 3
distributed_type: DEEPSPEED
dynamo_config:
  dynamo_backend: INDUCTOR
  dynamo_mode: max-autotune
mixed_precision: fp16
num_machines: 1
num_processes: 2
use_cpu: false
"""


def launched(tmp_path, monkeypatch, text):
    """The variables that accelerate's launcher sets for a file."""
    launch = pytest.importorskip("accelerate.commands.launch")
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

    file = tmp_path / "config.yaml"
    file.write_text(text)
    monkeypatch.setattr(launch, "is_torch_xla_available", lambda *args, **kwargs: False, raising=False)
    args = launch.launch_command_parser().parse_args(["--config_file", str(file), "script.py"])
    args, defaults, _ = launch._validate_launch_command(args)
    args.main_process_port = 0
    args.deepspeed_fields_from_accelerate_config = ",".join(getattr(defaults, "deepspeed_config", None) or {})
    return prepare_deepspeed_cmd_env(args)[1] if args.use_deepspeed else prepare_multi_gpu_env(args)


def started(monkeypatch, variables):
    """As a process that the launcher has started."""
    for name, value in {
        **variables,
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
    }.items():
        if os.environ.get(name) != value:
            monkeypatch.setenv(name, value)


def test_a_file_of_fsdp2(tmp_path, monkeypatch):
    variables = launched(tmp_path, monkeypatch, FSDP2)
    config = {
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "transformer_layer_cls_to_wrap": "BertLayer",
        "state_dict_type": "SHARDED_STATE_DICT",
        "cpu_ram_efficient_loading": True,
        "activation_checkpointing": True,
    }
    assert accelerate_launch.settings(variables) == {"bf16": True, "sharding": "stage2", "fsdp_config": config}
    # Loading in one process needs the group of all, which this one has not.
    started(monkeypatch, variables | {"FSDP_CPU_RAM_EFFICIENT_LOADING": "false"})
    args = TrainingArguments("out", device="cpu")
    assert args.sharding == "stage2"
    assert args.bf16 and not args.fp16 and not args.torch_compile
    assert args.fsdp_config == {key: value for key, value in config.items() if key != "cpu_ram_efficient_loading"}
    assert recomputes(args) and not reshards(args)


def test_a_file_of_fsdp1(tmp_path, monkeypatch):
    variables = launched(tmp_path, monkeypatch, FSDP1)
    found = accelerate_launch.settings(variables)
    assert found == {
        "sharding": "stage2 offload",
        "fsdp_config": {
            "auto_wrap_policy": "SIZE_BASED_WRAP",
            "min_num_params": 2000,
            "state_dict_type": "FULL_STATE_DICT",
            "forward_prefetch": True,
            "backward_prefetch": "BACKWARD_PRE",
            "use_orig_params": True,
            "sync_module_states": False,
        },
    }
    started(monkeypatch, variables | {"FSDP_OFFLOAD_PARAMS": "false"})
    assert TrainingArguments("out", device="cpu").sharding == "stage2"


def test_a_file_of_deepspeed(tmp_path, monkeypatch):
    monkeypatch.setattr("accelerate.utils.launch.is_deepspeed_available", lambda: True, raising=False)
    variables = launched(tmp_path, monkeypatch, DEEPSPEED)
    found = accelerate_launch.settings(variables)
    assert found == {
        "fp16": True,
        "deepspeed": {
            "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": 4,
            "gradient_clipping": 0.7,
            "zero_optimization": {
                "stage": 3,
                "offload_optimizer": {"device": "none"},
                "offload_param": {"device": "none"},
                "leaf_module": {"classes": ["MixtralSparseMoeBlock", "JetMoEBlock"]},
            },
        },
    }
    file = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_CONFIG_FILE": "zero.json"}
    assert accelerate_launch.settings(file) == {"deepspeed": "zero.json"}


def test_nothing_without_the_launcher():
    assert accelerate_launch.settings({}) == {}
    assert accelerate_launch.settings({"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO"}) == {}


def test_arguments_of_the_script_come_first(monkeypatch):
    started(
        monkeypatch,
        {
            "ACCELERATE_USE_FSDP": "true",
            "FSDP_RESHARD_AFTER_FORWARD": "true",
            "FSDP_VERSION": "2",
            "ACCELERATE_MIXED_PRECISION": "fp16",
            "ACCELERATE_DYNAMO_BACKEND": "INDUCTOR",
            "ACCELERATE_DYNAMO_MODE": "reduce-overhead",
            "ACCELERATE_USE_CPU": "true",
        },
    )
    args = TrainingArguments("out")
    assert (args.sharding, args.fp16, args.device_spec) == ("stage3", True, "cpu")
    assert (args.torch_compile_backend, args.torch_compile_mode, args.torch_compile) == (
        "inductor",
        "reduce-overhead",
        True,
    )
    own = TrainingArguments("out", sharding="stage1", bf16=True, torch_compile_backend="eager")
    assert (own.sharding, own.fsdp_config, own.fp16, own.bf16) == ("stage1", None, False, True)
    assert (own.torch_compile_backend, own.torch_compile_mode) == ("eager", None)


def test_processes_without_a_launcher_of_torch_are_not_sharded(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert TrainingArguments("out").sharding == ""


@pytest.mark.parametrize(
    ("strategy", "sharding"),
    [
        ("FULL_SHARD", "stage3"),
        ("1", "stage3"),
        ("2", "stage2"),
        ("NO_SHARD", "replicate"),
        ("HYBRID_SHARD", "stage3 hybrid"),
        ("5", "stage2 hybrid"),
    ],
)
def test_strategies_of_version_1(strategy, sharding):
    variables = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "1", "FSDP_SHARDING_STRATEGY": strategy}
    assert accelerate_launch.settings(variables)["sharding"] == sharding
    with pytest.raises(ArgumentError, match="fsdp_sharding_strategy is 'HALF'"):
        accelerate_launch.settings(variables | {"FSDP_SHARDING_STRATEGY": "HALF"})


@pytest.mark.parametrize(("reshard", "sharding"), [("", "stage3"), ("true", "stage3"), ("false", "stage2")])
def test_version_2_reshards_unless_told_otherwise(reshard, sharding):
    variables = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": reshard}
    assert accelerate_launch.settings(variables)["sharding"] == sharding


def test_groups_of_processes():
    variables = {
        "ACCELERATE_USE_FSDP": "true",
        "ACCELERATE_USE_PARALLELISM_CONFIG": "true",
        "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": "2",
        "PARALLELISM_CONFIG_DP_SHARD_SIZE": "4",
    }
    assert accelerate_launch.settings(variables)["sharding_degree"] == 4
    more = {"PARALLELISM_CONFIG_TP_SIZE": "2", "PARALLELISM_CONFIG_CP_SIZE": "3"}
    found = accelerate_launch.settings(variables | more)
    assert (found["tensor_parallel_size"], found["sequence_parallel_size"]) == (2, 3)
    with pytest.raises(ArgumentError, match="cp_size=3 and sp_size=2"):
        accelerate_launch.settings(variables | more | {"PARALLELISM_CONFIG_SP_SIZE": "2"})


AXES = """
distributed_type: MULTI_GPU
mixed_precision: 'no'
num_machines: 1
num_processes: 2
parallelism_config:
  parallelism_config_tp_size: 2
use_cpu: false
"""


def test_axes_without_sharding(tmp_path, monkeypatch):
    started(monkeypatch, launched(tmp_path, monkeypatch, AXES))
    args = TrainingArguments("out", use_cpu=True)
    assert (args.tensor_parallel_size, args.sharding) == (2, "")
    assert TrainingArguments("out", use_cpu=True, tensor_parallel_size=1).tensor_parallel_size == 2
    for name, size, words in (
        ("DP_SHARD_SIZE", "2", "nothing is sharded"),
        ("DP_REPLICATE_SIZE", "4", r"is for 8 processes \(dp_replicate_size=4 x tp_size=2\), but 2 were started"),
    ):
        with monkeypatch.context() as patch, pytest.raises(ArgumentError, match=words):
            patch.setenv(f"PARALLELISM_CONFIG_{name}", size)
            if name == "DP_SHARD_SIZE":
                patch.setenv("PARALLELISM_CONFIG_TP_SIZE", "1")
            TrainingArguments("out", use_cpu=True)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"ACCELERATE_MIXED_PRECISION": "fp8"}, "mixed_precision fp8"),
        ({"ACCELERATE_DYNAMO_BACKEND": "INDUCTOR", "ACCELERATE_DYNAMO_USE_FULLGRAPH": "True"}, "dynamo_use_fullgraph"),
        ({"ACCELERATE_USE_MEGATRON_LM": "true"}, "MEGATRON_LM"),
    ],
)
def test_what_has_no_argument_is_refused(variables, words):
    with pytest.raises(UnsupportedError, match=words):
        accelerate_launch.settings(variables)
