"""What is not supported on PyTorch: optimizers of missing packages, DeepSpeed, and what cannot be combined with
sharding."""

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

from ...arguments import packages
from ...arguments.sharding import FSDP_CONFIG, divides, unsupported_keys
from ...arguments.unsupported import Section, UnsupportedValue, unsupported_tracing, unsupported_weight_average
from ...distributed.world import world
from ...optim.catalog import OPTIMIZERS, Optimizer


def _packaged(optimizer: Optimizer) -> UnsupportedValue:
    name, package, instead = optimizer.name, optimizer.package, f'optim="{optimizer.instead}"'
    if optimizer.unsupported:
        return UnsupportedValue(
            "optim", name, lambda args: args.optim == name, f"this optimizer of {package} {optimizer.unsupported}",
            instead, section=Section.PACKAGES,
        )  # fmt: skip
    return UnsupportedValue(
        "optim", name, lambda args: args.optim == name, f"needs {package}", instead, section=Section.PACKAGES,
        module=optimizer.module, package=package, driven=True,
    )  # fmt: skip


def _whole_matrices(
    kind: str, with_what: str, when: Callable[[Any], bool], instead: str, what: str = "are sharded"
) -> UnsupportedValue:
    """Optimizers that cannot be sharded, or not by DeepSpeed."""
    found = [optimizer for optimizer in OPTIMIZERS.values() if optimizer.sharding == kind]
    names = {optimizer.name for optimizer in found}
    return UnsupportedValue(
        "optim", f"{', '.join(each.name for each in found if not each.unsupported)}, with {with_what}",
        lambda args: str(args.optim) in names and when(args),
        f"it needs whole matrices and their gradients, which {what}", instead, section=Section.SHARDING,
    )  # fmt: skip


def _fsdp_key(key: str) -> UnsupportedValue:
    return UnsupportedValue(
        "fsdp_config",
        key,
        lambda args: key in unsupported_keys(args.fsdp_config),
        f"its key {key} is not supported with this value",
        FSDP_CONFIG[key][1],
        section=Section.SHARDING_OPTIONS,
    )


def _divided(with_what: str, when: Callable[[Any], bool], why: str, instead: str) -> UnsupportedValue:
    """What stages 2 and 3 cannot be combined with, on several processes."""
    return UnsupportedValue(
        "sharding",
        f"stage2, stage3 with {with_what}",
        lambda args: world().size > 1 and divides(args) and when(args),
        why,
        instead,
        section=Section.SHARDING,
    )


def _with_deepspeed(with_what: str, when: Callable[[Any], bool], why: str, instead: str) -> UnsupportedValue:
    return UnsupportedValue(
        "deepspeed",
        f"with {with_what}",
        lambda args: bool(args.deepspeed) and packages.installed("deepspeed") and when(args),
        why,
        instead,
        section=Section.SHARDING,
    )


def _with_tensor(
    argument: str, with_what: str, when: Callable[[Any], bool], why: str, instead: str
) -> UnsupportedValue:
    """What layers that are divided cannot be combined with."""
    return UnsupportedValue(
        argument,
        f"{with_what}, with tensor_parallel_size",
        lambda args: args.tensor_parallel_size > 1 and when(args),
        why,
        instead,
        section=Section.SHARDING,
    )


def _invariant(
    with_what: str, when: Callable[[Any], bool], why: str, instead: str, devices: tuple[str, ...] = ()
) -> UnsupportedValue:
    """What world_invariant cannot be combined with."""
    return UnsupportedValue(
        "world_invariant", f"True, with {with_what}", lambda args: args.world_invariant and when(args), why, instead,
        section=Section.SHARDING, devices=devices,
    )  # fmt: skip


def _is_divided_along(argument: str, args: Any) -> bool:
    return getattr(args, argument) > 1


def _shards(args: Any) -> bool:
    return world().size > 1 and bool(args.sharding or args.deepspeed)


def _uses_deepspeed(args: Any) -> bool:
    return world().size > 1 and bool(args.deepspeed)


UNSUPPORTED: tuple[UnsupportedValue, ...] = (
    UnsupportedValue(
        "deepspeed", "any", lambda args: bool(args.deepspeed), "needs deepspeed", "pip install deepspeed, or sharding",
        module="deepspeed", package="deepspeed", driven=True, section=Section.ENGINE,
    ),
    *(_packaged(optimizer) for optimizer in OPTIMIZERS.values() if optimizer.package),
    _whole_matrices(
        "none", "tensor_parallel_size", lambda args: args.tensor_parallel_size > 1,
        "optim='adamw_torch', or remove tensor_parallel_size", "tensor_parallel_size divides",
    ),
    _whole_matrices("tensors", "deepspeed", _uses_deepspeed, 'sharding="stage2" or "stage3"'),
    _whole_matrices("none", "sharding or deepspeed", _shards, "remove sharding"),
    *(
        unsupported_weight_average(
            name, "deepspeed", _uses_deepspeed, 'sharding="stage2" or "stage3"', Section.SHARDING
        )
        for name in ("ema_decay", "swa_start")
    ),
    _divided(
        "auto_find_batch_size", lambda args: args.auto_find_batch_size,
        "all processes must run the same forward passes, so one that runs out of memory cannot repeat its own",
        "a smaller per_device_train_batch_size with more gradient_accumulation_steps",
    ),
    _divided(
        "fp16_full_eval, bf16_full_eval", lambda args: args.fp16_full_eval or args.bf16_full_eval,
        "sharded weights keep their dtype", "bf16=True, which evaluates in half precision too",
    ),
    _with_tensor(
        "sharding", "stage1", lambda args: "stage1" in args.sharding.split(),
        "its optimizer sends whole parameters, which tensor_parallel_size divides",
        'sharding="stage2" or "stage3"',
    ),
    _with_tensor(
        "sharding", "offload", lambda args: "offload" in args.sharding.split(),
        "state of layers that tensor_parallel_size divides is not moved to the host", "remove offload",
    ),
    _with_tensor(
        "deepspeed", "any", lambda args: bool(args.deepspeed),
        "it divides the batch over all processes, and those of tensor_parallel_size have the same one",
        'sharding="stage2" or "stage3"',
    ),
    _with_tensor(
        "torch_compile", "True", lambda args: args.torch_compile,
        "layers that tensor_parallel_size divides are not compiled", "remove it",
    ),
    _with_tensor(
        "jit_mode_eval", "True", lambda args: args.jit_mode_eval,
        "layers that tensor_parallel_size divides are not compiled", "remove it",
    ),
    _with_tensor(
        "auto_find_batch_size", "True", lambda args: args.auto_find_batch_size,
        "with tensor_parallel_size all processes must run the same forward passes, so one that runs out of memory "
        "cannot repeat its own",
        "a smaller per_device_train_batch_size with more gradient_accumulation_steps",
    ),
    *(
        _with_tensor(
            name, "True", attrgetter(name), "weights that tensor_parallel_size divides keep their dtype",
            "bf16=True, which evaluates in half precision too",
        )
        for name in ("fp16_full_eval", "bf16_full_eval")
    ),
    _invariant(
        "sharding stage2, stage3", divides, "FSDP adds gradients in an order that depends on the number of processes",
        'sharding="stage1"',
    ),
    _invariant("deepspeed", lambda args: bool(args.deepspeed), "it adds gradients up itself", 'sharding="stage1"'),
    *(
        _invariant(
            name, partial(_is_divided_along, name),
            "activations are added up in an order that depends on the number of processes", f"remove {name}",
        )
        for name in ("tensor_parallel_size", "sequence_parallel_size", "expert_parallel_size")
    ),
    _invariant(
        "auto_find_batch_size", lambda args: args.auto_find_batch_size,
        "the samples of a micro-batch have to stay the same", "a smaller per_device_train_batch_size",
    ),
    _invariant(
        "average_tokens_across_devices=False", lambda args: not args.average_tokens_across_devices,
        "the loss would be a mean over processes", "remove average_tokens_across_devices",
    ),
    _invariant(
        'data_order="transformers"', lambda args: args.data_order == "transformers",
        "that order divides the samples by processes", 'data_order="oneloop"',
    ),
    _invariant(
        "past_index", lambda args: args.past_index >= 0,
        "a micro-batch would depend on which one its process computed before", "remove past_index",
    ),
    _invariant(
        "torch_compile", lambda args: args.torch_compile,
        "compiled kernels are chosen anew in each process, and their bits were not compared", "remove torch_compile",
    ),
    _invariant(
        "an accelerator, without full_determinism", lambda args: not args.full_determinism,
        "kernels of accelerators add in an order that changes", "full_determinism=True as well",
        ("cuda", "xpu", "npu", "mps"),
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
    *unsupported_tracing(
        "with deepspeed", lambda args: bool(args.deepspeed), "its engine keeps gradients and state to itself",
        'sharding="stage2" or "stage3"', Section.SHARDING,
    ),
    UnsupportedValue(
        "fsdp_config", "without fsdp", lambda args: any((args.fsdp_config or {}).values()) and not divides(args),
        "it configures how gradients and parameters are sharded, but they are not",
        'fsdp="full_shard" or "shard_grad_op"', section=Section.SHARDING_OPTIONS,
    ),
    *(_fsdp_key(key) for key, (honoured, _) in FSDP_CONFIG.items() if honoured is not None),
)  # fmt: skip
