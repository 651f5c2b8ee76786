"""Arguments that a backend, a device or this release does not support, as data for `check` and docs/arguments.md.

An argument that is not listed works (a stored argument) or maps (an alias). An entry has the argument, the unsupported
values, the reason, and what to use instead. What one backend does not support is in its folder; what none of them
supports, or only those with some capability, is here. NOT_YET lists what later releases will support.
"""

import functools
from dataclasses import replace
from typing import Any

from ..backends import registry
from ..backends.registry import BackendSpec
from ..distributed.mesh import sharding_degree
from ..distributed.world import world
from ..errors import MissingPackageError, UnsupportedError
from .accelerator import SUPPORTED, is_supported
from .packages import WRITERS
from .unsupported import Section, UnsupportedValue, unsupported_tracing


def _writer(name: str) -> UnsupportedValue:
    writer = WRITERS[name]
    return UnsupportedValue(
        "report_to",
        name,
        lambda args: name in args.report_to,
        f"needs {writer.package}",
        f'pip install {writer.package}, or report_to="none"',
        module=writer.module,
        package=writer.package,
        driven=True,
        section=Section.WRITERS,
    )


def _accelerator_key(key: str) -> UnsupportedValue:
    return UnsupportedValue(
        "accelerator_config",
        key,
        lambda args: not is_supported(args.accelerator_config, key),
        f"its key {key} is not supported",
        SUPPORTED[key][1],
    )


def _in(section: Section, *unsupported_values: UnsupportedValue) -> tuple[UnsupportedValue, ...]:
    return tuple(replace(unsupported, section=section) for unsupported in unsupported_values)


# What this machine does not support.
ON_MACHINE = _in(
    Section.MACHINE,
    UnsupportedValue(
        "use_ipex", "True", lambda args: args.use_ipex, "needs intel-extension-for-pytorch",
        "remove it; the framework itself has the CPU kernels", module="intel_extension_for_pytorch",
        package="intel-extension-for-pytorch",
    ),
    UnsupportedValue(
        "half_precision_backend", "apex", lambda args: args.half_precision_backend == "apex", "needs apex",
        'half_precision_backend="auto"', module="apex", package="apex (from its source repository)",
    ),
    UnsupportedValue(
        "tf32", "True", lambda args: args.tf32 is True, "TF32 is a number format of NVIDIA GPUs since Ampere",
        "remove tf32, or use bf16=True", devices=("cpu", "mps", "xpu", "npu"),
    ),
    UnsupportedValue(
        "device", "mps", lambda args: (args.device_spec or "").startswith("mps"), "this machine has no Apple GPU",
        'device="cpu"', devices=("cpu", "cuda", "xpu", "npu"),
    ),
    UnsupportedValue(
        "tpu_num_cores", "any", lambda args: args.tpu_num_cores is not None, "TPUs (XLA) are not supported", "a GPU",
    ),
    UnsupportedValue(
        "debug", "tpu_metrics_debug", lambda args: "tpu_metrics_debug" in args.debug, "TPUs (XLA) are not supported",
        'debug="underflow_overflow"',
    ),
    UnsupportedValue(
        "sharding", "offload", lambda args: "offload" in args.sharding,
        "offload moves state from an accelerator to the host; on a CPU it is there already", "remove offload",
        devices=("cpu",),
    ),
    *(
        UnsupportedValue(
            name, shown, when, "needs liger-kernel", "remove it", module="liger_kernel", package="liger-kernel"
        )
        for name, shown, when in (
            ("use_liger_kernel", "True", lambda args: args.use_liger_kernel),
            ("liger_kernel_config", "any", lambda args: bool(args.liger_kernel_config)),
        )
    ),
)  # fmt: skip

DEEPSPEED_UNSUPPORTED = UnsupportedValue(
    "deepspeed", "any", lambda args: bool(args.deepspeed), "DeepSpeed supports torch only", "remove it",
    section=Section.ENGINE, where=lambda spec: not spec.deepspeed,
)  # fmt: skip

# What is not supported on any framework.
EVERYWHERE = _in(
    Section.EVERYWHERE,
    UnsupportedValue(
        "save_safetensors", "False", lambda args: not args.save_safetensors,
        "weights are never written as pickles, which can execute code when loaded", "remove it",
    ),
    UnsupportedValue(
        "mp_parameters", "any", lambda args: bool(args.mp_parameters), "SageMaker's model parallelism is not supported",
        "remove it",
    ),
    UnsupportedValue(
        "use_legacy_prediction_loop", "True", lambda args: args.use_legacy_prediction_loop,
        "there is only one evaluation loop, with the same results", "remove it",
    ),
    *(_accelerator_key(key) for key in ("split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler",
                                        "gradient_accumulation_kwargs", "use_configured_state")),
    UnsupportedValue(
        "push_to_hub", "True, without huggingface_hub", lambda args: args.push_to_hub, "needs huggingface_hub",
        "remove it", module="huggingface_hub", package="huggingface_hub", driven=True,
    ),
    *unsupported_tracing(
        "with torch_compile", lambda args: args.torch_compile, "a compiled model has no layers to look at",
        "remove torch_compile for these steps",
    ),
)  # fmt: skip

OF_WRITERS = tuple(_writer(name) for name, writer in WRITERS.items() if writer.released)


def _shards(spec: BackendSpec) -> bool:
    return spec.sharding


ON_SHARDING = _in(
    Section.SHARDING,
    UnsupportedValue(
        "sharding_degree", "without sharding", lambda args: args.sharding_degree != -1 and not args.sharding,
        "it is the number of processes that share one copy, but sharding is off", 'set sharding, such as "stage2"',
        where=_shards,
    ),
    UnsupportedValue(
        "sharding_degree", "not a divisor of the number of processes",
        lambda args: bool(args.sharding) and bool(world().size % sharding_degree(args, world().size)),
        "the processes cannot be divided into groups of that size", "a divisor of the number of processes",
        where=_shards,
    ),
)  # fmt: skip

_LATER = "it is not supported in this release yet"

# What a later release will support: remove the entry then.
NOT_YET = _in(
    Section.LATER,
    UnsupportedValue(
        "report_to", ", ".join(name for name, writer in WRITERS.items() if not writer.released),
        lambda args: any(not WRITERS[name].released for name in args.report_to), _LATER,
        'report_to="tensorboard", or the service\'s own callback in callbacks=',
    ),
    UnsupportedValue( "trackio_static_space_id", "any", lambda args: args.trackio_static_space_id not in (None, False),
    _LATER, "trackio_space_id",
    ),
)  # fmt: skip

SHARED_BY_BACKENDS = (*ON_MACHINE, DEEPSPEED_UNSUPPORTED, *EVERYWHERE, *OF_WRITERS, *ON_SHARDING, *NOT_YET)


def of_backend(spec: BackendSpec) -> tuple[UnsupportedValue, ...]:
    """The unsupported values in a backend's own file."""
    own: tuple[UnsupportedValue, ...] = registry.resolve(spec.unsupported) if spec.unsupported else ()
    return tuple(replace(unsupported, backends=(spec.name,)) for unsupported in own)


def all_unsupported() -> tuple[UnsupportedValue, ...]:
    """All unsupported values except those of backends that inherit another's, in the order of the page."""
    return _sorted(registry.specs())


@functools.cache
def _sorted(specs: tuple[BackendSpec, ...]) -> tuple[UnsupportedValue, ...]:
    own = [unsupported for spec in specs if not spec.inherits for unsupported in of_backend(spec)]
    return tuple(sorted((*own, *SHARED_BY_BACKENDS), key=lambda unsupported: unsupported.section))


def in_sections(*sections: Section) -> tuple[UnsupportedValue, ...]:
    return tuple(unsupported for unsupported in all_unsupported() if unsupported.section in sections)


# Arguments that have a meaning only with another one, and the same support as that.
DEPENDENT_ARGUMENTS = {
    **dict.fromkeys(
        ("hub_model_id", "hub_strategy", "hub_token", "hub_private_repo", "hub_always_push", "hub_revision"),
        "push_to_hub",
    ),
    **dict.fromkeys(("project", "trackio_space_id", "trackio_bucket_id"), "report_to"),
}
# Arguments that matter for several processes or machines, and have no effect on one process.
NO_EFFECT_SINGLE_PROCESS = (
    "average_tokens_across_devices", "ddp_backend", "ddp_broadcast_buffers", "ddp_bucket_cap_mb",
    "ddp_find_unused_parameters", "ddp_static_graph", "ddp_timeout", "local_rank",
    "log_level_replica", "log_on_each_node", "save_on_each_node", "sharding", "sharding_degree", "fsdp_config",
    "parallelism_config", "tensor_parallel_size", "tensor_parallel_plan", "sequence_parallel_size",
    "expert_parallel_size",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "PARALLEL":
        return registry.parallel()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def check(args: Any, backend: str, device: str) -> None:
    """Raise one error that lists everything in these arguments that is not supported."""
    size, parallel = world().size, registry.get(backend).parallel
    refused = [unsupported for unsupported in unsupported_by(backend) if unsupported.applies(args, backend, device)]
    reasons = list(dict.fromkeys(unsupported.explain(args, backend, device) for unsupported in refused))
    if size > 1 and not parallel:
        reasons.append(f"{size} processes were launched, but on {backend} {_LATER}. Instead: start one process.")
    if not reasons:
        return
    missing = bool(refused) and all(unsupported.missing for unsupported in refused)
    missing = missing and (size == 1 or parallel)
    raise (MissingPackageError if missing else UnsupportedError)("\n".join(reasons))


def unsupported_by(backend: str) -> tuple[UnsupportedValue, ...]:
    """All unsupported values; for a backend that inherits another's, its own and the other's under its name."""
    spec = registry.get(backend)
    if not spec.inherits:
        return all_unsupported()
    taken = (unsupported for unsupported in all_unsupported() if unsupported.concerns(spec.inherits))
    return of_backend(spec) + tuple(replace(unsupported, backends=(backend,)) for unsupported in taken)


def find_unsupported(argument: str, backend: str) -> list[UnsupportedValue]:
    return [
        unsupported
        for unsupported in all_unsupported()
        if unsupported.argument == argument and unsupported.concerns(backend)
    ]


def answer(argument: str, backend: str) -> str:
    """works, works in part, idle (no effect on one process), by the framework (see the spec), refuses or later."""
    if argument in registry.get(backend).handled_by_backend:
        return "by the framework"
    argument = DEPENDENT_ARGUMENTS.get(argument, argument)
    found = find_unsupported(argument, backend)
    whole = [
        unsupported for unsupported in found if unsupported.value_text in ("any", "True") and not unsupported.devices
    ]
    if whole:
        return "later" if all(unsupported in NOT_YET for unsupported in whole) else "refuses"
    if argument in NO_EFFECT_SINGLE_PROCESS:
        return "idle"
    return "works in part" if found else "works"
