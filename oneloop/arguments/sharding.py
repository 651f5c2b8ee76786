"""Translates between the three spellings of sharding: `sharding`, `fsdp` and `sharded_ddp`."""

from typing import TYPE_CHECKING, Any

from . import values

if TYPE_CHECKING:
    from .given import Config, Words
    from .training import TrainingArguments

STAGES = ("stage1", "stage2", "stage3", "replicate")
EXTRAS = ("hybrid", "offload", "auto_wrap")
FSDP = {
    "full_shard": "stage3",
    "shard_grad_op": "stage2",
    "hybrid_shard": "stage3 hybrid",
    "hybrid_shard_zero2": "stage2 hybrid",
    "no_shard": "replicate",
}
SHARDED_DDP = {"simple": "stage1", "zero_dp_2": "stage2", "zero_dp_3": "stage3"}


def _canonical(name: str, value: Any, words: list[str]) -> str:
    stages = [word for word in STAGES if word in words]
    extras = [word for word in EXTRAS if word in words]
    if len(stages) > 1 or (extras and not stages):
        raise values.invalid(name, value, "exactly one sharding stage, optionally with offload and auto_wrap")
    return " ".join(stages + extras)


def to_sharding(name: str, value: "Words") -> str:
    words = values.to_words(name, value)
    for word in words:
        values.to_member(name, word, STAGES + EXTRAS)
    return _canonical(name, value, words)


def _translate(name: str, value: Any, table: dict[str, str], when_true: str) -> str:
    if value is True or value in ("True", "true"):
        value = when_true
    words: list[str] = []
    for word in values.to_words(name, value or ""):
        allowed = (*table, "offload", "auto_wrap")
        words += table.get(values.to_member(name, word, allowed), word).split()
    return _canonical(name, value, words)


def _back(sharding: str, table: dict[str, str]) -> str:
    words = sharding.split()
    stage = [word for word in words if word in STAGES]
    wanted = " ".join(stage + [word for word in words if word == "hybrid"])
    name = next((key for key, meaning in table.items() if meaning == wanted), None)
    return " ".join([name, *(word for word in words if word in ("offload", "auto_wrap"))]) if name else ""


def from_fsdp(value: "bool | Words", current: Any) -> str:
    return _translate("fsdp", value, FSDP, "full_shard")


def as_fsdp(sharding: str) -> str:
    """stage1 has no FSDP equivalent and is ""."""
    return _back(sharding, FSDP)


def from_sharded_ddp(value: "bool | Words", current: Any) -> str:
    return _translate("sharded_ddp", value, SHARDED_DDP, "simple")


def as_sharded_ddp(sharding: str) -> str:
    return _back(sharding, SHARDED_DDP)


# -- fsdp_config: key -> (supported values, or None for any; what to do instead of other values)

FSDP_CONFIG: dict[str, tuple[tuple[Any, ...] | None, str]] = {
    "min_num_params": (None, ""),
    "transformer_layer_cls_to_wrap": (None, ""),
    "auto_wrap_policy": (
        ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"),
        "leave it out: without classes and sizes the layers are detected",
    ),
    "activation_checkpointing": ((True, False), "true or false"),
    "activation_checkpointing_offload": ((False,), "leave it out: activations are computed again, and none are kept"),
    "backward_prefetch": (("backward_pre", "BACKWARD_PRE"), "leave it out: the next layer is always prefetched"),
    "cpu_ram_efficient_loading": ((True, False), "true or false"),
    "forward_prefetch": ((True, False), "true or false"),
    "ignored_modules": (None, ""),
    "limit_all_gathers": ((True,), "leave it out"),
    "reshard_after_forward": ((True, False), "true or false; fsdp names the strategies of version 1"),
    "state_dict_type": (
        ("FULL_STATE_DICT", "SHARDED_STATE_DICT"),
        "leave it out: there is only one checkpoint format",
    ),
    "sync_module_states": ((True, False), "true or false: weights are always broadcast from the main process"),
    "use_orig_params": ((True,), "leave it out: parameters keep their names and shapes"),
    "version": ((1, 2), "leave it out"),
    "xla": ((False,), "a GPU: TPUs (XLA) are not supported"),
    "xla_fsdp_grad_ckpt": ((False,), "a GPU: TPUs (XLA) are not supported"),
    "xla_fsdp_settings": (({},), "a GPU: TPUs (XLA) are not supported"),
}


def to_fsdp_config(name: str, value: "Config") -> dict[str, Any]:
    """Also accepts keys with the prefix fsdp_, as in configuration files of accelerate."""
    config = {key.removeprefix("fsdp_"): inner for key, inner in values.to_config(name, value).items()}
    for key, inner in config.items():
        if key not in FSDP_CONFIG:
            raise values.invalid(f"{name}[{key!r}]", inner, "one of the keys " + ", ".join(FSDP_CONFIG))
    return config


def unsupported_keys(config: dict[str, Any] | None) -> list[str]:
    """Keys of fsdp_config with an unsupported value."""
    found = []
    for key, value in (config or {}).items():
        honoured = FSDP_CONFIG[key][0]
        if honoured is not None and value not in (None, *honoured):
            found.append(key)
    return found


# -- derived settings


def reshards(args: "TrainingArguments") -> bool:
    """Whether a layer is resharded after its forward pass: stage 3, unless fsdp_config says otherwise."""
    asked = (args.fsdp_config or {}).get("reshard_after_forward")
    return "stage3" in args.sharding.split() if asked is None else bool(asked)


def recomputes(args: "TrainingArguments") -> bool:
    """Whether fsdp_config asks for what gradient_checkpointing does."""
    return divides(args) and bool((args.fsdp_config or {}).get("activation_checkpointing"))


def divides(args: "TrainingArguments") -> bool:
    """Whether gradients or parameters are sharded: stages 2 and 3."""
    return "stage2" in args.sharding or "stage3" in args.sharding
