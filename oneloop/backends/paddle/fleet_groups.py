"""The groups of processes that sharding needs, as Paddle's fleet makes them."""

import contextlib
import logging
import socket
from collections.abc import Iterator
from typing import Any

import paddle
from paddle import distributed as dist
from paddle.distributed import collective, fleet
from paddle.distributed.fleet.utils.log_util import logger as fleet_logger

from ...distributed.collectives import ProcessGroup
from ...errors import UnsupportedError
from .parallel import rendezvous


def groups_of(processes: ProcessGroup, degree: int) -> Any:
    """Fleet's groups of processes: `degree` of them share one copy of the state. Created once per process."""
    made = fleet.fleet._hcg if hasattr(fleet.fleet, "_hcg") else None
    if made is not None:
        if made.get_sharding_parallel_world_size() != degree:
            raise UnsupportedError(
                f"sharding_degree={degree}, but fleet has already divided the processes into groups of "
                f"{made.get_sharding_parallel_world_size()}, which it does only once per process. Use one "
                "sharding_degree."
            )
        return made
    fleet_logger.setLevel(logging.WARNING)
    plan = fleet.DistributedStrategy()
    copies = processes.size // degree
    plan.hybrid_configs = {"dp_degree": copies, "mp_degree": 1, "pp_degree": 1, "sharding_degree": degree}
    with stores_of_groups(processes):
        fleet.init(is_collective=True, strategy=plan)
    return fleet.get_hybrid_communicate_group()


@contextlib.contextmanager
def stores_of_groups(processes: ProcessGroup) -> Iterator[None]:
    """A context in which each new gloo group has a store of its own. A collective.

    Paddle's gloo stores the address of a member under its rank in the group, without the name of the group. In a store
    that groups share, a process may read an address of another group there, and fails to connect to it.
    """
    if dist.get_backend().lower() != "gloo":
        yield
        return
    new_group = dist.new_group

    def with_own_store(ranks: list[int], *args: Any, **kwargs: Any) -> Any:
        if len(ranks) < 2:
            return new_group(ranks, *args, **kwargs)
        common, own = collective._default_store, _new_store(processes)
        collective._default_store = own
        try:
            group = new_group(ranks, *args, **kwargs)
        finally:
            collective._default_store = common
        processes.barrier()  # the main process has the store, and may be no member: it waits here until they connected
        return group

    dist.new_group = with_own_store
    try:
        yield
    finally:
        dist.new_group = new_group


def _new_store(processes: ProcessGroup) -> Any:
    """A store in the main process, to which all others connect."""
    host, _ = rendezvous()
    store = port = None
    if processes.is_main:
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        store = paddle.base.core.TCPStore(host, port, True, 0, 30)
    port = processes.broadcast_object(port)
    return store or paddle.base.core.TCPStore(host, port, False, 0, 30)
