"""Argument values that are not supported on MindSpore."""

from ...arguments.unsupported import (
    UnsupportedValue,
    fsdp_config,
    no_invariance,
    other_optimizers,
    static_graph,
    target_modules,
    unsupported_drawn_order,
    whole_logits,
)
from ...distributed.world import world

_NO_BF16 = "MindSpore has no bfloat16 kernels for a CPU"


def _bf16(name: str) -> UnsupportedValue:
    return UnsupportedValue(
        name,
        "True",
        lambda args: getattr(args, name) and (name.endswith("_eval") or args.fp16_opt_level != "O0"),
        _NO_BF16,
        f"{name.replace('bf16', 'fp16')}=True, or remove it",
        devices=("cpu",),
    )


def _axis(name: str) -> UnsupportedValue:
    return UnsupportedValue(
        name,
        "more than 1",
        lambda args: getattr(args, name) > 1,
        "MindSpore divides layers in compiled graphs only (semi_auto_parallel), on Ascend and GPUs; step by step, its "
        "shard has no effect",
        "1, with a smaller model or gradient_checkpointing=True, or a PyTorch or Paddle model",
    )


UNSUPPORTED: tuple[UnsupportedValue, ...] = (
    *(_axis(name) for name in ("tensor_parallel_size", "sequence_parallel_size", "expert_parallel_size")),
    *(_bf16(name) for name in ("bf16", "bf16_full_eval")),
    *other_optimizers("MindSpore", but=("adafactor",)),
    target_modules("MindSpore"),
    UnsupportedValue(
        "optim", "adafactor", lambda args: args.optim == "adafactor",
        "MindSpore's nn.AdaFactor is for Ascend, and ignores the weight decay of parameter groups",
        'optim="adamw", "sgd", "rmsprop" or "adagrad", or your own optimizer in optimizers=',
    ),
    UnsupportedValue(
        "torch_compile_backend", "any", lambda args: args.torch_compile_backend is not None,
        "it is a compiler of torch", "remove it: torch_compile=True uses mindspore.jit",
    ),
    UnsupportedValue(
        "torch_compile_mode", "any", lambda args: args.torch_compile_mode is not None,
        "it is a mode of torch's compiler", "remove it",
    ),
    UnsupportedValue(
        "sharding", "any", lambda args: bool(args.sharding) and args.sharding != "replicate",
        "MindSpore shards optimizer state with its parallel optimizer, which is for graphs on Ascend only",
        "remove it: every process keeps all of it",
    ),
    UnsupportedValue(
        "sharding_degree", "any", lambda args: args.sharding_degree != -1, "nothing is sharded on MindSpore",
        "remove it",
    ),
    unsupported_drawn_order("MindSpore"),
    fsdp_config(),
    no_invariance("MindSpore"),
    *whole_logits("MindSpore"),
    static_graph("MindSpore", lambda: world().size),
    UnsupportedValue(
        "gradient_checkpointing_kwargs", "any", lambda args: bool(args.gradient_checkpointing_kwargs),
        "MindSpore's recomputation has no such options", "remove it",
    ),
)  # fmt: skip
