"""What may be given to an argument, as types for editors and type checkers.

The functions that convert values name these in their annotations, and `typing_stub.py` reads them there. Nothing is
imported from here at run time.
"""

import os
from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np


class HasToDict(Protocol):
    def to_dict(self) -> dict[str, Any]: ...


Number: TypeAlias = float | np.number[Any] | str
"""A number, or text that is one: 1e-4 or "1e-4"."""

Integer: TypeAlias = int | float | np.number[Any] | str
"""A whole number, also written as 1e3 or "1000"."""

Text: TypeAlias = str | os.PathLike[str]
Words: TypeAlias = str | list[str] | tuple[str, ...] | set[str] | frozenset[str]
"""A list of words; also "a,b", "a b" or a JSON list."""

JsonDict: TypeAlias = Mapping[str, Any] | str
"""A dict, or JSON text."""

Config: TypeAlias = Mapping[str, Any] | str | os.PathLike[str] | HasToDict
"""A dict, JSON text, the path of a JSON file, or an object with to_dict()."""

Stored = TypeVar("Stored", covariant=True)
Accepted = TypeVar("Accepted", contravariant=True)


class Argument(Generic[Stored, Accepted]):
    """An argument that is read as one type and can be given, and set, as another."""

    def __get__(self, instance: object, owner: object = None) -> Stored:
        raise NotImplementedError("for type checkers only")

    def __set__(self, instance: object, value: Accepted) -> None:
        raise NotImplementedError("for type checkers only")
