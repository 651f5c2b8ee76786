"""Random numbers for activations that are divided: each process draws its own.

The streams of processes that compute the same batch are equal, so that dropout of whole activations is the same in all
of them, as on one process. Between a layer whose output is divided and one whose input is, each process draws from
another stream, which follows from the common one and the place of the process. The common one goes on as if nothing had
been drawn there, or, where something was, one number later: the same in every process, and the same when a layer is
computed again for its gradients.
"""

import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .tensor_division import Division


class DividedDropout:
    """Hooks for the layers at the borders."""

    def __init__(self, place: int, device: torch.device) -> None:
        self._place = place
        self._generators: list[Callable[[], torch.Generator]] = [lambda: torch.default_generator]
        if device.type == "cuda":
            self._generators.append(lambda: torch.cuda.default_generators[device.index or 0])
        self._common: list[torch.Tensor] = []  # the states outside, while inside
        self._started: list[torch.Tensor] = []  # the states with which this process began inside

    def attach(self, model: nn.Module, division: Division) -> None:
        """Dropout of an adapter is of the input of its layer: whole where only the output is divided, and divided where
        the output is whole."""
        adapted = {id(layer) for layer in division.adapted}
        for number, layer in enumerate(division.columns):
            if id(layer) in adapted:
                layer.register_forward_pre_hook(self._leave)
            layer.register_forward_hook(self._entry(number))
        for layer in division.rows:
            if id(layer) in adapted:
                layer.register_forward_hook(self._leave)
            else:
                layer.register_forward_pre_hook(self._leave)
        model.register_forward_hook(self._leave, always_call=True)

    def _entry(self, number: int) -> Callable[..., None]:
        def enter(layer: nn.Module, *_: Any) -> None:
            if self._common or not layer.training:
                return
            self._common = [generator().get_state() for generator in self._generators]
            for generator, state in zip(self._generators, self._common):
                seed = zlib.crc32(state.numpy().tobytes(), number)
                generator().manual_seed(seed * 4096 + 1 + self._place)
            self._started = [generator().get_state() for generator in self._generators]

        return enter

    def _leave(self, *_: Any) -> None:
        common, self._common = self._common, []
        for generator, state, started in zip(self._generators, common, self._started):
            was_drawn = not torch.equal(generator().get_state(), started)
            generator().set_state(state)
            if was_drawn:
                torch.rand((), generator=generator(), device=generator().device)
