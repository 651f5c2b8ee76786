"""The rank and size of this process's run, from the launcher's environment variables."""

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class World:
    """rank and size count all processes; local_rank and local_size those on this machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launcher: str | None = None  # the framework whose launcher started this process: torch, paddle or mindspore

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def is_local_main(self) -> bool:
        return self.local_rank == 0


def _number(name: str, default: int) -> int:
    value = os.environ.get(name, "").strip()
    return int(value) if value.lstrip("-").isdigit() else default


def world() -> World:
    """Read the variables of torchrun, paddle.distributed.launch or msrun."""
    if "PADDLE_TRAINER_ID" in os.environ:
        size = _number("PADDLE_TRAINERS_NUM", 1)
        return World(
            rank=_number("PADDLE_TRAINER_ID", 0),
            size=size,
            local_rank=_number("PADDLE_RANK_IN_NODE", _number("PADDLE_TRAINER_ID", 0)),
            local_size=_number("PADDLE_LOCAL_SIZE", size),
            launcher="paddle",
        )
    if os.environ.get("MS_ROLE") == "MS_SCHED":
        # msrun also starts the script as the scheduler: it is not a worker, and ends in join().
        size = max(2, _number("MS_WORKER_NUM", 1))
        return World(rank=size, size=size, local_rank=size, local_size=size, launcher="mindspore")
    if os.environ.get("MS_ROLE") == "MS_WORKER":
        size = _number("MS_WORKER_NUM", 1)
        rank = _number("MS_NODE_ID", _number("RANK_ID", 0))
        return World(
            rank=rank,
            size=size,
            local_rank=_number("DEVICE_ID", rank),
            local_size=_number("MS_LOCAL_WORKER_NUM", size),
            launcher="mindspore",
        )
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        size = _number("WORLD_SIZE", 1)
        return World(
            rank=_number("RANK", 0),
            size=size,
            local_rank=_number("LOCAL_RANK", 0),
            local_size=_number("LOCAL_WORLD_SIZE", size),
            launcher="torch",
        )
    return World()
