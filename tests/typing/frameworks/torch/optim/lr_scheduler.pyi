from collections.abc import Callable

from . import Optimizer

class LRScheduler:
    def step(self, epoch: int | None = None) -> None: ...
    def get_last_lr(self) -> list[float]: ...

class LambdaLR(LRScheduler):
    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float]) -> None: ...
