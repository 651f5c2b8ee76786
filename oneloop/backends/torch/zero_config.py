"""The configuration of DeepSpeed: read, compared with the arguments, and completed from them and from the model.

"auto" is the value of the argument, or one computed from the hidden size of
the model. Where neither is known, DeepSpeed's default is used.
"""

import json
import logging
from pathlib import Path
from typing import Any

from ...errors import ArgumentError, UnsupportedError

logger = logging.getLogger(__name__)

AUTO = "auto"
HALVES = ("fp16", "bf16")


def read(value: Any) -> dict[str, Any]:
    """The dict, or the contents of the JSON file."""
    if isinstance(value, dict):
        return json.loads(json.dumps(value))
    try:
        return json.loads(Path(value).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArgumentError(f"deepspeed={value!r} cannot be read as a JSON file: {error}") from error


def filled(config: dict[str, Any], args: Any) -> dict[str, Any]:
    """The configuration with what the arguments decide; one error lists contradictions. What is still "auto" depends
    on the model: see finished()."""
    known = {
        "train_micro_batch_size_per_gpu": args.train_batch_size,
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        "train_batch_size": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "gradient_clipping": args.max_grad_norm or 0.0,
    }
    wrong = [
        f"{name} is {config[name]} there and {value} here"
        for name, value in known.items()
        if config.get(name, AUTO) not in (AUTO, value)
    ]
    wrong += _contradicting_optimizer(config, args) + _contradicting_halves(config, args)
    if wrong:
        raise ArgumentError(
            f'the configuration in deepspeed= contradicts the arguments: {"; ".join(wrong)}. Set these to "auto" there.'
        )
    _refuse_sections(config, args)
    kept = {name: value for name, value in config.items() if name not in ("optimizer", "scheduler", *HALVES)}
    defaults = {
        "steps_per_print": 2**31,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # optimizers are those of the arguments
    }
    return defaults | kept | _halves(config, args) | known


def finished(config: dict[str, Any], model: Any) -> dict[str, Any]:
    """The configuration without "auto": bucket sizes follow the hidden size of the model, if its config has one."""
    size = _hidden_size(getattr(model, "config", None))
    zero = config.get("zero_optimization")
    if size is not None and isinstance(zero, dict):
        computed = {"reduce_bucket_size": size * size}
        if zero.get("stage") == 3:
            computed["stage3_prefetch_bucket_size"] = int(0.9 * size * size)
            computed["stage3_param_persistence_threshold"] = 10 * size
        zero = zero | {key: value for key, value in computed.items() if zero.get(key) == AUTO}
        config = config | {"zero_optimization": zero}
    return _without_auto(config)


def half(config: dict[str, Any]) -> str | None:
    """The type of the weights in a filled configuration: fp16, bf16, or None for float32."""
    return next((name for name in HALVES if config.get(name, {}).get("enabled")), None)


def autocast(config: dict[str, Any]) -> str | None:
    """What DeepSpeed computes in with float32 weights, if its section torch_autocast is on."""
    section = config.get("torch_autocast") or {}
    if not section.get("enabled"):
        return None
    return "fp16" if str(section.get("dtype", "")) in ("float16", "fp16", "torch.float16", "half") else "bf16"


# -- half precision


def _contradicting_halves(config: dict[str, Any], args: Any) -> list[str]:
    found = []
    for name in HALVES:
        enabled = config.get(name, {}).get("enabled", AUTO)
        wanted = bool(getattr(args, name))
        if enabled != AUTO and bool(enabled) != wanted and autocast(config) != name:
            found.append(f"{name}.enabled is {enabled} there and {name} is {wanted} here")
    return found


def _halves(config: dict[str, Any], args: Any) -> dict[str, Any]:
    """The sections fp16 and bf16: on if the argument is, with or without a section, unless DeepSpeed autocasts."""
    found = {}
    for name in HALVES:
        if not getattr(args, name) or autocast(config):
            continue
        section = config.get(name) or ({"auto_cast": True} if name == "fp16" else {})
        found[name] = section | {"enabled": True}
    return found


# -- what the arguments decide


def _contradicting_optimizer(config: dict[str, Any], args: Any) -> list[str]:
    given = config.get("optimizer", {}).get("params", {})
    known = {
        "lr": args.learning_rate,
        "betas": [args.adam_beta1, args.adam_beta2],
        "eps": args.adam_epsilon,
        "weight_decay": args.weight_decay,
    }
    return [
        f"optimizer.params.{name} is {given[name]} there and {value} here"
        for name, value in known.items()
        if given.get(name, AUTO) not in (AUTO, value, tuple(value) if isinstance(value, list) else value)
    ]


def _refuse_sections(config: dict[str, Any], args: Any) -> None:
    _refuse_optimizer(config.get("optimizer", {}), args)
    _refuse_schedule(config.get("scheduler", {}), args)
    zero = config.get("zero_optimization", {})
    offloaded = [key for key in zero if key.startswith("offload_") and _device(zero[key]) != "none"]
    if offloaded and args.device.type == "cpu":
        raise UnsupportedError(
            f"deepspeed: {', '.join(offloaded)} moves state from an accelerator to the host; on a CPU it is there "
            "already. Remove it."
        )
    if config.get("managed_gradient_accumulation") is False:
        raise UnsupportedError(
            "deepspeed: managed_gradient_accumulation=false leaves the end of an update to the caller of step(), but "
            "the loop announces it. Remove it."
        )
    for section, key in (("tensor_parallel", "autotp_size"), ("zero_optimization", "mics_shard_size")):
        if (config.get(section, {}).get(key) or 0) > 1:
            raise UnsupportedError(
                f"deepspeed: {section}.{key} divides the processes into groups, and the loop distributes data over "
                "all of them. Remove it."
            )


def _device(section: Any) -> str:
    return (section or {}).get("device") or "none"


def _refuse_optimizer(section: dict[str, Any], args: Any) -> None:
    if not section:
        return
    params = section.get("params", {})
    others = [
        key
        for key, value in params.items()
        if key not in ("lr", "betas", "eps", "weight_decay", "torch_adam") and value != AUTO
    ]
    is_adam = str(section.get("type", "AdamW")).lower() in ("adam", "adamw")  # both decay weights as AdamW does
    if others or not is_adam or not str(getattr(args.optim, "value", args.optim)).startswith("adamw"):
        raise UnsupportedError(
            f"deepspeed: its section optimizer ({section.get('type')}) sets {', '.join(others) or 'the optimizer'}; "
            "the arguments do that here (optim, learning_rate and their like). Set optim, and remove the section."
        )


def _refuse_schedule(section: dict[str, Any], args: Any) -> None:
    if not section:
        return
    given = [key for key, value in section.get("params", {}).items() if value != AUTO]
    if given:
        raise UnsupportedError(
            f"deepspeed: its section scheduler sets {', '.join(given)}; the arguments do that here "
            '(lr_scheduler_type and warmup_steps). Set it to "auto" there, or remove the section.'
        )
    logger.warning(
        "deepspeed: its section scheduler (%s) is not used; the schedule is lr_scheduler_type=%s with warmup_steps.",
        section.get("type"),
        getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type),
    )


# -- what the model decides


def _hidden_size(config: Any) -> int | None:
    for each in (config, getattr(config, "text_config", None)):
        size = getattr(each, "hidden_size", None)
        if isinstance(size, int):
            return size
        sizes = getattr(each, "hidden_sizes", None)
        if sizes:
            return max(sizes)
    return None


def _without_auto(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_auto(inner) for key, inner in value.items() if inner != AUTO}
    return value
