from collections.abc import Callable, Iterator
from typing import Any

from .. import Tensor

class Module:
    training: bool
    forward: Callable[..., Any]
    __call__: Callable[..., Any]
    def __getattr__(self, name: str) -> Tensor | Module: ...
    def parameters(self, recurse: bool = True) -> Iterator[Tensor]: ...
    def state_dict(self, *args: Any) -> dict[str, Any]: ...

class Linear(Module):
    def __init__(self, in_features: int, out_features: int) -> None: ...

class CrossEntropyLoss(Module):
    def __init__(self, weight: Tensor | None = None) -> None: ...
