"""AdamW and SGD in NumPy, over the memory of the weights.

mindtorch's own optimizers lack kernels on a CPU, and single operations would be slower. Averages are in float32; for
weights in half precision there are float32 master weights too, and the model gets the rounded values.
"""

from typing import Any

import numpy as np
import torch

from .tensors import memory_of, to_numpy


class HostOptimizer(torch.optim.Optimizer):
    """State as arrays by parameter, with torch's names."""

    holds_arrays = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                weights, state = memory_of(p), self.state[p]
                half = weights.dtype != np.float32
                if half and "master" not in state:
                    state["master"] = weights.astype(np.float32)
                target = state["master"] if half else weights
                self.update(target, to_numpy(p.grad).astype(np.float32, copy=False), state, group)
                if half:
                    weights[...] = target

    def update(self, weights: np.ndarray, gradient: np.ndarray, state: dict[str, Any], group: dict[str, Any]) -> None:
        """One step of one parameter, in place."""
        raise NotImplementedError


class AdamW(HostOptimizer):
    """Adam with decoupled weight decay and bias correction, as in torch.optim.AdamW."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        if not (0.0 <= betas[0] < 1.0 and 0.0 <= betas[1] < 1.0):
            raise ValueError(f"Invalid betas={betas}: expected numbers of at least 0 and below 1")
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay})

    def update(self, weights: np.ndarray, gradient: np.ndarray, state: dict[str, Any], group: dict[str, Any]) -> None:
        if "step" not in state:
            state["step"] = np.zeros((), np.float32)
            state["exp_avg"], state["exp_avg_sq"] = np.zeros_like(weights), np.zeros_like(weights)
        state["step"] += 1
        step, average, square = int(state["step"]), state["exp_avg"], state["exp_avg_sq"]
        rate, (beta1, beta2) = group["lr"], group["betas"]
        average *= beta1
        average += (1.0 - beta1) * gradient
        square *= beta2
        square += (1.0 - beta2) * gradient * gradient
        spread = np.sqrt(square)
        spread /= (1.0 - beta2**step) ** 0.5
        spread += group["eps"]
        np.divide(average, spread, out=spread)
        spread *= rate / (1.0 - beta1**step)
        if group["weight_decay"]:
            weights *= 1.0 - rate * group["weight_decay"]
        weights -= spread


class SGD(HostOptimizer):
    """Gradient descent with momentum, as in torch.optim.SGD."""

    def __init__(
        self, params: Any, lr: float = 1e-3, momentum: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False
    ) -> None:
        if nesterov and momentum <= 0:
            raise ValueError("nesterov=True needs a momentum above 0")
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov})

    def update(self, weights: np.ndarray, gradient: np.ndarray, state: dict[str, Any], group: dict[str, Any]) -> None:
        if group["weight_decay"]:
            gradient = gradient + group["weight_decay"] * weights
        if group["momentum"]:
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = gradient.copy()
            else:
                state["momentum_buffer"] *= group["momentum"]
                state["momentum_buffer"] += gradient
            moved = state["momentum_buffer"]
            gradient = gradient + group["momentum"] * moved if group["nesterov"] else moved
        weights -= group["lr"] * gradient
