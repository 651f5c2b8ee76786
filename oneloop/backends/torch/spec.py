"""The properties of PyTorch that are known without importing it."""

import os
import sys

from ...distributed.world import World, number, rank_of
from ..registry import BackendSpec


def launched() -> World | None:
    """torchrun's variables, which other launchers such as Ray Train set too; or else the script's own group."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return _group_of_script()
    size = number("WORLD_SIZE", 1)
    return World(
        rank=rank_of("RANK", 0, size),
        size=size,
        local_rank=number("LOCAL_RANK", 0),
        local_size=number("LOCAL_WORLD_SIZE", size),
        launcher="torch",
    )


def _group_of_script() -> World | None:
    """A process group that the script has created without these variables, as after torch.multiprocessing.spawn."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    rank, size = distributed.get_rank(), distributed.get_world_size()
    local_size = number("LOCAL_WORLD_SIZE", size)
    return World(rank, size, number("LOCAL_RANK", rank % max(1, local_size)), local_size, launcher="torch")


SPEC = BackendSpec(
    name="torch",
    module="oneloop.backends.torch.backend",
    title="PyTorch",
    framework="torch",
    model_class="torch.nn.Module",
    model_bases=("torch.nn.modules.module.Module",),
    distributions=("torch",),
    install="pip install 'oneloop[torch]'",
    devices=("cpu", "cuda", "xpu", "npu", "mps"),
    tensor_format="pt",
    collator_method="torch_call",
    parallel=True,
    sharding=True,
    deepspeed=True,
    launcher=launched,
    launcher_is_last=True,
    unsupported="oneloop.backends.torch.unsupported:UNSUPPORTED",
    handled_by_backend=("eval_use_gather_object",),
    optimizer_layout="oneloop.backends.torch.optimizer_layout:LAYOUT",
    acceptance_model="oneloop.backends.torch.acceptance:Classifier",
)
