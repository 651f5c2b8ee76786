"""What `accelerate launch --config_file x.yaml script.py` sets: the keys of the file, as environment variables.

They are the defaults of arguments that the script leaves at theirs, as with transformers' Trainer. What there is no
argument for is refused: a run that silently left out a part of its configuration would be another one.

| keys of the file | argument |
|---|---|
| `fsdp_config` | `sharding` and `fsdp_config` |
| `deepspeed_config` | `deepspeed` |
| `mixed_precision` | `fp16`, `bf16` |
| `dynamo_config` | `torch_compile_backend`, `torch_compile_mode` |
| `use_cpu` | `use_cpu` |
| `parallelism_config` | `sharding_degree`, `tensor_parallel_size`, `sequence_parallel_size` |
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..distributed.world import world
from ..errors import ArgumentError, UnsupportedError
from ..parser.values import TRUE_WORDS
from . import parallelism
from .sharding import FSDP

if TYPE_CHECKING:
    from .training import TrainingArguments

_STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")  # 1 to 5

# Variable without its prefix -> key of fsdp_config. In version 2 accelerate ignores the second list.
_FSDP_KEYS = {
    "AUTO_WRAP_POLICY": "auto_wrap_policy",
    "TRANSFORMER_CLS_TO_WRAP": "transformer_layer_cls_to_wrap",
    "STATE_DICT_TYPE": "state_dict_type",
    "CPU_RAM_EFFICIENT_LOADING": "cpu_ram_efficient_loading",
    "ACTIVATION_CHECKPOINTING": "activation_checkpointing",
    "ACTIVATION_CHECKPOINTING_OFFLOAD": "activation_checkpointing_offload",
    "FORWARD_PREFETCH": "forward_prefetch",
    "IGNORED_MODULES": "ignored_modules",
}
_FSDP1_KEYS = {
    "BACKWARD_PREFETCH": "backward_prefetch",
    "USE_ORIG_PARAMS": "use_orig_params",
    "SYNC_MODULE_STATES": "sync_module_states",
}


def apply(args: "TrainingArguments") -> None:
    """Fill in what the launcher says, where the arguments say nothing."""
    found = settings(os.environ)
    if world().launcher != "torch":
        found = {name: value for name, value in found.items() if name not in ("sharding", "fsdp_config", "deepspeed")}
    for name in ("tensor_parallel_size", "sequence_parallel_size"):
        if getattr(args, name) not in (None, 1):
            found.pop(name, None)
    if args.sharding or args.fsdp_config or args.deepspeed:
        found = {name: value for name, value in found.items() if not _divides(name)}
    if args.fp16 or args.bf16:
        found = {name: value for name, value in found.items() if name not in ("fp16", "bf16")}
    if args.torch_compile_backend or args.torch_compile_mode or args.torch_compile:
        found = {name: value for name, value in found.items() if not name.startswith("torch_compile")}
    if args.device_spec is not None:
        found.pop("device_spec", None)
    for name, value in found.items():
        setattr(args, name, value)


def _divides(name: str) -> bool:
    return name in ("sharding", "sharding_degree", "fsdp_config", "deepspeed")


def settings(variables: Mapping[str, str]) -> dict[str, Any]:
    """The arguments that the variables of the launcher stand for; {} without it."""
    found: dict[str, Any] = {}
    if _is_on(variables, "ACCELERATE_USE_CPU"):
        found["device_spec"] = "cpu"
    found |= _precision(variables) | _compilation(variables) | _axes(variables)
    if _is_on(variables, "ACCELERATE_USE_FSDP"):
        found |= _fsdp(variables)
    elif "sharding_degree" in found:
        raise ArgumentError(
            f"accelerate launch: parallelism_config has dp_shard_size={found['sharding_degree']}, but nothing is "
            "sharded. Set distributed_type: FSDP in the file, or use dp_replicate_size."
        )
    if _is_on(variables, "ACCELERATE_USE_DEEPSPEED"):
        found["deepspeed"] = _deepspeed(variables)
    if _is_on(variables, "ACCELERATE_USE_MEGATRON_LM"):
        raise UnsupportedError(
            "accelerate launch: distributed_type MEGATRON_LM trains models of Megatron-LM in its own loop. Choose FSDP "
            "or DEEPSPEED in `accelerate config`."
        )
    return found


def _is_on(variables: Mapping[str, str], name: str) -> bool:
    return variables.get(name, "").strip().lower() in TRUE_WORDS


def _precision(variables: Mapping[str, str]) -> dict[str, Any]:
    kind = variables.get("ACCELERATE_MIXED_PRECISION", "no").strip().lower() or "no"
    if kind == "no":
        return {}
    if kind not in ("fp16", "bf16"):
        raise UnsupportedError(
            f"accelerate launch: mixed_precision {kind} needs kernels of an accelerator that nothing here calls. "
            "Choose bf16 in `accelerate config`, or pass --mixed_precision bf16."
        )
    return {kind: True}


def _compilation(variables: Mapping[str, str]) -> dict[str, Any]:
    backend = variables.get("ACCELERATE_DYNAMO_BACKEND", "no").strip().lower() or "no"
    if backend == "no":
        return {}
    for key in ("fullgraph", "dynamic", "regional_compilation"):
        if _is_on(variables, f"ACCELERATE_DYNAMO_USE_{key.upper()}"):
            raise UnsupportedError(
                f"accelerate launch: dynamo_use_{key} has no argument of the Trainer. Remove it from dynamo_config, or "
                "compile parts of the model in the script."
            )
    mode = variables.get("ACCELERATE_DYNAMO_MODE", "default").strip() or "default"
    return {"torch_compile_backend": backend} | ({} if mode == "default" else {"torch_compile_mode": mode})


# -- FSDP


def _fsdp(variables: Mapping[str, str]) -> dict[str, Any]:
    def value(name: str) -> str:
        return variables.get(f"FSDP_{name}", "").strip()

    is_first = value("VERSION") == "1"
    config: dict[str, Any] = {}
    for name, key in (_FSDP_KEYS | (_FSDP1_KEYS if is_first else {})).items():
        given = _plain(value(name))
        if given not in (None, "") and given is not False:
            config[key] = given
        elif given is False and key in ("use_orig_params", "sync_module_states"):
            config[key] = False
    if config.get("auto_wrap_policy") == "SIZE_BASED_WRAP":
        config["min_num_params"] = int(value("MIN_NUM_PARAMS") or 0)
    if config.get("auto_wrap_policy") != "TRANSFORMER_BASED_WRAP":
        config.pop("transformer_layer_cls_to_wrap", None)
    sharding = _sharding(value("RESHARD_AFTER_FORWARD"), value("SHARDING_STRATEGY"), is_first)
    if _plain(value("OFFLOAD_PARAMS")):
        sharding += " offload"
    return {"sharding": sharding, "fsdp_config": config}


def _plain(text: str) -> Any:
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def _sharding(reshard: str, strategy: str, is_first: bool) -> str:
    """Version 1 has names for what is sharded, in either variable; version 2 asks whether to reshard."""
    if not is_first:
        return "stage3" if _plain(reshard) is not False else "stage2"
    for text in (reshard.lower(), strategy.lower()):
        name = _STRATEGIES[int(text) - 1] if text in ("1", "2", "3", "4", "5") else text
        if name in FSDP and (text == strategy.lower() or name != "full_shard"):
            return FSDP[name]
    if strategy and strategy.lower() not in FSDP:
        raise ArgumentError(
            f"accelerate launch: fsdp_sharding_strategy is {strategy!r}: expected one of {', '.join(_STRATEGIES)}"
        )
    return "stage3"


# -- axes


def _axes(variables: Mapping[str, str]) -> dict[str, Any]:
    """parallelism_config, which may be there without FSDP."""
    if not _is_on(variables, "ACCELERATE_USE_PARALLELISM_CONFIG"):
        return {}
    name = "accelerate launch: parallelism_config"
    sizes = {key: int(variables.get(f"PARALLELISM_CONFIG_{key.upper()}", "1") or 1) for key in parallelism.SIZES}
    sizes = {key: size for key, size in sizes.items() if size > 1}
    parallelism.check_processes(sizes, name)
    return dict(parallelism.arguments_of(sizes, name))


# -- DeepSpeed


def _deepspeed(variables: Mapping[str, str]) -> str | dict[str, Any]:
    """The file, or the configuration that accelerate makes of the keys."""
    file = variables.get("ACCELERATE_DEEPSPEED_CONFIG_FILE", "none")
    if file.lower() != "none":
        return file

    def value(name: str, default: str) -> str:
        return variables.get(f"ACCELERATE_{name}", default).strip() or default

    def offload(what: str) -> dict[str, Any]:
        device = value(f"DEEPSPEED_OFFLOAD_{what}_DEVICE", "none")
        path = value(f"DEEPSPEED_OFFLOAD_{what}_NVME_PATH", "none")
        return {"device": device} | ({"nvme_path": path} if device == "nvme" else {})

    accumulation, clipping = value("GRADIENT_ACCUMULATION_STEPS", "auto"), value("GRADIENT_CLIPPING", "auto")
    zero: dict[str, Any] = {"stage": int(value("DEEPSPEED_ZERO_STAGE", "2"))}
    zero |= {"offload_optimizer": offload("OPTIMIZER"), "offload_param": offload("PARAM")}
    classes = variables.get("ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES", "")
    if classes:
        zero["leaf_module"] = {"classes": [name.strip() for name in classes.split(",")]}
    return {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": int(accumulation) if accumulation.isdigit() else "auto",
        "gradient_clipping": "auto" if clipping in ("auto", "none") else float(clipping),
        "zero_optimization": zero,
    }
