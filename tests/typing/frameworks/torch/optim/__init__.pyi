from collections.abc import Callable, Iterable
from typing import Any, overload

from .. import Tensor
from . import lr_scheduler as lr_scheduler

class Optimizer:
    param_groups: list[dict[str, Any]]
    def zero_grad(self, set_to_none: bool = True) -> None: ...
    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

class AdamW(Optimizer):
    def __init__(self, params: Iterable[Tensor], lr: float = 1e-3) -> None: ...
