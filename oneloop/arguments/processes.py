"""Distributed training: ranks, sharding, and the launcher."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..distributed.world import world
from . import parallelism, values
from .accelerator import AcceleratorConfig, to_accelerator
from .fields import Group, declare
from .sharding import to_fsdp_config, to_sharding
from .tensor_plan import to_tensor_plan

if TYPE_CHECKING:
    from .given import Text

arg = declare("Many processes")


def to_deepspeed(name: str, value: "dict[str, Any] | Text") -> str | dict[str, Any]:
    """A path stays a path: the file may be written after the arguments are created."""
    if isinstance(value, str) and not value.lstrip().startswith("{"):
        return value
    return values.to_mapping(name, value) if isinstance(value, dict | str) else values.to_text(name, value)


@dataclass
class Processes(Group):
    local_rank: int = arg(
        -1, "Rank of this process on its machine.", low=-1, shown="from the launcher", per_process=True
    )
    sharding: str = arg(
        "",
        "What is partitioned across processes: stage1 optimizer state, stage2 also gradients, stage3 also parameters; "
        "optionally offload, auto_wrap.",
        convert=to_sharding,
        none=True,
    )
    sharding_degree: int = arg(
        -1,
        "Number of processes in a sharding group; -1: all.",
        low=-1,
        never=(0,),
        aliases=("sharding_parallel_degree", "sharding_parallel_size"),
    )
    tensor_parallel_size: int = arg(
        1, "Number of processes that divide the weights of each layer (tensor parallelism).", low=1, none=True
    )
    tensor_parallel_plan: dict[str, Any] | str | None = arg(
        None,
        "Which layers are divided, and how: names with * for any part, and colwise, rowwise, ...; a dict, JSON, or "
        "a JSON file. transformers models have one.",
        convert=to_tensor_plan,
    )
    sequence_parallel_size: int = arg(1, "Number of processes that divide each sequence of a batch.", low=1, none=True)
    expert_parallel_size: int = arg(1, "Number of processes that divide the experts of a model.", low=1, none=True)
    fsdp_config: dict[str, Any] | str | None = arg(
        None, "Additional sharding options, as a dict, JSON, or a JSON file.", convert=to_fsdp_config
    )
    deepspeed: dict[str, Any] | str | None = arg(
        None, "DeepSpeed configuration: a path or a dict.", convert=to_deepspeed, per_process=True
    )
    accelerator_config: dict[str, Any] | str | None = arg(
        None,
        "Options of accelerate, as a dict, JSON, or a JSON file. Reads back as an AcceleratorConfig.",
        convert=to_accelerator,
        shown="AcceleratorConfig()",
    )
    parallelism_config: object | None = arg(
        None,
        "accelerate's ParallelismConfig, or a dict of its sizes (dp_replicate_size, dp_shard_size, tp_size, cp_size, "
        "sp_size), which set the arguments for these axes.",
        convert=parallelism.to_parallelism,
    )
    world_invariant: bool = arg(
        False,
        "Train with the same bits on any number of processes: an update keeps its micro-batches, each draws random "
        "numbers of its own, and gradients are added up in a fixed order.",
    )
    ddp_find_unused_parameters: bool | None = arg(
        None, "Detect parameters that a step does not use.", shown="from the model"
    )
    ddp_bucket_cap_mb: int | None = arg(None, "Gradient bucket size in megabytes.", low=1, shown="the framework's")
    ddp_broadcast_buffers: bool | None = arg(None, "Broadcast buffers to all processes.", shown="the framework's")
    ddp_static_graph: bool | None = arg(
        None, "Assume that every step uses the same parameters.", shown="the framework's"
    )
    ddp_timeout: int = arg(1800, "Timeout of collectives in seconds.", low=1, none=True, per_process=True)
    ddp_backend: str | None = arg(
        None, "Communication backend: gloo, nccl, mpi, ccl, ...", aliases=("xpu_backend",), shown="from the device"
    )
    tpu_num_cores: int | None = arg(None, "Number of TPU cores.", low=1, per_process=True)
    mp_parameters: str = arg("", "SageMaker model parallelism.", per_process=True)
    use_legacy_prediction_loop: bool = arg(
        False, "The evaluation loop of early transformers releases.", per_process=True
    )
    ray_scope: str = arg(
        "last",
        "Which result of a trial Ray Tune compares.",
        choices=("last", "all", "avg", "last-5-avg", "last-10-avg"),
        none=True,
        per_process=True,
    )

    def check(self) -> None:
        if self.parallelism_config is not None:
            parallelism.apply(self)
        if self.accelerator_config is None:
            self.accelerator_config = AcceleratorConfig()  # type: ignore[assignment]
        here = world()
        if here.launcher is not None:
            if self.local_rank not in (-1, here.local_rank):
                raise values.invalid("local_rank", self.local_rank, f"{here.local_rank}, as set by the launcher")
            self.local_rank = here.local_rank
        elif self.local_rank > 0:
            raise values.invalid(
                "local_rank", self.local_rank, "-1 or 0, since this process was not started by a launcher; use torchrun"
            )
