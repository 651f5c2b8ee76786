"""The properties of Paddle that are known without importing it."""

import os
from importlib.util import find_spec

from ...distributed.world import World, number, rank_of
from ..registry import BackendSpec


def launched() -> World | None:
    """The variables of paddle.distributed.launch."""
    if "PADDLE_TRAINER_ID" not in os.environ:
        return None
    size = number("PADDLE_TRAINERS_NUM", 1)
    return World(
        rank=rank_of("PADDLE_TRAINER_ID", 0, size),
        size=size,
        local_rank=number("PADDLE_RANK_IN_NODE", number("PADDLE_TRAINER_ID", 0)),
        local_size=number("PADDLE_LOCAL_SIZE", size),
        launcher="paddle",
    )


def prepare() -> None:
    """On AMD processors, let Paddle's MKL use the AVX2 kernels; a value set by the user is kept.

    Otherwise it uses generic kernels, and matrix products take two to three times as long. The variable is read at the
    first product, so it can still be set after Paddle was imported.
    """
    wanted = "MKL_DEBUG_CPU_TYPE"
    if wanted not in os.environ and find_spec("paddle") is not None and _is_amd():
        os.environ[wanted] = "5"


def _is_amd() -> bool:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as f:
            return "AuthenticAMD" in f.read(512)
    except OSError:  # not Linux, where Paddle has other kernels
        return False


SPEC = BackendSpec(
    name="paddle",
    module="oneloop.backends.paddle.backend",
    title="PaddlePaddle",
    short_title="Paddle",
    framework="paddle",
    model_class="paddle.nn.Layer",
    model_bases=("paddle.*.Layer",),
    distributions=("paddlepaddle", "paddlepaddle-gpu", "paddlepaddle-xpu"),
    install="pip install 'oneloop[paddle]'",
    devices=("cpu", "gpu", "xpu", "npu"),
    tensor_format="pd",
    parallel=True,
    sharding=True,
    launcher=launched,
    unsupported="oneloop.backends.paddle.unsupported:UNSUPPORTED",
    handled_by_backend=("eval_use_gather_object",),
    optimizer_layout="oneloop.backends.paddle.optimizer_layout:LAYOUT",
    acceptance_model="oneloop.backends.paddle.acceptance:Classifier",
    prepare=prepare,
)
