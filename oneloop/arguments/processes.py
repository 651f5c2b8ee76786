"""Many processes: who this one is, and how work and memory are divided."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..distributed.world import world
from . import values
from .fields import Group, declare
from .sharding import to_fsdp_config, to_sharding

if TYPE_CHECKING:
    from .given import Config, Text

arg = declare("Many processes")

# accelerator_config: key -> (the values that oneloop honours, what to do instead of the others)
ACCELERATOR: dict[str, tuple[tuple[Any, ...], str]] = {
    "split_batches": ((False, None), "set per_device_train_batch_size to the share of one process"),
    "dispatch_batches": ((False, None), "leave it out: each process reads its own data"),
    "even_batches": ((True, None), "leave it out"),
    "use_seedable_sampler": ((True, None), "leave it out: the order of the data always follows from data_seed"),
    "non_blocking": ((True, False, None), "leave it out"),
    "gradient_accumulation_kwargs": ((None, {}), "set gradient_accumulation_steps"),
    "use_configured_state": ((False, None), "leave it out: there is no accelerate state to take over"),
}


def to_accelerator(name: str, value: "Config") -> dict[str, Any]:
    config = values.to_config(name, value)
    for key in config:
        if key not in ACCELERATOR:
            raise values.wrong(f"{name}[{key!r}]", config[key], "one of the keys " + ", ".join(ACCELERATOR))
    return config


def to_deepspeed(name: str, value: "dict[str, Any] | Text") -> str | dict[str, Any]:
    """A path stays a path: the file may be written later than the arguments."""
    if isinstance(value, str) and not value.lstrip().startswith("{"):
        return value
    return values.to_mapping(name, value) if isinstance(value, dict | str) else values.to_text(name, value)


@dataclass
class Processes(Group):
    local_rank: int = arg(-1, "The process's number on this machine.", low=-1, shown="from the launcher")
    sharding: str = arg(
        "",
        "What the processes share out: stage1 optimizer state, stage2 also gradients, stage3 also parameters; plus "
        "offload, auto_wrap.",
        convert=to_sharding,
        none=True,
    )
    sharding_degree: int = arg(
        -1,
        "Processes that share one copy; -1 is all of them.",
        low=-1,
        never=(0,),
        aliases=("sharding_parallel_degree",),
    )
    fsdp_config: dict[str, Any] | str | None = arg(
        None, "Further options of sharding, as a dict, as JSON or as a JSON file.", convert=to_fsdp_config
    )
    deepspeed: str | dict[str, Any] | None = arg(
        None, "DeepSpeed's configuration: a path or a dict.", convert=to_deepspeed
    )
    accelerator_config: dict[str, Any] | str | None = arg(
        None, "Options of accelerate, as a dict, as JSON or as a JSON file.", convert=to_accelerator
    )
    parallelism_config: object | None = arg(
        None, "accelerate's object for several kinds of parallelism.", convert=lambda name, value: value
    )
    ddp_find_unused_parameters: bool | None = arg(
        None, "Look for parameters that a step does not use.", shown="by the model"
    )
    ddp_bucket_cap_mb: int | None = arg(None, "Megabytes of gradients sent at once.", low=1, shown="the framework's")
    ddp_broadcast_buffers: bool | None = arg(None, "Keep buffers equal in all processes.", shown="the framework's")
    ddp_static_graph: bool | None = arg(None, "Every step uses the same parameters.", shown="the framework's")
    ddp_timeout: int = arg(1800, "Seconds to wait for the other processes.", low=1, none=True)
    ddp_backend: str | None = arg(
        None, "How processes talk: gloo, nccl, mpi, ccl, ...", aliases=("xpu_backend",), shown="by the device"
    )
    tpu_num_cores: int | None = arg(None, "TPU cores.", low=1)
    mp_parameters: str = arg("", "SageMaker's model parallelism.")
    use_legacy_prediction_loop: bool = arg(False, "The evaluation loop of early transformers.")
    ray_scope: str = arg(
        "last",
        "Which result of a trial Ray Tune compares.",
        choices=("last", "all", "avg", "last-5-avg", "last-10-avg"),
        none=True,
    )

    def check(self) -> None:
        here = world()
        if here.launcher is not None:
            if self.local_rank not in (-1, here.local_rank):
                raise values.wrong("local_rank", self.local_rank, f"{here.local_rank}, which the launcher says")
            self.local_rank = here.local_rank
        elif self.local_rank > 0:
            raise values.wrong(
                "local_rank", self.local_rank, "-1 or 0, since no launcher started this process; use torchrun"
            )
