"""Converts a checkpoint of one framework for a run on another.

Every tensor of a checkpoint is recorded with its common name and its axes (run.json, "layout"): "oi" for the weight of
a linear layer in torch and MindSpore, "io" for Paddle's. The common names are torch's. Axes are permuted by their
letters, so a square matrix is transposed like any other; a tensor whose letters do not match, or that has no letters
and another shape, is an error. Moments of the optimizer have the axes of their weights.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import CheckpointError
from ..formats.safetensors_io import Raw
from . import optimizer_state

AS_IT_IS = ""  # the axes of a tensor that is the same everywhere, or of a layer that oneloop does not know
ONLY_HERE = "-"  # a buffer that the other frameworks lack: it is not converted, and starts with its initial value


@dataclass(frozen=True)
class Place:
    """The common name of a tensor, and one letter for each axis; "1" is an axis of size one."""

    name: str
    axes: str = AS_IT_IS


def turned(array: np.ndarray, source: str, target: str) -> np.ndarray:
    """An array with the axes of `source` in the order of `target`."""
    if source == target:
        return array
    kept = source.replace("1", "")
    if sorted(kept) != sorted(target.replace("1", "")):
        raise ValueError(
            f"has the axes {source or 'it is'!r} there and {target or 'it is'!r} here: not the same kind of layer"
        )
    array = array.reshape([size for size, axis in zip(array.shape, source) if axis != "1"])
    array = array.transpose([kept.index(axis) for axis in target.replace("1", "")])
    sizes = iter(array.shape)
    return np.ascontiguousarray(array).reshape([1 if axis == "1" else next(sizes) for axis in target])


class Crossing:
    """From the tensors of a checkpoint to those of a model in another framework."""

    def __init__(
        self,
        source: str,
        target: str,
        stored: Mapping[str, list[str]],
        own: Mapping[str, Place],
        rename: Callable[[str, str], str],
        where: str,
    ) -> None:
        self.source, self.target, self.where, self.own = source, target, where, own
        self.stored = {name: Place(*place) for name, place in stored.items()}
        by_common = {place.name: name for name, place in own.items() if place.axes != ONLY_HERE}
        found = {name: rename(place.name, source) for name, place in self.stored.items() if place.axes != ONLY_HERE}
        self.names = {name: by_common[common] for name, common in found.items() if common in by_common}
        unknown = sorted(common for common in found.values() if common not in by_common)
        missing = sorted(set(by_common) - set(found.values()))
        if unknown or missing:
            raise CheckpointError(
                f"{where} was written on {source}, but the names of its weights do not match this {target} model. Only "
                f"in the checkpoint: {', '.join(unknown) or 'none'}; only in the model: "
                f"{', '.join(missing) or 'none'}. Names are compared in torch's notation; override "
                "Trainer.rename_parameter(name, framework) to map the checkpoint's names to the model's."
            )

    def weights(self, stored: Mapping[str, Raw], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Raw]:
        """Weights and buffers under this model's names, in its order of axes."""
        found, wrong = {}, []
        for name, raw in stored.items():
            own = self.names.get(name)
            if own is None:
                continue  # ONLY_HERE
            try:
                found[own] = self._turn(name, own, raw)
            except ValueError as error:
                wrong.append(f"{own}: {error}")
                continue
            if found[own].shape != tuple(shapes[own]):
                wrong.append(f"{own} has shape {found[own].shape}, the model expects {tuple(shapes[own])}")
        if wrong:
            raise CheckpointError(
                f"{self.where} was written on {self.source}, but its weights do not match this {self.target} model: "
                f"{'; '.join(wrong)}."
            )
        return found

    def _turn(self, name: str, own: str, raw: Raw) -> Raw:
        array = turned(raw.array(), self.stored[name].axes, self.own[own].axes)
        return Raw(raw.dtype, array.shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8))

    def optimizer(
        self, stored: Mapping[str, Raw], data: Mapping[str, Any], updates: int, own: Mapping[str, Any]
    ) -> dict[str, Raw]:
        """The optimizer's state as this framework stores it, under this model's names and in its order of axes."""
        common = optimizer_state.read(self.source, stored, data, updates)
        found: optimizer_state.Common = {}
        for name, state in common.items():
            target = self.names.get(name)
            if target is None:
                raise CheckpointError(
                    f"{self.where} has optimizer state under {name}, which is not one of its weights; it cannot be "
                    f"converted to {self.target}. Load the weights yourself and start with a new optimizer."
                )
            found[target] = optimizer_state.State(
                state.step, {word: self._turn(name, target, raw) for word, raw in state.moments.items()}
            )
        return optimizer_state.write(self.target, found, own)
