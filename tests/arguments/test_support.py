"""What torch, a CPU and this release refuse: a closed list, each in words, and nothing before the model is there."""

import pytest

from oneloop.arguments import TrainingArguments, packages, support
from oneloop.arguments.unsupported import Section
from oneloop.compat import accelerate_state
from oneloop.errors import ArgumentError, MissingPackageError, UnsupportedError

# given, the words that the error has to have
REFUSED = [
    ({"use_ipex": True}, ["use_ipex=True", "intel-extension-for-pytorch"]),
    ({"half_precision_backend": "apex"}, ["half_precision_backend='apex'", "apex"]),
    ({"fp16_backend": "apex"}, ["fp16_backend='apex'"]),
    ({"optim": "adamw_apex_fused"}, ["optim='adamw_apex_fused'", "apex"]),
    ({"tf32": True}, ["tf32=True", "Ampere"]),
    ({"use_mps_device": True}, ["use_mps_device=True", "Apple"]),
    ({"device": "mps"}, ["device='mps'", "Apple"]),
    ({"tpu_num_cores": 8}, ["tpu_num_cores=8", "XLA"]),
    ({"debug": "tpu_metrics_debug"}, ["debug='tpu_metrics_debug'", "XLA"]),
    ({"tpu_metrics_debug": True}, ["tpu_metrics_debug=True", "XLA"]),
    ({"optim": "adamw_torch_xla"}, ["adamw_torch_xla", "torch-xla"]),
    ({"sharding": "stage2 offload"}, ["sharding='stage2 offload'", "it is there already"]),
    ({"fsdp": "full_shard offload"}, ["fsdp='full_shard offload'", "it is there already"]),
    ({"use_liger_kernel": True}, ["liger-kernel"]),
    ({"liger_kernel_config": {"rope": True}}, ["liger-kernel"]),
    ({"sharding_degree": 4}, ["sharding_degree=4"]),
    ({"fsdp_min_num_params": 100}, ["fsdp_min_num_params=100"]),
    ({"fsdp_config": {"min_num_params": 100}}, ["fsdp_config"]),
    ({"deepspeed": "config.json"}, ["deepspeed='config.json'"]),
    ({"optim": "adamw_bnb_8bit"}, ["bitsandbytes"]),
    ({"optim": "lomo"}, ["lomo-optim", "updates the weights during the backward pass", 'optim="adamw_torch"']),
    (
        {"optim": "apollo_adamw_layerwise", "optim_target_modules": "all-linear"},
        ["during the backward pass", 'apollo_adamw"'],
    ),
    ({"optim": "galore_adamw", "optim_target_modules": "all-linear"}, ["galore-torch"]),
    ({"optim": "stable_adamw"}, ["torch-optimi"]),
    ({"optim": "schedule_free_sgd"}, ["schedulefree"]),
    ({"push_to_hub": True}, ["push_to_hub=True", "huggingface_hub, which is not installed"]),
    ({"report_to": "wandb"}, ["report_to=['wandb']", "wandb, which is not installed"]),
    ({"report_to": "flyte"}, ["report_to=['flyte']", "not supported in this release yet"]),
    ({"save_safetensors": False}, ["save_safetensors=False", "pickle"]),
    ({"mp_parameters": "x"}, ["SageMaker"]),
    ({"use_legacy_prediction_loop": True}, ["use_legacy_prediction_loop"]),
    ({"trackio_static_space_id": "me/space"}, ["trackio_static_space_id", "not supported in this release yet"]),
    ({"accelerator_config": {"split_batches": True}}, ["split_batches", "per_device_train_batch_size"]),
    ({"accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 2}}}, ["gradient_accumulation_steps"]),
]
ON_PADDLE = [
    ({"sharding": "stage3"}, ["sharding='stage3'", "group_sharded_parallel runs on accelerators only", "stage2"]),
    ({"fsdp": "full_shard"}, ["fsdp='full_shard'", "group_sharded_parallel"]),
    ({"sharded_ddp": "zero_dp_3"}, ["sharded_ddp='zero_dp_3'", "group_sharded_parallel"]),
    ({"sharding": "stage1 auto_wrap"}, ["sharding='stage1 auto_wrap'", "needs no wrapping"]),
    ({"tensor_parallel_size": 2, "torch_compile": True}, ["tensor_parallel_size=2", "paddle.jit.to_static"]),
    ({"tensor_parallel_size": 2, "jit_mode_eval": True}, ["tensor_parallel_size=2", "paddle.jit.to_static"]),
    ({"tensor_parallel_size": 2, "auto_find_batch_size": True}, ["the same forward passes", "per_device_train_batch"]),
    ({"tensor_parallel_size": 2, "sharding": "stage1"}, ["fleet's groups", "processes beyond tensor_parallel_size"]),
    ({"tensor_parallel_size": 2, "trace_steps": "0-2"}, ["trace_steps", "a part of gradients and weights"]),
    ({"tensor_parallel_size": 2, "verify_steps": 2}, ["verify_steps", "a part of gradients and weights"]),
    ({"fp16": True}, ["fp16=True", "Paddle supports half precision on accelerators only"]),
    ({"bf16": True, "fp16_opt_level": "O2"}, ["bf16=True", "on accelerators only"]),
    ({"fp16_full_eval": True}, ["fp16_full_eval=True", "on accelerators only"]),
    ({"bf16_full_eval": True}, ["bf16_full_eval=True", "on accelerators only"]),
    ({"optim": "adafactor"}, ["optim='adafactor'", "adamw"]),
    ({"adafactor": True}, ["adafactor=True", "adamw"]),
    ({"optim": "adamw_anyprecision"}, ["optim='adamw_anyprecision'", "Paddle has no such optimizer"]),
    ({"chunked_loss": True}, ["chunked_loss=True", "Paddle has whole logits"]),
    ({"chunked_loss_layer": "head"}, ["chunked_loss_layer='head'", "Paddle has whole logits"]),
    ({"torch_compile_backend": "inductor"}, ["torch_compile_backend='inductor'", "to_static"]),
    ({"torch_compile_mode": "max-autotune"}, ["torch_compile_mode='max-autotune'", "to_static"]),
    ({"data_order": "transformers", "group_by_length": True}, ["data_order='transformers'", "default generator"]),
]
FINE_ON_PADDLE = [
    {"tensor_parallel_size": 2, "ema_decay": 0.9},
    {"data_order": "transformers"},
    {},
    {"bf16": True, "fp16_opt_level": "O0"},
    {"jit_mode_eval": True},
    {"torch_compile": True},
    {"recompute": True},
    {"do_export": True},
    {"sharding": "stage1"},
    {"sharded_ddp": "simple", "sharding_degree": 1},
    {"fsdp_config": {"min_num_params": 0, "xla": False}},
    *({"optim": name} for name in ("adamw", "adamw_hf", "adamw_torch", "adamw_torch_fused", "sgd", "rmsprop")),
]
FINE = [
    {},
    {"tf32": False},
    {"half_precision_backend": "cuda_amp", "fp16": True},
    {"half_precision_backend": "cpu_amp", "bf16": True},
    {"report_to": "none"},
    {"report_to": ["tensorboard", "visualdl"]},
    {"project": "mine", "trackio_space_id": "me/space"},
    {"do_export": True},
    {"hub_model_id": "me/model", "hub_token": "secret"},
    {"debug": "underflow_overflow"},
    {"ddp_find_unused_parameters": False},
    {"sharding": "stage1"},
    {"sharding": "stage2", "auto_find_batch_size": True},  # one process has nothing to divide
    {"fsdp": "full_shard auto_wrap", "fsdp_config": {"min_num_params": 100, "use_orig_params": True}},
    {"eval_use_gather_object": True},
    {"accelerator_config": {"split_batches": False, "even_batches": True, "use_seedable_sampler": True}},
    {"fsdp_config": {"min_num_params": 0, "xla": False}},  # what 4.57 dumps when nothing was chosen
    *({"optim": name} for name in ("adamw", "adamw_hf", "adamw_torch_fused", "adamw_anyprecision", "adafactor", "sgd")),
]


@pytest.fixture(autouse=True)
def only_these(monkeypatch):
    """Whatever the machine has: the two local writers are installed, and nothing else."""

    def installed(module):
        return module in ("tensorboard", "visualdl")

    monkeypatch.setattr(packages, "installed", installed)


@pytest.mark.parametrize(
    ("given", "words"), REFUSED, ids=lambda value: "-".join(value) if isinstance(value, dict) else ""
)
def test_refused_when_the_arguments_meet_the_model(given, words):
    args = TrainingArguments("out", **given)
    with pytest.raises(UnsupportedError) as caught:
        args.check_backend("torch", "cpu")
    for word in [*words, *where(caught.value, "torch"), "Instead: "]:
        assert word in str(caught.value)


def where(error, backend):
    """A package that is missing is not the device's fault; anything else is said of the framework and the device."""
    return [] if isinstance(error, MissingPackageError) else [backend, "cpu"]


def refused(given, backend, device="cpu"):
    """The arguments that are refused there."""
    args = TrainingArguments("out", **given)
    return [
        unsupported.argument
        for unsupported in support.unsupported_by(backend)
        if unsupported.applies(args, backend, device)
    ]


@pytest.mark.parametrize("given", FINE, ids=lambda given: "-".join(given) or "defaults")
def test_not_refused(given):
    assert refused(given, "torch") == []


@pytest.mark.parametrize(
    ("given", "words"), [*REFUSED, *ON_PADDLE], ids=lambda value: "-".join(value) if isinstance(value, dict) else ""
)
def test_refused_on_paddle(given, words):
    args = TrainingArguments("out", **given)
    with pytest.raises(UnsupportedError) as caught:
        args.check_backend("paddle", "cpu")
    if "optim" in given:  # packages for torch are of no use here
        words = ["Paddle has no such optimizer"]
    for word in [*words, *where(caught.value, "paddle"), "Instead: "]:
        assert word in str(caught.value)


@pytest.mark.parametrize("given", FINE_ON_PADDLE, ids=lambda given: "-".join(given) or "defaults")
def test_not_refused_on_paddle(given):
    assert refused(given, "paddle") == []


def test_half_precision_is_for_the_accelerators_of_paddle():
    for name in ("fp16", "bf16", "fp16_full_eval", "bf16_full_eval"):
        given = {name: True, "fp16_opt_level": "O2"}
        assert [refused(given, "paddle", device) for device in ("cpu", "cuda", "xpu")] == [[name], [], []]


ON_MINDSPORE = [
    ({"bf16": True}, ["bf16=True", "no bfloat16 kernels", "fp16=True"]),
    ({"bf16_full_eval": True}, ["bf16_full_eval=True", "fp16_full_eval=True"]),
    ({"optim": "adafactor"}, ["optim='adafactor'", "nn.AdaFactor", "optimizers="]),
    ({"optim": "adamw_anyprecision"}, ["MindSpore has no such optimizer"]),
    ({"chunked_loss": True}, ["chunked_loss=True", "MindSpore has whole logits"]),
    ({"chunked_loss_layer": "head"}, ["chunked_loss_layer='head'", "MindSpore has whole logits"]),
    ({"torch_compile_backend": "inductor"}, ["compiler of torch", "mindspore.jit"]),
    ({"torch_compile_mode": "max-autotune"}, ["mode of torch's compiler"]),
    ({"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}, ["no such options"]),
    *(
        ({name: 2}, [f"{name}=2", "semi_auto_parallel", "shard has no effect"])
        for name in ("tensor_parallel_size", "sequence_parallel_size", "expert_parallel_size")
    ),
    ({"sharding": "stage1"}, ["sharding='stage1'", "parallel optimizer", "Ascend"]),
    ({"fsdp": "full_shard"}, ["fsdp='full_shard'", "Ascend"]),
    ({"sharding_degree": 2}, ["sharding_degree=2", "nothing is sharded"]),
    ({"fsdp_config": {"min_num_params": 100}}, ["torch's FSDP"]),
    ({"data_order": "transformers", "group_by_length": True}, ["data_order='transformers'", "default generator"]),
]
FINE_ON_MINDSPORE = [
    {"data_order": "transformers"},
    {},
    {"fp16": True},
    {"fp16": True, "fp16_opt_level": "O3"},
    {"fp16_full_eval": True},
    {"bf16": True, "fp16_opt_level": "O0"},
    {"torch_compile": True, "jit_mode_eval": True},
    {"recompute": True},
    {"full_determinism": True},
    *({"optim": name} for name in ("adamw", "adamw_hf", "adamw_torch", "sgd", "adagrad", "rmsprop")),
]


@pytest.mark.parametrize(
    ("given", "words"), ON_MINDSPORE, ids=lambda value: "-".join(value) if isinstance(value, dict) else ""
)
def test_refused_on_mindspore(given, words):
    with pytest.raises(UnsupportedError) as caught:
        TrainingArguments("out", **given).check_backend("mindspore", "cpu")
    for word in [*words, "mindspore", "cpu", "Instead: "]:
        assert word in str(caught.value)


@pytest.mark.parametrize("given", FINE_ON_MINDSPORE, ids=lambda given: "-".join(map(str, given)) or "defaults")
def test_not_refused_on_mindspore(given):
    assert refused(given, "mindspore") == []


def test_bfloat16_is_for_the_accelerators_of_mindspore():
    assert [refused({"bf16": True}, "mindspore", device) for device in ("cpu", "npu")] == [["bf16"], []]


# With world_invariant, on torch; what else cannot be is found in a run (tests/distributed/test_world_invariance.py).
NOT_INVARIANT = [
    ({"sharding": "stage2"}, ['sharding="stage1"']),
    ({"sharding": "stage3"}, ['sharding="stage1"']),
    ({"deepspeed": "config.json"}, ["it adds gradients up itself"]),
    ({"tensor_parallel_size": 2}, ["activations are added up", "remove tensor_parallel_size"]),
    ({"sequence_parallel_size": 2}, ["remove sequence_parallel_size"]),
    ({"expert_parallel_size": 2}, ["remove expert_parallel_size"]),
    ({"auto_find_batch_size": True}, ["a smaller per_device_train_batch_size"]),
    ({"average_tokens_across_devices": False}, ["a mean over processes"]),
    ({"data_order": "transformers"}, ['data_order="oneloop"']),
    ({"past_index": 1}, ["remove past_index"]),
    ({"torch_compile": True}, ["compiled kernels", "remove torch_compile"]),
]


@pytest.mark.parametrize(("given", "words"), NOT_INVARIANT, ids=lambda value: next(iter(value), ""))
def test_not_with_world_invariant(given, words):
    with pytest.raises(UnsupportedError) as caught:
        TrainingArguments("out", world_invariant=True, **given).check_backend("torch", "cpu")
    for word in ["world_invariant=True cannot be used", *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize("backend", ["paddle", "mindspore", "mindtorch"])
def test_world_invariant_is_of_torch(backend):
    with pytest.raises(UnsupportedError, match="an order that depends on the number of processes. Instead: remove it"):
        TrainingArguments("out", world_invariant=True).check_backend(backend, "cpu")


def test_accelerators_need_full_determinism_for_world_invariant():
    given = {"world_invariant": True}
    assert [refused(given, "torch", device) for device in ("cpu", "cuda")] == [[], ["world_invariant"]]
    assert refused(given | {"full_determinism": True, "sharding": "stage1"}, "torch", "cuda") == []


def test_every_refusal_is_tried_here():
    tried = {name for given, _ in [*REFUSED, *ON_PADDLE, *ON_MINDSPORE, *DIVIDED] for name in given}
    tried |= {"world_invariant"}  # above
    assert {unsupported.argument for unsupported in support.all_unsupported()} <= tried | {
        "ddp_static_graph"
    }  # which is next


@pytest.mark.parametrize(("backend", "title"), [("paddle", "Paddle"), ("mindspore", "MindSpore")])
def test_static_graphs_are_of_torch(backend, title, monkeypatch):
    args = TrainingArguments("out", ddp_static_graph=True)
    args.check_backend(backend, "cpu")  # one process has nothing to share
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UnsupportedError, match=f"ddp_static_graph=True cannot be used on {backend}.*{title}'s data"):
        args.check_backend(backend, "cpu")


def test_all_that_is_refused_is_said_at_once():
    args = TrainingArguments("out", tf32=True, use_ipex=True, push_to_hub=True)
    with pytest.raises(UnsupportedError) as caught:
        args.check_backend("torch", "cpu")
    assert all(name in str(caught.value) for name in ("tf32", "use_ipex", "push_to_hub"))


def test_a_device_that_can_is_not_refused():
    assert [refused({"tf32": True}, "torch", device) for device in ("cpu", "cuda")] == [["tf32"], []]
    assert [refused({"device": "mps"}, "torch", device) for device in ("cpu", "mps")] == [["device"], []]


def test_a_missing_package_is_an_import_error_too(monkeypatch):
    args = TrainingArguments("out", optim="adamw_bnb_8bit")
    with pytest.raises(MissingPackageError):
        args.check_backend("torch", "cpu")
    with pytest.raises(ImportError):
        args.check_backend("torch", "cpu")
    monkeypatch.setattr(packages, "installed", lambda module: True)
    args.check_backend("torch", "cpu")


def test_a_package_that_nothing_here_uses_stays_refused(monkeypatch):
    monkeypatch.setattr(packages, "installed", lambda module: True)
    with pytest.raises(UnsupportedError, match="is installed, but this release does not use it yet"):
        TrainingArguments("out", use_ipex=True).check_backend("torch", "cpu")


def test_a_writer_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(packages, "installed", lambda module: False)
    with pytest.raises(MissingPackageError, match="visualdl"):
        TrainingArguments("out", report_to="visualdl").check_backend("torch", "cpu")


def test_several_processes_are_refused_where_no_backend_runs_them(monkeypatch):
    # Other tests may have imported accelerate, whose state would wait for the second process.
    monkeypatch.setattr(accelerate_state, "is_imported", lambda: False)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    for backend in ("torch", "paddle", "mindspore"):
        TrainingArguments("out").check_backend(backend, "cpu")
    with pytest.raises(UnsupportedError, match="2 processes were launched, but on mindtorch"):
        TrainingArguments("out").check_backend("mindtorch", "cpu")


# -- what dividing state cannot be together with

CONFIG = {"zero_optimization": {"stage": 2}}
TENSOR = {"tensor_parallel_size": 2}
DIVIDED = [
    ({"sharding": "stage2", "auto_find_batch_size": True}, ["sharding='stage2'", "out of memory"]),
    ({"fsdp": "full_shard", "bf16_full_eval": True}, ["fsdp='full_shard'", "bf16=True"]),
    ({"sharding": "stage1", "sharding_degree": 3}, ["sharding_degree=3", "a divisor of the number of processes"]),
    ({"sharding_degree": 2}, ["sharding_degree=2", "set sharding"]),
    ({"deepspeed": CONFIG, "ema_decay": 0.9}, ["ema_decay=0.9", "whole weights", 'sharding="stage2" or "stage3"']),
    ({"deepspeed": CONFIG, "swa_start": 2}, ["swa_start=2", "whole weights"]),
    ({"deepspeed": CONFIG, "optim": "muon"}, ["optim='muon'", "whole matrices", 'sharding="stage2" or "stage3"']),
    (
        {"sharding": "stage1", "optim": "galore_adamw", "optim_target_modules": ["x"]},
        ["galore_adamw", "whole matrices"],
    ),
    ({"fsdp_config": {"min_num_params": 9}, "sharding": "stage1"}, ["fsdp_config", "full_shard"]),
    ({"fsdp": "full_shard", "fsdp_config": {"fsdp_use_orig_params": False}}, ["fsdp_config", "use_orig_params"]),
    ({"fsdp": "full_shard", "fsdp_config": {"fsdp_version": 3}}, ["fsdp_config", "version"]),
    ({"fsdp": "full_shard", "fsdp_config": {"reshard_after_forward": "FULL_SHARD"}}, ["fsdp_config", "version 1"]),
    ({"fsdp": "full_shard", "fsdp_config": {"activation_checkpointing_offload": True}}, ["computed again"]),
    ({"fsdp": "full_shard", "fsdp_config": {"backward_prefetch": "NO_PREFETCH"}}, ["always prefetched"]),
    ({"fsdp": "full_shard", "fsdp_config": {"state_dict_type": "LOCAL_STATE_DICT"}}, ["one checkpoint format"]),
    ({"fsdp": "full_shard", "fsdp_config": {"limit_all_gathers": False}}, ["limit_all_gathers"]),
    ({"deepspeed": CONFIG, "sharding": "stage1"}, ["both shard"]),
    ({"deepspeed": CONFIG, "fp16_full_eval": True}, ["deepspeed=", "bf16=True"]),
    ({"deepspeed": CONFIG, "nonfinite": "skip"}, ["nonfinite='stop'"]),
    ({"deepspeed": CONFIG, "loss_spike": "rollback"}, ["loss_spike='warn'"]),
    ({"deepspeed": CONFIG, "auto_find_batch_size": True}, ["per_device_train_batch_size"]),
    ({"deepspeed": CONFIG, "trace_steps": "0-2"}, ["trace_steps=", "keeps gradients and state to itself"]),
    ({"deepspeed": CONFIG, "verify_steps": 2}, ["verify_steps=", "keeps gradients and state to itself"]),
    (TENSOR | {"sharding": "stage1"}, ["sharding='stage1'", "which tensor_parallel_size divides", '"stage3"']),
    (TENSOR | {"sharding": "stage3 offload"}, ["sharding='stage3 offload'", "the host"]),
    (TENSOR | {"deepspeed": CONFIG}, ["deepspeed=", "the batch over all processes"]),
    (TENSOR | {"torch_compile": True}, ["torch_compile=True", "that tensor_parallel_size divides are not compiled"]),
    (TENSOR | {"jit_mode_eval": True}, ["jit_mode_eval=True", "that tensor_parallel_size divides are not compiled"]),
    (TENSOR | {"auto_find_batch_size": True}, ["auto_find_batch_size=True", "with tensor_parallel_size", "memory"]),
    (TENSOR | {"fp16_full_eval": True}, ["fp16_full_eval=True", "bf16=True"]),
    (TENSOR | {"bf16_full_eval": True}, ["bf16_full_eval=True", "bf16=True"]),
    (
        TENSOR | {"optim": "apollo_adamw", "optim_target_modules": ["x"]},
        ["optim='apollo_adamw'", "which tensor_parallel_size divides", "optim='adamw_torch'"],
    ),
]


@pytest.fixture
def two_processes(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(packages, "installed", lambda module: True)


@pytest.mark.parametrize(
    ("given", "words"), DIVIDED, ids=lambda value: "-".join(value) if isinstance(value, dict) else ""
)
def test_what_divided_state_cannot_be_together_with(given, words, two_processes):
    with pytest.raises(UnsupportedError) as caught:
        TrainingArguments("out", **given).check_backend("torch", "cpu")
    for word in [*words, "Instead: "]:
        assert word in str(caught.value)


def test_every_refusal_about_dividing_is_tried(two_processes):
    """But for keys of fsdp_config, which are all alike."""
    tried = [TrainingArguments("out", **given) for given, _ in DIVIDED]
    tried += [TrainingArguments("out", world_invariant=True, **given) for given, _ in NOT_INVARIANT]
    for unsupported in support.in_sections(Section.SHARDING, Section.SHARDING_OPTIONS):
        if unsupported.value_text == "with one process":
            continue  # tried below
        if unsupported.devices:
            continue  # tried above
        if unsupported.argument != "fsdp_config" or unsupported.value_text == "without fsdp":
            assert any(unsupported.applies(args, "torch", "cpu") for args in tried), unsupported.value_text


def test_deepspeed_divides_among_several_processes(monkeypatch):
    args = TrainingArguments("out", deepspeed=CONFIG, save_strategy="no")
    with pytest.raises(MissingPackageError, match="pip install deepspeed"):
        args.check_backend("torch", "cpu")
    monkeypatch.setattr(packages, "installed", lambda module: True)
    with pytest.raises(UnsupportedError, match="torchrun"):
        args.check_backend("torch", "cpu")


def test_an_unknown_key_of_fsdp_config():
    with pytest.raises(ArgumentError, match="min_num_params"):
        TrainingArguments("out", fsdp_config={"min_parameters": 1})
