"""What is not supported on PyTorch: optimizers of missing packages, DeepSpeed, and what cannot be combined with
sharding."""

from collections.abc import Callable
from typing import Any

from ...arguments import packages
from ...arguments.optimization import PROJECTING
from ...arguments.packages import NOT_DRIVEN, OPTIMIZERS
from ...arguments.refusal import Refusal, Section, average_of_shards
from ...arguments.sharding import FSDP_CONFIG, divides, not_honoured
from ...distributed.world import world


def _optimizer(name: str) -> Refusal:
    module, package = OPTIMIZERS[name]
    plain = "sgd" if name.endswith("sgd") else "adafactor" if "adafactor" in name else "adamw_torch"
    if name in NOT_DRIVEN:
        plain = (
            name.removesuffix("_layerwise").replace("_8bit", "") if name.endswith(("_layerwise", "_8bit")) else plain
        )
        return Refusal(
            "optim", name, lambda args: args.optim == name, f"this optimizer of {package} {NOT_DRIVEN[name]}",
            f'optim="{plain}"', section=Section.PACKAGES,
        )  # fmt: skip
    return Refusal(
        "optim", name, lambda args: args.optim == name, f"needs {package}", f'optim="{plain}"',
        section=Section.PACKAGES, module=module, package=package, driven=True,
    )  # fmt: skip


def _fsdp_key(key: str) -> Refusal:
    return Refusal(
        "fsdp_config",
        key,
        lambda args: key in not_honoured(args.fsdp_config),
        f"its key {key} is not supported with this value",
        FSDP_CONFIG[key][1],
        section=Section.SHARDING_OPTIONS,
    )


def _divided(with_what: str, when: Callable[[Any], bool], why: str, instead: str) -> Refusal:
    """What stages 2 and 3 cannot be combined with, on several processes."""
    return Refusal(
        "sharding",
        f"stage2, stage3 with {with_what}",
        lambda args: world().size > 1 and divides(args) and when(args),
        why,
        instead,
        section=Section.SHARDING,
    )


def _with_deepspeed(with_what: str, when: Callable[[Any], bool], why: str, instead: str) -> Refusal:
    return Refusal(
        "deepspeed",
        f"with {with_what}",
        lambda args: bool(args.deepspeed) and packages.installed("deepspeed") and when(args),
        why,
        instead,
        section=Section.SHARDING,
    )


def _shards(args: Any) -> bool:
    return world().size > 1 and bool(args.sharding or args.deepspeed)


def _shards_weights(args: Any) -> bool:
    return _shards(args) and (divides(args) or bool(args.deepspeed))


REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "deepspeed", "any", lambda args: bool(args.deepspeed), "needs deepspeed", "pip install deepspeed, or sharding",
        module="deepspeed", package="deepspeed", driven=True, section=Section.ENGINE,
    ),
    *(_optimizer(name) for name in OPTIMIZERS),
    Refusal(
        "optim", "muon, with sharding stage2, stage3 or deepspeed",
        lambda args: args.optim == "muon" and _shards_weights(args),
        "it needs whole matrices and their gradients, which are sharded", 'sharding="stage1"', section=Section.SHARDING,
    ),
    Refusal(
        "optim", "galore_adamw, galore_adafactor, apollo_adamw, with sharding or deepspeed",
        lambda args: str(args.optim).startswith(PROJECTING) and _shards(args),
        "it needs whole matrices and their gradients, which are sharded", "remove sharding", section=Section.SHARDING,
    ),
    *(average_of_shards(name, _shards_weights, Section.SHARDING) for name in ("ema_decay", "swa_start")),
    _divided(
        "auto_find_batch_size", lambda args: args.auto_find_batch_size,
        "all processes must run the same forward passes, so one that runs out of memory cannot repeat its own",
        "a smaller per_device_train_batch_size with more gradient_accumulation_steps",
    ),
    _divided(
        "fp16_full_eval, bf16_full_eval", lambda args: args.fp16_full_eval or args.bf16_full_eval,
        "sharded weights keep their dtype", "bf16=True, which evaluates in half precision too",
    ),
    _with_deepspeed("one process", lambda args: world().size == 1, "it shards state across processes", "torchrun"),
    _with_deepspeed("sharding", lambda args: bool(args.sharding), "both shard the state", "one of them"),
    _with_deepspeed(
        "fp16_full_eval, bf16_full_eval", lambda args: args.fp16_full_eval or args.bf16_full_eval,
        "its weights keep their dtype", "bf16=True, which evaluates in half precision too",
    ),
    _with_deepspeed(
        "nonfinite", lambda args: args.nonfinite == "skip", "an update cannot be skipped", "nonfinite='stop'"
    ),
    _with_deepspeed(
        "loss_spike='rollback'", lambda args: args.loss_spike == "rollback",
        "its engine cannot be created again in the same process", "loss_spike='warn', and resume by hand",
    ),
    _with_deepspeed(
        "auto_find_batch_size", lambda args: args.auto_find_batch_size,
        "all processes must run the same forward passes", "a smaller per_device_train_batch_size",
    ),
    Refusal(
        "fsdp_config", "without fsdp", lambda args: any((args.fsdp_config or {}).values()) and not divides(args),
        "it configures how gradients and parameters are sharded, but they are not",
        'fsdp="full_shard" or "shard_grad_op"', section=Section.SHARDING_OPTIONS,
    ),
    *(_fsdp_key(key) for key, (honoured, _) in FSDP_CONFIG.items() if honoured is not None),
)  # fmt: skip
