"""A transformer whose layers have a part of each sequence, while it is called with whole ones.

Everything before the first layer (embeddings, masks, rotary positions) is computed for whole sequences, which are
padded to a multiple of the processes. The first layer is given its part of the hidden states, each layer its part of
the rotary positions, and attention exchanges heads for positions (sequence_attention.py). After the last layer the
parts are gathered, so that heads, pooled ones too, and whoever has called the model see whole sequences. A loss that is
a sum over positions can do without that (sequence_loss.py).

Along the axis gradients of parameters are **averaged**. What is computed from whole sequences is the same in all its
processes; what is computed from a part has its gradient times their number (see `_Gather`).

Random streams are the same in all processes of a batch. Between the first layer and the last each has one of its own,
so that dropout is independent, and the common stream goes on by one number afterwards if it was used.
"""

import contextlib
import logging
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from ... import libraries
from ...distributed.collectives import ProcessGroup
from ...formats.digests import Positions
from .sequence_attention import attention, gathered
from .sequence_model import DividedModel

logger = logging.getLogger(__name__)

PREFIX = "sequence_parallel_"  # of the names of attention functions
RECOMPUTE = "_gradient_checkpointing_func"  # of a layer


class _Recomputed(partial):
    """The function that recomputes a layer, replaced."""


@dataclass(frozen=True)
class Division:
    """How the sequences of one forward pass are divided."""

    axis: ProcessGroup
    length: int  # of the sequences
    keeps_parts: bool = False  # the parts are not gathered

    @property
    def part(self) -> int:
        return -(-self.length // self.axis.size)

    @property
    def whole(self) -> int:
        """The length with padding."""
        return self.part * self.axis.size

    def own(self, tensor: torch.Tensor, dim: int = 1) -> torch.Tensor:
        """The part of this process."""
        return tensor.narrow(dim, self.axis.rank * self.part, self.part)


class SequenceDivision:
    """A context in which a model divides the sequences that it is called with."""

    def __init__(self, model: DividedModel, axis: ProcessGroup, own_streams: bool = True) -> None:
        self.model, self.axis, self.own_streams = model, axis, own_streams
        self.keeps_parts = False  # of the next forward pass
        self.last: Division | None = None  # of the last forward pass
        self.attended: set[str] = set()  # layers that have called attention, while they are watched
        self._active: Division | None = None
        self._has_parts = False  # what follows the last layer has parts, too
        self._streams: _OwnStream | None = None
        self._entered = 0
        self._undo = contextlib.ExitStack()
        self._implementation = _register(model.implementation)

    def __enter__(self) -> "SequenceDivision":
        self._entered += 1  # an evaluation during training
        if self._entered == 1:
            self._install()
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered -= 1
        if not self._entered:
            self._undo.close()

    def _install(self) -> None:
        model, undo = self.model, self._undo
        handles = [
            model.backbone.register_forward_pre_hook(self._begin, with_kwargs=True),
            model.backbone.register_forward_hook(self._end, always_call=True),
            *(layer.register_forward_pre_hook(self._before_layer, with_kwargs=True) for layer in model.layers),
            model.layers[-1].register_forward_hook(self._after_last),
        ]
        for handle in handles:
            undo.callback(handle.remove)
        undo.callback(self._restore_recompute)

    # -- gradient checkpointing, which may be switched on and off between two forward passes

    def _replace_recompute(self) -> None:
        for layer in self.model.layers:
            recompute = vars(layer).get(RECOMPUTE)
            if recompute is not None and not isinstance(recompute, _Recomputed):
                setattr(layer, RECOMPUTE, _Recomputed(self._recomputable, layer, recompute))

    def _restore_recompute(self) -> None:
        for layer in self.model.layers:
            recompute = vars(layer).get(RECOMPUTE)
            if isinstance(recompute, _Recomputed):
                setattr(layer, RECOMPUTE, recompute.args[1])

    # -- a forward pass

    def _begin(self, backbone: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Any:
        inputs = {**dict(zip(self.model.input_names, args)), **kwargs}
        self.last, self._has_parts = None, False
        why = self.model.cannot_divide(inputs)
        if why is not None:
            logger.debug("%s is not divided in this call: %s", type(backbone).__name__, why)
            return None
        length = self.model.length_of(inputs)
        self.last = division = Division(self.axis, length, self.keeps_parts)
        self._activate(division)
        self._replace_recompute()
        if division.whole > length:
            inputs = self.model.padded(inputs, length, division.whole)
        return (), inputs

    def _end(self, backbone: nn.Module, args: Any, outputs: Any) -> None:
        if self._active is not None:
            self._deactivate()
            if not self.keeps_parts:
                self.last = None
                self._leave_streams()

    def _activate(self, division: Division) -> None:
        global _current
        self._active, _current = division, self
        for config in self.model.configs:
            config._attn_implementation_internal = self._implementation

    def _deactivate(self) -> None:
        global _current
        self._active = _current = None
        for config in self.model.configs:
            config._attn_implementation_internal = self.model.implementation

    # -- layers

    def _before_layer(self, layer: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Any:
        division = self._active
        if division is None:
            return None
        if layer is self.model.layers[0] and self._streams is None and not self._in_checkpoint:
            self._enter_streams(layer)
        return tree_map_only(torch.Tensor, partial(_part_of, division), (args, kwargs))

    def _after_last(self, layer: nn.Module, args: Any, outputs: Any) -> Any:
        if self._active is None or self._in_checkpoint:
            return None
        return self._whole(outputs)

    def _whole(self, outputs: Any) -> Any:
        """What the last layer has returned, for the rest of the model."""
        division = self._active
        assert division is not None
        if division.keeps_parts:
            self._has_parts = True
            return outputs
        self._leave_streams()
        if isinstance(outputs, tuple):
            return (gathered(outputs[0], self.axis, division.length), *outputs[1:])
        return gathered(outputs, self.axis, division.length)

    _in_checkpoint = False

    def _recomputable(
        self, layer: nn.Module, recompute: Callable[..., Any], run: Callable[..., Any], *args: Any
    ) -> Any:
        """Gradient checkpointing of a layer: what it keeps is a part, and in the backward pass it is divided again."""
        division = self._active
        if division is None:
            return recompute(run, *args)
        if layer is self.model.layers[0]:
            self._enter_streams(layer)
            args = tree_map_only(torch.Tensor, partial(_part_of, division), args)

        def divided(*args: Any) -> Any:
            before, was_in_checkpoint = self._active, self._in_checkpoint
            self._in_checkpoint = True
            if before is None:
                self._activate(division)
            try:
                return run(*args)
            finally:
                self._in_checkpoint = was_in_checkpoint
                if before is None:
                    self._deactivate()

        outputs = recompute(divided, *args)
        return self._whole(outputs) if layer is self.model.layers[-1] else outputs

    # -- random streams

    def _enter_streams(self, layer: nn.Module) -> None:
        if self.own_streams and layer.training and torch.is_grad_enabled():
            device = next((p.device for p in layer.parameters()), torch.device("cpu"))
            self._streams = _OwnStream(device, self.axis.rank)

    def _leave_streams(self) -> None:
        if self._streams is not None:
            self._streams.leave()
            self._streams = None

    @contextlib.contextmanager
    def keeping_parts(self) -> Iterator[None]:
        """A context in which the parts are not gathered after the last layer: what follows has them too."""
        self.keeps_parts, self.last = True, None  # outside of the context, the next forward pass is not divided
        try:
            yield
        finally:
            self.keeps_parts = self._has_parts = False
            self._leave_streams()

    # -- for digests of activations

    def positions_in(self, module: nn.Module) -> tuple[Positions, ...]:
        """The positions that activations of a module may have in this forward pass; () if it is not divided."""
        division = self._active or self.last
        if division is None:
            return ()
        whole = Positions(division.whole, 0, division.length, division.length)
        if self._has_parts or self.model.layer_of(module):  # the first layer is given whole sequences
            return Positions.of_part(self.axis.rank, division.part, division.length), whole
        return (whole,)

    # -- attention

    def attend(self, function: Callable[..., Any], module: nn.Module, *given: Any, **options: Any) -> Any:
        self.attended.add(self.model.layer_of(module))
        return attention(function, self.axis, module, *given, **options)


_current: SequenceDivision | None = None  # whose forward or backward pass is under way


def _attend(function: Callable[..., Any], module: nn.Module, *given: Any, **options: Any) -> Any:
    if _current is None:
        return function(module, *given, **options)
    return _current.attend(function, module, *given, **options)


def _register(implementation: str) -> str:
    """The name of an attention function that divides heads, with the masks of the given one."""
    library, name = libraries.models(), PREFIX + implementation
    if library.attention(name) is None:
        function = library.attention(implementation)
        assert function is not None, implementation  # sequence_model has found it
        library.add_attention(name, partial(_attend, function), masks_of=implementation)
    return name


def _part_of(division: Division, tensor: torch.Tensor) -> torch.Tensor:
    """The own part of hidden states and rotary positions (rows, sequence, size). Masks and positions stay whole: only
    attention reads them."""
    if tensor.ndim == 3 and tensor.is_floating_point() and tensor.shape[1] == division.whole:
        return division.own(tensor).contiguous()
    return tensor


class _OwnStream:
    """The random stream of a device, replaced by one of this process until leave()."""

    def __init__(self, device: torch.device, place: int) -> None:
        self.device = device
        self.common = self._get()
        seed = zlib.crc32(self.common.numpy().tobytes() + bytes([0]) + str(place).encode())
        self._generator().manual_seed(seed)
        self.begin = self._get()

    def _generator(self) -> torch.Generator:
        if self.device.type == "cpu":
            return torch.default_generator
        module: Any = getattr(torch, self.device.type)
        index = self.device.index if self.device.index is not None else module.current_device()
        return module.default_generators[index]

    def _get(self) -> torch.Tensor:
        return self._generator().get_state()

    def leave(self) -> None:
        used = not torch.equal(self._get(), self.begin)
        self._generator().set_state(self.common)
        if used:  # or the next forward pass would draw the same
            torch.empty(1, device=self.device).uniform_()
