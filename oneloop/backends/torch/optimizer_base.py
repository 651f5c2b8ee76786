"""The base class of the optimizers written here."""

from typing import Any

import torch


class OneByOne(torch.optim.Optimizer):
    """Updates the parameters that have a gradient, one after the other."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, group)
        return loss

    def _update(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError
