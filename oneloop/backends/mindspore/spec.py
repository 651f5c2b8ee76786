"""The properties of MindSpore that are known without importing it."""

import os

from ...distributed.world import World, number, rank_of
from ..registry import BackendSpec


def launched() -> World | None:
    """msrun's variables."""
    if os.environ.get("MS_ROLE") == "MS_SCHED":
        # msrun starts the script once more, as the scheduler: it is not a worker, and ends in join().
        size = max(2, number("MS_WORKER_NUM", 1))
        return World(rank=size, size=size, local_rank=size, local_size=size, launcher="mindspore")
    if os.environ.get("MS_ROLE") != "MS_WORKER":
        return None
    size = number("MS_WORKER_NUM", 1)
    rank = rank_of("MS_NODE_ID", number("RANK_ID", 0), size)
    return World(
        rank=rank,
        size=size,
        local_rank=number("DEVICE_ID", rank),
        local_size=number("MS_LOCAL_WORKER_NUM", size),
        launcher="mindspore",
    )


SPEC = BackendSpec(
    name="mindspore",
    module="oneloop.backends.mindspore.backend",
    title="MindSpore",
    framework="mindspore",
    model_class="mindspore.nn.Cell",
    model_bases=("mindspore.*.Cell",),
    distributions=("mindspore",),
    install="pip install 'oneloop[mindspore]'",
    devices=("cpu", "gpu", "npu"),
    tensor_format="ms",
    parallel=True,
    launcher=launched,
    unsupported="oneloop.backends.mindspore.unsupported:UNSUPPORTED",
    handled_by_backend=("dataloader_pin_memory", "eval_use_gather_object"),
    optimizer_layout="oneloop.backends.mindspore.optimizer_layout:LAYOUT",
    acceptance_model="oneloop.backends.mindspore.acceptance:Classifier",
)
