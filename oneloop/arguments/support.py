"""Which argument a backend, a device or this release refuses: data, read by `check` and by docs/arguments.md.

Whatever is not listed works (a stored argument) or maps (another spelling). An entry names the argument, the values
it refuses, why, and what to use instead. NOT_YET is the list that later releases empty.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..distributed.world import world
from ..errors import MissingPackageError, RefusedError
from .packages import NOT_DRIVEN, OPTIMIZERS, WRITERS, installed
from .processes import ACCELERATOR
from .sharding import FSDP_CONFIG, degree_of, divides, not_honoured
from .values import show

RELEASED = ("torch", "paddle", "mindspore")
COMING: tuple[str, ...] = ()
EVERYWHERE = RELEASED + COMING
PARALLEL = ("torch", "paddle", "mindspore")  # backends that run on several processes


@dataclass(frozen=True)
class Refusal:
    """One thing that an argument cannot do.

    shown: the refused values, for the page. when: whether these arguments ask for it. devices: where it is refused
    (empty: everywhere). module, package: refused while this is not installed, and, unless `driven`, also when it is,
    because nothing in this release would use it.
    """

    argument: str
    shown: str
    when: Callable[[Any], bool]
    why: str
    instead: str
    backends: tuple[str, ...] = EVERYWHERE
    devices: tuple[str, ...] = ()
    module: str = ""
    package: str = ""
    driven: bool = False

    def applies(self, args: Any, backend: str, device: str) -> bool:
        here = backend in self.backends and (not self.devices or device in self.devices)
        return here and self.when(args) and not (self.driven and self.module and installed(self.module))

    @property
    def missing(self) -> bool:
        return bool(self.module) and not installed(self.module)

    def explain(self, args: Any, backend: str, device: str) -> str:
        # The user's own spelling; args.device itself would be resolved, and fail, before this can be explained.
        stored = "device_spec" if self.argument == "device" else self.argument
        name = args.__dict__.get("_said", {}).get(stored, self.argument)
        value = show(name, getattr(args, stored if name == "device" else name))
        start = f"{name}={value} cannot be used on {backend} with the device {device}: "
        if self.missing:
            unused = "" if self.driven else ", and which this release would not use yet"
            return start + (
                f"it needs the package {self.package}, which is not installed{unused}. Instead: {self.instead}."
            )
        if self.module:
            return (
                start + f"{self.package} is installed, but this release does not use it yet. Instead: {self.instead}."
            )
        return start + f"{self.why}. Instead: {self.instead}."


def _optimizer(name: str) -> Refusal:
    module, package = OPTIMIZERS[name]
    plain = "sgd" if name.endswith("sgd") else "adafactor" if "adafactor" in name else "adamw_torch"
    return Refusal(
        "optim", name, lambda args: args.optim == name, f"needs {package}", f'optim="{plain}"',
        backends=("torch",), module=module, package=package, driven=not name.startswith(NOT_DRIVEN),
    )  # fmt: skip


def _writer(name: str) -> Refusal:
    writer = WRITERS[name]
    return Refusal(
        "report_to",
        name,
        lambda args: name in args.report_to,
        f"needs {writer.package}",
        f'pip install {writer.package}, or report_to="none"',
        module=writer.module,
        package=writer.package,
        driven=True,
    )


def _accelerator_key(key: str) -> Refusal:
    honoured, instead = ACCELERATOR[key]
    return Refusal(
        "accelerator_config",
        key,
        lambda args: (args.accelerator_config or {}).get(key) not in (None, *honoured),
        f"its key {key} is not honoured",
        instead,
    )


def _fsdp_key(key: str) -> Refusal:
    return Refusal(
        "fsdp_config",
        key,
        lambda args: key in not_honoured(args.fsdp_config),
        f"its key {key} is not honoured with this value",
        FSDP_CONFIG[key][1],
        backends=("torch",),
    )


def _divided(with_what: str, when: Callable[[Any], bool], why: str, instead: str) -> Refusal:
    """What stages 2 and 3 cannot be together with, on several processes."""
    return Refusal(
        "sharding",
        f"stage2, stage3 with {with_what}",
        lambda args: world().size > 1 and divides(args) and when(args),
        why,
        instead,
        backends=("torch",),
    )


def _grouped(with_what: str, when: Callable[[Any], bool], why: str, instead: str) -> Refusal:
    """What stages 2 and 3 of Paddle cannot be together with, where they run at all."""
    return Refusal(
        "sharding",
        f"stage2, stage3 with {with_what}",
        lambda args: world().size > 1 and divides(args) and when(args),
        why,
        instead,
        backends=("paddle",),
    )


def _with_deepspeed(with_what: str, when: Callable[[Any], bool], why: str, instead: str) -> Refusal:
    return Refusal(
        "deepspeed",
        f"with {with_what}",
        lambda args: bool(args.deepspeed) and installed("deepspeed") and when(args),
        why,
        instead,
        backends=("torch",),
    )


# What this machine or framework cannot do.
LASTING: tuple[Refusal, ...] = (
    Refusal(
        "use_ipex", "True", lambda args: args.use_ipex, "needs intel-extension-for-pytorch",
        "leave it out; the framework itself has the CPU kernels", module="intel_extension_for_pytorch",
        package="intel-extension-for-pytorch",
    ),
    Refusal(
        "half_precision_backend", "apex", lambda args: args.half_precision_backend == "apex", "needs apex",
        'half_precision_backend="auto"', module="apex", package="apex (from its source repository)",
    ),
    Refusal(
        "tf32", "True", lambda args: args.tf32 is True, "TF32 is a number format of NVIDIA GPUs from Ampere on",
        "leave tf32 out, or use bf16=True", devices=("cpu", "mps", "xpu", "npu"),
    ),
    Refusal(
        "device", "mps", lambda args: (args.device_spec or "").startswith("mps"), "there is no Apple GPU here",
        'device="cpu"', devices=("cpu", "cuda", "xpu", "npu"),
    ),
    Refusal("tpu_num_cores", "any", lambda args: args.tpu_num_cores is not None, "TPUs (XLA) are not driven", "a GPU"),
    Refusal(
        "debug", "tpu_metrics_debug", lambda args: "tpu_metrics_debug" in args.debug, "TPUs (XLA) are not driven",
        'debug="underflow_overflow"',
    ),
    Refusal(
        "sharding", "offload", lambda args: "offload" in args.sharding,
        "offload moves state from an accelerator to the host, and a CPU has nowhere to move it", "leave offload out",
        devices=("cpu",),
    ),
    *(
        Refusal(
            name, shown, when, "needs liger-kernel", "leave it out", module="liger_kernel", package="liger-kernel"
        )
        for name, shown, when in (
            ("use_liger_kernel", "True", lambda args: args.use_liger_kernel),
            ("liger_kernel_config", "any", lambda args: bool(args.liger_kernel_config)),
        )
    ),
    Refusal(
        "deepspeed", "any", lambda args: bool(args.deepspeed), "needs deepspeed", "pip install deepspeed, or sharding",
        module="deepspeed", package="deepspeed", backends=("torch",), driven=True,
    ),
    Refusal(
        "deepspeed", "any", lambda args: bool(args.deepspeed), "DeepSpeed is an engine for torch", "leave it out",
        backends=("paddle", "mindspore"),
    ),
    Refusal(
        "save_safetensors", "False", lambda args: not args.save_safetensors,
        "weights are never written as pickles, which can run code when they are read", "leave it out",
    ),
    Refusal(
        "mp_parameters", "any", lambda args: bool(args.mp_parameters), "SageMaker's model parallelism is not driven",
        "leave it out",
    ),
    Refusal(
        "use_legacy_prediction_loop", "True", lambda args: args.use_legacy_prediction_loop,
        "there is one evaluation loop, with the same results", "leave it out",
    ),
    Refusal(
        "optim_target_modules", "any", lambda args: bool(args.optim_target_modules),
        "GaLore and APOLLO, which work on named modules, are not driven", 'optim="adamw_torch" or "adafactor"',
    ),
    *(_accelerator_key(key) for key in ("split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler",
                                        "gradient_accumulation_kwargs", "use_configured_state")),
    Refusal(
        "push_to_hub", "True, without huggingface_hub", lambda args: args.push_to_hub, "needs huggingface_hub",
        "leave it out", module="huggingface_hub", package="huggingface_hub", driven=True,
    ),
    *(_optimizer(name) for name in OPTIMIZERS),
    *(_writer(name) for name, writer in WRITERS.items() if writer.released),
)  # fmt: skip

_NO_HALF = "Paddle computes in half precision on accelerators alone; on a CPU its autocast would do nothing, in silence"


def _half(name: str) -> Refusal:
    return Refusal(
        name,
        "True",
        lambda args: getattr(args, name) and (name.endswith("_eval") or args.fp16_opt_level != "O0"),
        _NO_HALF,
        "leave it out, or a GPU",
        backends=("paddle",),
        devices=("cpu",),
    )


def _of_torch(name: str, backend: str, title: str) -> Refusal:
    return Refusal(
        "optim", name, lambda args: args.optim == name, f"{title} has no such optimizer",
        'optim="adamw", "sgd", "rmsprop" or "adagrad"', backends=(backend,),
    )  # fmt: skip


def _static_graph(backend: str, title: str) -> Refusal:
    return Refusal(
        "ddp_static_graph", "True, on several processes", lambda args: args.ddp_static_graph and world().size > 1,
        f"{title}'s data parallelism has no such promise to build on", "leave it out", backends=(backend,),
    )  # fmt: skip


ON_PADDLE: tuple[Refusal, ...] = (
    *(_half(name) for name in ("fp16", "bf16", "fp16_full_eval", "bf16_full_eval")),
    *(_of_torch(name, "paddle", "Paddle") for name in (*OPTIMIZERS, "adafactor", "adamw_anyprecision")),
    Refusal(
        "torch_compile_backend", "other than CINN", lambda args: args.torch_compile_backend not in (None, "CINN"),
        "it is a compiler of torch", "leave it out: the graph is compiled by paddle.jit.to_static",
        backends=("paddle",),
    ),
    Refusal(
        "torch_compile_mode", "any", lambda args: args.torch_compile_mode is not None,
        "paddle.jit.to_static has no modes", "leave it out", backends=("paddle",),
    ),
    Refusal(
        "sharding", "stage2, stage3", divides, "Paddle's group_sharded_parallel runs on accelerators alone",
        'sharding="stage1"', backends=("paddle",), devices=("cpu",),
    ),
    _grouped(
        "whole checkpoints", lambda args: args.save_strategy != "no" and not args.save_only_model,
        "the optimizer state that Paddle divides is not written into checkpoints",
        "save_only_model=True, save_strategy='no', or sharding=\"stage1\"",
    ),
    _grouped(
        "gradient_accumulation_steps", lambda args: args.gradient_accumulation_steps > 1,
        "Paddle reduces gradients in every backward pass", "a larger per_device_train_batch_size, or stage1",
    ),
    _grouped("fp16", lambda args: args.fp16, "its loss scale is not driven", "bf16=True"),
    _grouped("torch_compile", lambda args: args.torch_compile, "it is not driven", 'sharding="stage1"'),
    _grouped("nonfinite", lambda args: args.nonfinite == "skip", "an update cannot be left out", "nonfinite='stop'"),
    _grouped(
        "auto_find_batch_size", lambda args: args.auto_find_batch_size,
        "all processes run the same forward passes", "a smaller per_device_train_batch_size",
    ),
    Refusal(
        "sharding", "offload, auto_wrap with stage1",
        lambda args: not divides(args) and bool({"offload", "auto_wrap"} & set(args.sharding.split())),
        "stage 1 divides the optimizer's state alone, which needs no wrapping and stays on the device",
        'sharding="stage1"', backends=("paddle",),
    ),
    Refusal(
        "fsdp_config", "any", lambda args: any((args.fsdp_config or {}).values()), "it is for FSDP of torch",
        "leave it out", backends=("paddle",),
    ),
    _static_graph("paddle", "Paddle"),
)  # fmt: skip

_NO_BF16 = "MindSpore has no bfloat16 kernels for a CPU"


def _bf16(name: str) -> Refusal:
    return Refusal(
        name,
        "True",
        lambda args: getattr(args, name) and (name.endswith("_eval") or args.fp16_opt_level != "O0"),
        _NO_BF16,
        f"{name.replace('bf16', 'fp16')}=True, or leave it out",
        backends=("mindspore",),
        devices=("cpu",),
    )


ON_MINDSPORE: tuple[Refusal, ...] = (
    *(_bf16(name) for name in ("bf16", "bf16_full_eval")),
    *(_of_torch(name, "mindspore", "MindSpore") for name in (*OPTIMIZERS, "adamw_anyprecision")),
    Refusal(
        "optim", "adafactor", lambda args: args.optim == "adafactor",
        "MindSpore's nn.AdaFactor is for Ascend, and leaves the weight decay of parameter groups aside",
        'optim="adamw", "sgd", "rmsprop" or "adagrad", or an optimizer of your own in optimizers=',
        backends=("mindspore",),
    ),
    Refusal(
        "torch_compile_backend", "any", lambda args: args.torch_compile_backend is not None,
        "it is a compiler of torch", "leave it out: torch_compile=True alone is compiled by mindspore.jit",
        backends=("mindspore",),
    ),
    Refusal(
        "torch_compile_mode", "any", lambda args: args.torch_compile_mode is not None,
        "it is a mode of torch's compiler", "leave it out", backends=("mindspore",),
    ),
    Refusal(
        "sharding", "any", lambda args: bool(args.sharding) and args.sharding != "replicate",
        "MindSpore divides optimizer state by its parallel optimizer, which is for graphs on Ascend alone",
        "leave it out: every process keeps all of it", backends=("mindspore",),
    ),
    Refusal(
        "sharding_degree", "any", lambda args: args.sharding_degree != -1, "nothing is divided on MindSpore",
        "leave it out", backends=("mindspore",),
    ),
    Refusal(
        "fsdp_config", "any", lambda args: any((args.fsdp_config or {}).values()), "it is for FSDP of torch",
        "leave it out", backends=("mindspore",),
    ),
    _static_graph("mindspore", "MindSpore"),
    Refusal(
        "gradient_checkpointing_kwargs", "any", lambda args: bool(args.gradient_checkpointing_kwargs),
        "MindSpore's recomputation has no such options", "leave it out", backends=("mindspore",),
    ),
)  # fmt: skip

# What dividing state among processes cannot be together with.
ON_SHARDING: tuple[Refusal, ...] = (
    _divided(
        "auto_find_batch_size", lambda args: args.auto_find_batch_size,
        "all processes run the same forward passes, and one that runs out of memory cannot run others alone",
        "a smaller per_device_train_batch_size with more gradient_accumulation_steps",
    ),
    _divided(
        "fp16_full_eval, bf16_full_eval", lambda args: args.fp16_full_eval or args.bf16_full_eval,
        "the divided weights keep their type", "bf16=True, which evaluates in half precision too",
    ),
    _with_deepspeed("one process", lambda args: world().size == 1, "it divides state among processes", "torchrun"),
    _with_deepspeed(
        "whole checkpoints", lambda args: args.save_strategy != "no" and not args.save_only_model,
        "its optimizer state is not written into checkpoints",
        "save_only_model=True, save_strategy='no', or sharding, whose checkpoints hold everything",
    ),
    _with_deepspeed("sharding", lambda args: bool(args.sharding), "both divide the state", "one of them"),
    _with_deepspeed("fp16", lambda args: args.fp16, "its loss scale is not driven", "bf16=True"),
    _with_deepspeed("torch_compile", lambda args: args.torch_compile, "it is not driven", "sharding='stage3'"),
    _with_deepspeed(
        "nonfinite", lambda args: args.nonfinite == "skip", "an update cannot be left out", "nonfinite='stop'"
    ),
    _with_deepspeed(
        "auto_find_batch_size", lambda args: args.auto_find_batch_size,
        "all processes run the same forward passes", "a smaller per_device_train_batch_size",
    ),
    Refusal(
        "sharding_degree", "without sharding", lambda args: args.sharding_degree != -1 and not args.sharding,
        "it says how many processes share one copy, and nothing is shared", 'set sharding, such as "stage2"',
        backends=("torch", "paddle"),
    ),
    Refusal(
        "sharding_degree", "no divisor of the processes",
        lambda args: bool(args.sharding) and bool(world().size % degree_of(args, world().size)),
        "groups of that size cannot be made of the processes that there are", "a number that divides them",
        backends=("torch", "paddle"),
    ),
    Refusal(
        "fsdp_config", "without fsdp", lambda args: any((args.fsdp_config or {}).values()) and not divides(args),
        "it says how gradients and parameters are divided, and they are not", 'fsdp="full_shard" or "shard_grad_op"',
        backends=("torch",),
    ),
    *(_fsdp_key(key) for key, (honoured, _) in FSDP_CONFIG.items() if honoured is not None),
)  # fmt: skip

_LATER = "it is not in this release yet"

# What a later release brings: take the entry out here when it does.
NOT_YET: tuple[Refusal, ...] = (
    Refusal(
        "report_to", ", ".join(name for name, writer in WRITERS.items() if not writer.released),
        lambda args: any(not WRITERS[name].released for name in args.report_to), _LATER,
        'report_to="tensorboard", or the service\'s own callback in callbacks=',
    ),
    Refusal("parallelism_config", "any", lambda args: args.parallelism_config is not None, _LATER, "one process"),
    Refusal(
        "trackio_static_space_id", "any", lambda args: args.trackio_static_space_id not in (None, False), _LATER,
        "trackio_space_id",
    ),
    Refusal(
        "train_sampling_strategy", "batch_rebalance",
        lambda args: args.train_sampling_strategy == "batch_rebalance", _LATER, '"group_by_length"',
    ),
)  # fmt: skip

REFUSALS = LASTING + ON_PADDLE + ON_MINDSPORE + ON_SHARDING + NOT_YET

# Arguments that mean something only with another one, whose answer is theirs.
COMPANIONS = {
    **dict.fromkeys(
        ("hub_model_id", "hub_strategy", "hub_token", "hub_private_repo", "hub_always_push", "hub_revision"),
        "push_to_hub",
    ),
    **dict.fromkeys(("project", "trackio_space_id", "trackio_bucket_id"), "report_to"),
}
# Arguments that several processes or machines need, and that leave one process nothing to do.
IDLE = (
    "average_tokens_across_devices", "ddp_backend", "ddp_broadcast_buffers", "ddp_bucket_cap_mb",
    "ddp_find_unused_parameters", "ddp_static_graph", "ddp_timeout", "local_rank",
    "log_level_replica", "log_on_each_node", "save_on_each_node", "sharding", "sharding_degree", "fsdp_config",
)  # fmt: skip

# What is seen to by itself, whatever is given.
BY_ITSELF = {("dataloader_pin_memory", "mindspore"), *(("eval_use_gather_object", name) for name in RELEASED)}


def check(args: Any, backend: str, device: str) -> None:
    """Raise one error that lists everything these arguments ask for and cannot have."""
    size = world().size
    refused = [refusal for refusal in refusals_of(backend) if refusal.applies(args, backend, device)]
    reasons = list(dict.fromkeys(refusal.explain(args, backend, device) for refusal in refused))
    if size > 1 and backend not in PARALLEL:
        reasons.append(f"{size} processes were launched, but on {backend} {_LATER}. Instead: start one process.")
    if not reasons:
        return
    missing = bool(refused) and all(refusal.missing for refusal in refused)
    missing = missing and (size == 1 or backend in PARALLEL)
    raise (MissingPackageError if missing else RefusedError)("\n".join(reasons))


def refusals_of(backend: str) -> tuple[Refusal, ...]:
    """All refusals, and those of mindtorch, which has no column of its own in the pages."""
    if backend != "mindtorch":
        return REFUSALS
    from .mindnlp import REFUSALS as under_mindnlp

    return under_mindnlp


def refused_by(argument: str, backend: str) -> list[Refusal]:
    return [refusal for refusal in REFUSALS if refusal.argument == argument and backend in refusal.backends]


def answer(argument: str, backend: str) -> str:
    """works, works in part, idle (nothing to do for one process), by itself (see BY_ITSELF), refuses or later."""
    if backend in COMING:
        return "later"
    if (argument, backend) in BY_ITSELF:
        return "by itself"
    argument = COMPANIONS.get(argument, argument)
    refusals = refused_by(argument, backend)
    whole = [refusal for refusal in refusals if refusal.shown in ("any", "True") and not refusal.devices]
    if whole:
        return "later" if all(refusal in NOT_YET for refusal in whole) else "refuses"
    if argument in IDLE:
        return "idle"
    return "works in part" if refusals else "works"
