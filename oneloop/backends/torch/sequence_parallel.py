"""The axis `sequence`: processes that have the same batch, and compute a part of each of its sequences.

Weights and optimizer state are whole along the axis, so that checkpoints are those of one process. Gradients are
averaged along it by whatever averages them over batches: DDP, FSDP. See sequence_division.py for what makes that right.
"""

import contextlib
import weakref
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from ...distributed.collectives import ProcessGroup
from ...distributed.mesh import DATA, EXPERT, SEQUENCE, SHARD, TENSOR, Mesh, Splits
from ...errors import UnsupportedError
from ...formats.digests import Positions
from . import sequence_loss, sequence_model
from .ddp import DataParallelStrategy
from .models import base_of
from .parallel import SingleProcessStrategy
from .sequence_division import SequenceDivision

if TYPE_CHECKING:
    from ..base import EngineClass


@cache
def derive(strategy: type[SingleProcessStrategy]) -> type[SingleProcessStrategy]:
    """The class that divides sequences too. A single batch is averaged over the axis as several are."""
    base: Any = strategy if issubclass(strategy, DataParallelStrategy) else DataParallelStrategy
    return type(f"Sequence{base.__name__}", (SequenceParallel, base), {"__module__": __name__})


if TYPE_CHECKING:
    _Base = DataParallelStrategy
else:
    _Base = object


class SequenceParallel(_Base):
    """What is added to a strategy that averages gradients."""

    computes_loss_in_parts = True

    def __init__(self, args: Any, processes: ProcessGroup, mesh: Mesh) -> None:
        super().__init__(args, processes, mesh)
        _check_arguments(args, mesh)
        self.replicas = processes.along(mesh, *mesh.axes_that_split(Splits.BATCH), SEQUENCE)
        self.axis = processes.along(mesh, SEQUENCE)
        self._divisions: weakref.WeakKeyDictionary[nn.Module, SequenceDivision] = weakref.WeakKeyDictionary()
        self._copies: DeviceMesh | None = None

    def division(self, model: nn.Module) -> SequenceDivision:
        """How this model is divided. Its first call computes a few tokens: a collective of the axis."""
        base = base_of(model)
        if base not in self._divisions:
            found = sequence_model.find(base, self.axis)
            division = SequenceDivision(found, self.axis, own_streams=self.has_values)
            if self.has_values:
                sequence_model.check(found, division)
            self._divisions[base] = division
        return self._divisions[base]

    def wrap(self, model: nn.Module) -> nn.Module:
        self.division(model)  # before its layers are sharded
        return super().wrap(model)

    def engine_class(self, default: "EngineClass") -> "EngineClass":
        engine: Any = super().engine_class(default)
        return _dividing(engine)

    def _division_of_loss(self, model: nn.Module) -> SequenceDivision | None:
        """That of the model, if its loss can be computed from parts."""
        return self._divisions.get(base_of(model)) if sequence_loss.is_divisible(model) else None

    def outputs_for_loss(self, model: nn.Module, inputs: Any) -> Any:
        division = self._division_of_loss(model)
        if division is None:
            return super().outputs_for_loss(model, inputs)
        with sequence_loss.of_parts(model, division):
            return super().outputs_for_loss(model, inputs)

    def smoothed_loss(self, model: nn.Module, inputs: Any, labels: Any, epsilon: float, shift: bool) -> Any:
        division = self._division_of_loss(model)
        if division is None:
            return super().smoothed_loss(model, inputs, labels, epsilon, shift)
        return sequence_loss.smoothed(model, division, inputs, labels, epsilon, shift)

    def positions_in(self, layer: nn.Module) -> tuple[Positions, ...]:
        return tuple(each for division in self._divisions.values() for each in division.positions_in(layer))

    # -- FSDP

    def _mesh(self) -> DeviceMesh:
        """Shards by copies: those of the axis data, and those of this one."""
        if self._copies is None:
            self._copies = _copies_by_shards(self.args.device.type, self.mesh)
        return self._copies


def _check_arguments(args: Any, mesh: Mesh) -> None:
    size = mesh.size_of(SEQUENCE)
    for axis in (TENSOR, EXPERT):
        if mesh.size_of(axis) > 1:
            raise UnsupportedError(
                f"sequence_parallel_size={size} cannot be combined with {axis}_parallel_size={mesh.size_of(axis)}. Use "
                "one of them, with sharding and several batches if you like."
            )
    if args.use_cache:
        raise UnsupportedError(
            f"sequence_parallel_size={size} cannot be combined with use_cache=True: a cache has the keys and values of "
            "whole sequences, and none is used in training. Remove use_cache."
        )
    if args.torch_compile or args.jit_mode_eval:
        raise UnsupportedError(
            f"sequence_parallel_size={size} cannot be combined with torch_compile or jit_mode_eval: messages between "
            "processes within a layer are not compiled. Remove one of them."
        )


def _copies_by_shards(device: str, mesh: Mesh) -> DeviceMesh:
    sizes = [axis.size for axis in mesh.axes]
    names = [axis.name for axis in mesh.axes]
    order = [names.index(name) for name in (DATA, SEQUENCE, SHARD)]
    rest = [number for number in range(len(names)) if number not in order]
    ranks = torch.arange(mesh.size).view(sizes).permute(*rest, *order).reshape(-1, mesh.size_of(SHARD))
    return DeviceMesh(device, ranks, mesh_dim_names=("copies", SHARD))


@cache
def _dividing(engine: Any) -> Any:
    """An engine in whose forward context sequences are divided."""

    class DividingEngine(engine):
        def forward_context(self, model: nn.Module | None = None) -> contextlib.AbstractContextManager:
            context = super().forward_context(model)
            if model is not None:  # another one than that which is trained
                return context
            return _within(context, self.strategy.division(self.model))

    return DividingEngine


@contextlib.contextmanager
def _within(outer: contextlib.AbstractContextManager, inner: contextlib.AbstractContextManager) -> Iterator[None]:
    with outer, inner:
        yield
