"""Argument values that are not supported on Paddle."""

from collections.abc import Callable
from typing import Any

from ...arguments.sharding import divides
from ...arguments.unsupported import (
    UnsupportedValue,
    fsdp_config,
    no_invariance,
    other_optimizers,
    static_graph,
    target_modules,
    unsupported_drawn_order,
    unsupported_tracing,
    unsupported_weight_average,
    whole_logits,
)
from ...distributed.world import world

_NO_HALF = "Paddle supports half precision on accelerators only; on a CPU its autocast would silently have no effect"


def _half(name: str) -> UnsupportedValue:
    return UnsupportedValue(
        name,
        "True",
        lambda args: getattr(args, name) and (name.endswith("_eval") or args.fp16_opt_level != "O0"),
        _NO_HALF,
        "remove it, or use a GPU",
        devices=("cpu",),
    )


BOTH = "stage2, stage3"


def _is_grouped(args: Any) -> bool:
    """Whether Paddle's group_sharded_parallel does the sharding. Stage 2 without offloading is oneloop's own."""
    words = args.sharding.split()
    return divides(args) and ("stage2" not in words or "offload" in words)


def _grouped(
    with_what: str, when: Callable[[Any], bool], why: str, instead: str, stages: str = "stage3, stage2 offload"
) -> UnsupportedValue:
    """What stage 3 cannot be combined with, on devices that support it, or stage 2 either."""
    applies = divides if stages == BOTH else _is_grouped
    return UnsupportedValue(
        "sharding",
        f"{stages} with {with_what}",
        lambda args: world().size > 1 and applies(args) and when(args),
        why,
        instead,
    )


def _divided(with_what: str, when: Callable[[Any], bool], why: str, instead: str) -> UnsupportedValue:
    """What layers that are divided cannot be combined with."""
    return UnsupportedValue(
        "tensor_parallel_size",
        f"with {with_what}",
        lambda args: args.tensor_parallel_size > 1 and when(args),
        why,
        instead,
    )


UNSUPPORTED: tuple[UnsupportedValue, ...] = (
    *(_half(name) for name in ("fp16", "bf16", "fp16_full_eval", "bf16_full_eval")),
    *other_optimizers("Paddle"),
    target_modules("Paddle"),
    UnsupportedValue(
        "torch_compile_backend", "other than CINN", lambda args: args.torch_compile_backend not in (None, "CINN"),
        "it is a compiler of torch", "remove it: the graph is compiled by paddle.jit.to_static",
    ),
    UnsupportedValue(
        "torch_compile_mode", "any", lambda args: args.torch_compile_mode is not None,
        "paddle.jit.to_static has no modes", "remove it",
    ),
    UnsupportedValue(
        "sharding", "stage3, stage2 offload", _is_grouped, "Paddle's group_sharded_parallel runs on accelerators only",
        'sharding="stage2"', devices=("cpu",),
    ),
    *(
        unsupported_weight_average(
            name, "sharding stage2, stage3 or deepspeed", lambda args: world().size > 1 and _is_grouped(args),
            'sharding="stage1"',
        )
        for name in ("ema_decay", "swa_start")
    ),
    _grouped(
        "complete checkpoints", lambda args: args.save_strategy != "no" and not args.save_only_model,
        "the optimizer state that Paddle shards is not saved in checkpoints",
        "save_only_model=True, save_strategy='no', or sharding=\"stage2\"",
    ),
    _grouped(
        "gradient_accumulation_steps", lambda args: args.gradient_accumulation_steps > 1,
        "Paddle reduces gradients in every backward pass", "a larger per_device_train_batch_size, or stage2",
    ),
    _grouped("fp16", lambda args: args.fp16, "its loss scale is not supported", "bf16=True, or stage2"),
    _grouped("torch_compile", lambda args: args.torch_compile, "it is not supported", 'sharding="stage1"', BOTH),
    _grouped("nonfinite", lambda args: args.nonfinite == "skip", "an update cannot be skipped", "nonfinite='stop'"),
    _grouped(
        "auto_find_batch_size", lambda args: args.auto_find_batch_size,
        "all processes must run the same forward passes", "a smaller per_device_train_batch_size", BOTH,
    ),
    UnsupportedValue(
        "sharding", "offload, auto_wrap with stage1",
        lambda args: not divides(args) and bool({"offload", "auto_wrap"} & set(args.sharding.split())),
        "stage 1 shards only the optimizer's state, which needs no wrapping and stays on the device",
        'sharding="stage1"',
    ),
    *unsupported_tracing(
        "with sharding stage2, stage3", lambda args: world().size > 1 and divides(args),
        "its gradients and weights are not whole after a step", 'sharding="stage1"',
    ),
    *unsupported_tracing(
        "with tensor_parallel_size", lambda args: args.tensor_parallel_size > 1,
        "each process has a part of gradients and weights", "tensor_parallel_size=1",
    ),
    _divided(
        "torch_compile, jit_mode_eval", lambda args: args.torch_compile or args.jit_mode_eval,
        "paddle.jit.to_static does not compile the DTensors of divided layers", "neither of them",
    ),
    _divided(
        "auto_find_batch_size", lambda args: args.auto_find_batch_size,
        "all processes must run the same forward passes", "a smaller per_device_train_batch_size",
    ),
    _divided(
        "sharding", lambda args: bool(args.sharding),
        "fleet's groups of sharding are made of all processes",
        "no sharding: processes beyond tensor_parallel_size divide the batch",
    ),
    unsupported_drawn_order("Paddle"),
    fsdp_config(),
    no_invariance("Paddle"),
    *whole_logits("Paddle"),
    static_graph("Paddle", lambda: world().size),
)  # fmt: skip
