"""The mesh: the processes of a run along named axes, and what processes have in common.

An *axis* is of the mesh, a *dim* is of a tensor. Each axis says what differs between the processes along it:

| axis | along it, processes have different |
|---|---|
| data | batches |
| shard | batches and optimizer state; from stage 2 on, weights too |
| expert | weights and optimizer state of experts |
| sequence | nothing that is stored: each computes a part of every sequence of its batch |
| tensor | slices of weights, and their optimizer state |

Ranks count along the last axis first: of 2 data x 2 tensor, ranks 0 and 1 have the same batch. Nothing else in oneloop
computes with ranks. The Trainer asks its mesh (`core.mesh`):

- *Batches.* `num_batches` different ones are computed at a time, this process has number `batch_index`, and the first
  process of a batch is its leader (`is_batch_leader`). The order of the data, random streams and the states that a
  checkpoint stores per process are by batch, not by process: a run of 2 tensor writes the checkpoints of one process.
  Items, tokens and predictions are counted once per batch (`per_batch`).
- *Requests* (signals, callbacks, ended saves) come from all processes.
- *Groups.* `ranks_along` and `groups_along` have the ranks that differ along some axes only, and
  `ProcessGroup.along(mesh, *axes)` the process group for them. Gradients are averaged along the axes that split the
  batch.
- *Copies.* Of what several processes hold (weights, optimizer state), the first copy is written (`holds_first_copy`).

To add an axis, `register` an AxisKind before the Trainer is created. Its `size` reads the arguments, such as
`from_argument("tensor_parallel_size")`. Its `strategy` derives a class from the strategy that was chosen for the axes
that split the batch (one process, DDP, FSDP), or returns it unchanged. A strategy that divides activations draws their
dropout from a stream of its own: those of the process are the same in all processes of a batch, so that they load the
same data. tests/distributed/toy_axis.py is an example.
"""

import enum
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from ..errors import ArgumentError, UnsupportedError
from .world import world

Row = TypeVar("Row")


class Splits(enum.Flag):
    """What differs between processes along an axis."""

    NOTHING = 0
    BATCH = enum.auto()
    WEIGHTS = enum.auto()
    OPTIMIZER = enum.auto()


# -- the axes that meshes may have


@dataclass(frozen=True)
class AxisKind:
    """How an axis follows from the arguments."""

    name: str
    splits: Callable[[Any], Splits]
    """From the arguments."""
    size: Callable[[Any, int], int] | None
    """From the arguments and the number of processes that are left for it; None: all that are left."""
    strategy: Callable[[type, str], type | None] | None = None
    """From the strategy's class and the name of the framework, the class to use; None where that has none. A framework
    may have its own for an axis (see derive_strategy)."""
    argument: str = ""
    """That of the size, for messages."""

    def describe(self, size: int) -> str:
        return f"the axis {self.name!r} of the mesh" + (f" ({self.argument}={size})" if self.argument else "")


def of_argument(name: str, splits: Callable[[Any], Splits], argument: str) -> AxisKind:
    """An axis whose size is an argument, with strategies of the frameworks' own."""
    return AxisKind(name, splits, from_argument(argument), argument=argument)


def from_argument(name: str) -> Callable[[Any, int], int]:
    """The size that an argument has; 1 for arguments without it."""
    return lambda args, left: max(1, int(getattr(args, name, None) or 1))


def sharding_degree(args: Any, size: int) -> int:
    """Size of a sharding group, of that many processes; with hybrid and no number, the processes of one machine."""
    if args.sharding_degree > 0:
        return args.sharding_degree
    return world().local_size if "hybrid" in args.sharding.split() else size


def _shard_size(args: Any, left: int) -> int:
    if args.deepspeed:
        return left
    return sharding_degree(args, left) if args.sharding and left > 1 else 1


def _shard_splits(args: Any) -> Splits:
    is_whole = not args.deepspeed and "stage2" not in args.sharding and "stage3" not in args.sharding
    return Splits.BATCH | Splits.OPTIMIZER | (Splits.NOTHING if is_whole else Splits.WEIGHTS)


def _always(splits: Splits) -> Callable[[Any], Splits]:
    return lambda args: splits


DATA, SHARD, EXPERT, SEQUENCE, TENSOR = "data", "shard", "expert", "sequence", "tensor"
_SLICES = _always(Splits.WEIGHTS | Splits.OPTIMIZER)
# The outermost first. A framework without a strategy for one of the last three refuses sizes other than 1.
_kinds: list[AxisKind] = [
    AxisKind(DATA, _always(Splits.BATCH), None, lambda strategy, framework: strategy),
    AxisKind(SHARD, _shard_splits, _shard_size, lambda strategy, framework: strategy),
    of_argument(EXPERT, _SLICES, "expert_parallel_size"),
    of_argument(SEQUENCE, _always(Splits.NOTHING), "sequence_parallel_size"),
    of_argument(TENSOR, _SLICES, "tensor_parallel_size"),
]


def register(kind: AxisKind, before: str | None = None) -> None:
    """Have meshes that are built from now on use this axis: as the innermost one, or outside of another."""
    names = [each.name for each in _kinds]
    if kind.name in names:
        raise ArgumentError(f"the axis {kind.name!r} is already registered; the axes are {', '.join(names)}")
    _kinds.insert(len(names) if before is None else names.index(before), kind)


def unregister(name: str) -> None:
    """Remove an axis that was registered."""
    _kinds[:] = [kind for kind in _kinds if kind.name != name]


# -- the mesh of a run


@dataclass(frozen=True)
class Axis:
    name: str
    size: int = 1
    splits: Splits = Splits.NOTHING


@dataclass(frozen=True)
class Mesh:
    """The axes of a run, the outermost first, and the rank of this process. Without axes, that of one process."""

    axes: tuple[Axis, ...] = ()
    rank: int = 0

    def __post_init__(self) -> None:
        names = [axis.name for axis in self.axes]
        if len(set(names)) < len(names):
            raise ArgumentError(f"a mesh has each axis once, but got {', '.join(names)}")
        for axis in self.axes:
            if axis.size < 1:
                raise ArgumentError(f"Invalid size {axis.size} of the axis {axis.name!r}: expected at least 1")
        if not 0 <= self.rank < self.size:
            raise ArgumentError(
                f"Invalid rank {self.rank} for {self.size} processes; check the launcher's environment variables"
            )

    @classmethod
    def of_batches(cls, size: int, rank: int = 0) -> "Mesh":
        """That of processes which all have different batches, and the same weights."""
        return cls((Axis(DATA, size, Splits.BATCH),), rank)

    # -- places

    @cached_property
    def size(self) -> int:
        """All processes."""
        return math.prod(axis.size for axis in self.axes)

    @cached_property
    def is_single(self) -> bool:
        """Whether there is one process, which has nobody to talk to."""
        return self.size == 1

    @cached_property
    def is_main(self) -> bool:
        """Whether this is the process that logs, writes and computes metrics."""
        return self.rank == 0

    def size_of(self, name: str) -> int:
        return self.axes[self._number(name)].size

    def coordinate(self, name: str, rank: int | None = None) -> int:
        """The place of this process, or of another one, along an axis."""
        number = self._number(name)
        inside = math.prod(axis.size for axis in self.axes[number + 1 :])
        return (self.rank if rank is None else rank) // inside % self.axes[number].size

    def ranks_along(self, *names: str, rank: int | None = None) -> tuple[int, ...]:
        """The ranks that differ from this process, or from another one, along these axes only; it is among them."""
        ranks = [0]
        for axis in self.axes:
            here = self.coordinate(axis.name, rank)
            places = range(axis.size) if axis.name in names else (here,)
            ranks = [start * axis.size + place for start in ranks for place in places]
        for name in names:
            self._number(name)  # raises for an axis that there is none of
        return tuple(ranks)

    def groups_along(self, *names: str) -> tuple[tuple[int, ...], ...]:
        """All such groups, in the order of their first ranks: each rank is in one of them."""
        return tuple(dict.fromkeys(self.ranks_along(*names, rank=rank) for rank in range(self.size)))

    def describe(self, rank: int | None = None) -> str:
        """A readable name of a place: rank 3 (data 1, tensor 1)."""
        rank = self.rank if rank is None else rank
        places = self._places(rank)
        return f"rank {rank} ({', '.join(places)})" if len(places) > 1 else f"rank {rank}"

    def place(self, rank: int) -> str:
        """The place alone, for messages that name the process by its number; empty where all batches differ."""
        return "" if self.size == self.num_batches else ", ".join(self._places(rank))

    def _places(self, rank: int) -> list[str]:
        return [f"{axis.name} {self.coordinate(axis.name, rank)}" for axis in self.axes if axis.size > 1]

    def _number(self, name: str) -> int:
        for number, axis in enumerate(self.axes):
            if axis.name == name:
                return number
        raise KeyError(f"the mesh has no axis {name!r}, but {', '.join(axis.name for axis in self.axes) or 'none'}")

    # -- what processes have in common

    def axes_that_split(self, what: Splits) -> tuple[str, ...]:
        return tuple(axis.name for axis in self.axes if what in axis.splits)

    def axes_that_share(self, what: Splits) -> tuple[str, ...]:
        """The axes along which all processes have the same."""
        return tuple(axis.name for axis in self.axes if what not in axis.splits)

    @cached_property
    def axes_of_equal_models(self) -> tuple[str, ...]:
        """The axes along which all processes begin with the same weights: an axis that splits the batch divides them
        after that, when the strategy wraps the model."""
        return tuple(
            axis.name for axis in self.axes if Splits.BATCH in axis.splits or Splits.WEIGHTS not in axis.splits
        )

    def holds_first_copy(self, what: Splits) -> bool:
        """Whether no process before this one has the same: the one that writes it."""
        return all(self.coordinate(name) == 0 for name in self.axes_that_share(what))

    def first_copy(self, what: Splits) -> tuple[int, ...]:
        """The ranks that have all of it together, in the order of its parts."""
        return self.ranks_along(*self.axes_that_split(what), rank=0)

    @cached_property
    def same_batch(self) -> tuple[int, ...]:
        """The ranks that compute the batch of this process."""
        return self.ranks_along(*self.axes_that_share(Splits.BATCH))

    @cached_property
    def same_weights(self) -> tuple[int, ...]:
        return self.ranks_along(*self.axes_that_share(Splits.WEIGHTS))

    @cached_property
    def same_optimizer_state(self) -> tuple[int, ...]:
        return self.ranks_along(*self.axes_that_share(Splits.OPTIMIZER))

    # -- batches

    @cached_property
    def num_batches(self) -> int:
        """The different batches that are computed at the same time."""
        return math.prod(self.size_of(name) for name in self.axes_that_split(Splits.BATCH))

    @cached_property
    def batch_index(self) -> int:
        """Which of them this process computes."""
        return self.batch_leaders.index(self.same_batch[0])

    @cached_property
    def is_batch_leader(self) -> bool:
        """Whether this process is the one that contributes its batch where each counts once."""
        return self.rank == self.same_batch[0]

    @cached_property
    def batch_leaders(self) -> tuple[int, ...]:
        """Their ranks, in the order of the batches."""
        return self.first_copy(Splits.BATCH)

    def per_batch(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Of what all processes have sent, by rank: one for each batch."""
        return rows if self.size == self.num_batches else [rows[rank] for rank in self.batch_leaders]


SINGLE = Mesh()
_stands_for_all = False


@contextmanager
def standing_for_all() -> Iterator[None]:
    """A context in which one process takes the place of any number, which are planned and not started."""
    global _stands_for_all
    before, _stands_for_all = _stands_for_all, True
    try:
        yield
    finally:
        _stands_for_all = before


def build(args: Any, rank: int, size: int) -> Mesh:
    """The mesh of that many processes for these arguments, with every registered axis."""
    if size == 1 and _stands_for_all:
        return Mesh(tuple(Axis(kind.name, 1, kind.splits(args)) for kind in _kinds))
    sizes: dict[str, int] = {}
    left = size
    innermost_first = _kinds[::-1]
    for kind in sorted(innermost_first, key=lambda kind: kind.size is None):
        wanted = left if kind.size is None else kind.size(args, left)
        if left % wanted:
            raise ArgumentError(
                f"{kind.describe(wanted)} has {wanted} processes, which do not divide the {left} of {size} that are "
                f"left for it. Start a multiple of {wanted * size // left}, or use a divisor of {left}."
            )
        sizes[kind.name] = wanted
        left //= wanted
    return Mesh(tuple(Axis(kind.name, sizes[kind.name], kind.splits(args)) for kind in _kinds), rank)


def derive_strategy(
    strategy: type, mesh: Mesh, framework: str, own: Mapping[str, Callable[[type], type]] | None = None
) -> type:
    """The class of the strategy, with what all axes in use add to it. `own`: what this framework has for an axis; it
    comes before that of the axis."""
    own = own or {}
    for kind in _kinds:
        if kind.name not in {axis.name for axis in mesh.axes if axis.size > 1}:
            continue
        derived = None
        if kind.name in own:
            derived = own[kind.name](strategy)
        elif kind.strategy is not None:
            derived = kind.strategy(strategy, framework)
        if derived is None:
            size = mesh.size_of(kind.name)
            raise UnsupportedError(
                f"{kind.describe(size)} is not supported on {framework}: it has no strategy for {size} processes along "
                "it. Use 1, or another framework."
            )
        strategy = derived
    return strategy
