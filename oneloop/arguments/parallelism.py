"""accelerate's ParallelismConfig, as an object or a dict: sizes of axes, which set the arguments for them.

| key | argument |
|---|---|
| `tp_size` | `tensor_parallel_size` |
| `cp_size`, `sp_size` | `sequence_parallel_size` |
| `dp_shard_size` | `sharding_degree` |
| `dp_replicate_size` | none: the data takes the processes that are left |
"""

import math
from typing import TYPE_CHECKING, Any

from ..distributed.world import world
from ..errors import ArgumentError
from . import values

if TYPE_CHECKING:
    from .processes import Processes

SIZES = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size")
_OTHERS = ("cp_backend", "sp_backend", "cp_handler", "sp_handler", "tp_handler", "device_mesh")
_DEFAULTS = {"tensor_parallel_size": 1, "sequence_parallel_size": 1, "sharding_degree": -1}


def to_parallelism(name: str, value: Any) -> Any:
    """A ParallelismConfig stays as it is; its keys may come in a dict, as JSON or in a JSON file."""
    if value is None or hasattr(value, "tp_size"):
        sizes_of(name, value)
        return value
    config = values.to_config(name, value)
    for key, size in config.items():
        if key not in (*SIZES, *_OTHERS):
            raise values.invalid(f"{name}[{key!r}]", size, "one of the keys " + ", ".join(SIZES))
    sizes_of(name, config)
    return config


def sizes_of(name: str, config: Any) -> dict[str, int]:
    """The sizes that are not 1."""
    found = {}
    for key in SIZES:
        size = config.get(key) if isinstance(config, dict) else getattr(config, key, None)
        if size is None:
            continue
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise values.invalid(f"{name}[{key!r}]", size, "a number of at least 1")
        if size > 1:
            found[key] = size
    return found


def arguments_of(sizes: dict[str, int], name: str = "parallelism_config") -> dict[str, int]:
    """The arguments that sizes of axes stand for."""
    if "cp_size" in sizes and "sp_size" in sizes:
        raise ArgumentError(
            f"{name} has cp_size={sizes['cp_size']} and sp_size={sizes['sp_size']}: both divide the sequences of a "
            "batch. Use one of them."
        )
    found = {"tensor_parallel_size": sizes.get("tp_size"), "sharding_degree": sizes.get("dp_shard_size")}
    found["sequence_parallel_size"] = sizes.get("cp_size", sizes.get("sp_size"))
    return {argument: size for argument, size in found.items() if size is not None}


def apply(args: "Processes") -> None:
    """Set the arguments that parallelism_config stands for; an error if they are set to something else."""
    sizes = sizes_of("parallelism_config", args.parallelism_config)
    for argument, size in arguments_of(sizes).items():
        current = getattr(args, argument)
        if current not in (_DEFAULTS[argument], size):
            raise ArgumentError(f"{argument}={current}, but parallelism_config has {size} for it. Remove one of them.")
        setattr(args, argument, size)
    check_processes(sizes)


def check_processes(sizes: dict[str, int], name: str = "parallelism_config") -> None:
    """An error if sizes of axes are those of another number of processes than were started."""
    total, here = math.prod(sizes.values()), world()
    if here.launcher is not None and total not in (1, here.size):
        shown = " x ".join(f"{key}={size}" for key, size in sizes.items())
        raise ArgumentError(f"{name} is for {total} processes ({shown}), but {here.size} were started. Start {total}.")
