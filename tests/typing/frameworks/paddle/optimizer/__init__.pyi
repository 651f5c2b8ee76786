from typing import Any

from .. import Tensor
from . import lr as lr

class Optimizer:
    def step(self) -> None: ...
    def clear_grad(self, set_to_zero: bool = True) -> None: ...

class AdamW(Optimizer):
    def __init__(self, learning_rate: Any = 0.001, parameters: list[Tensor] | None = None) -> None: ...
