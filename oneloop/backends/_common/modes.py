"""Layers in evaluation mode, whatever a framework calls its layers."""

from collections.abc import Callable, Iterable
from typing import Any

Children = Callable[[Any], Iterable[tuple[str, Any]]]


def outermost_in_eval(layer: Any, children: Children, trains: Callable[[Any], bool], path: str = "") -> list[str]:
    """Names of layers in evaluation mode below one in training mode, without those inside of others.

    `trains`: whether a layer has weights of its own to train, and is no norm.
    """
    found: list[str] = []
    for name, child in children(layer):
        place = f"{path}{name}"
        if child.training:
            found += outermost_in_eval(child, children, trains, f"{place}.")
        elif _any_trains(child, children, trains):
            found.append(place)
    return found


def _any_trains(layer: Any, children: Children, trains: Callable[[Any], bool]) -> bool:
    return trains(layer) or any(_any_trains(child, children, trains) for _, child in children(layer))
