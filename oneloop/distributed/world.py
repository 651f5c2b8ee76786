"""The rank and size of this process's run, from the launcher's environment variables."""

import os
from dataclasses import dataclass

from ..errors import ArgumentError


@dataclass(frozen=True)
class World:
    """rank and size count all processes; local_rank and local_size those on this machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launcher: str | None = None  # the backend whose framework's launcher started this process

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def is_local_main(self) -> bool:
        return self.local_rank == 0


def number(name: str, default: int) -> int:
    """The number in an environment variable."""
    value = os.environ.get(name, "").strip()
    if not value:
        return default
    try:
        return int(value)
    except ValueError:
        raise ArgumentError(
            f"the environment variable {name} is {value[:40]!r}: expected an integer, as launchers set it. Start the "
            "processes with a launcher, or unset the variable."
        ) from None


def rank_of(name: str, default: int, size: int) -> int:
    """The rank in an environment variable, of a run with that many processes."""
    rank = number(name, default)
    if not 0 <= rank < size:
        raise ArgumentError(
            f"the environment variables say that this is process {rank} of {size}: expected {name} to be 0 to "
            f"{max(0, size - 1)}. Start the processes with a launcher, or unset the variables."
        )
    return rank


def world() -> World:
    """Read the launcher's variables; each backend reads those of its own framework's launcher."""
    from ..backends import registry  # its specs import this module

    for launched in registry.launchers():
        found = launched()
        if found is not None:
            return found
    return World()
