"""The properties of PyTorch that are known without importing it."""

import os

from ...distributed.world import World, number, rank_of
from ..registry import BackendSpec


def launched() -> World | None:
    """torchrun's variables."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return None
    size = number("WORLD_SIZE", 1)
    return World(
        rank=rank_of("RANK", 0, size),
        size=size,
        local_rank=number("LOCAL_RANK", 0),
        local_size=number("LOCAL_WORLD_SIZE", size),
        launcher="torch",
    )


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
    refusals="oneloop.backends.torch.refusals:REFUSALS",
    by_itself=("eval_use_gather_object",),
    optimizer_layout="oneloop.backends.torch.optimizer_layout:LAYOUT",
)
