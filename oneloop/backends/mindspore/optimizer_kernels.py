"""AdamW and SGD with MindSpore's own kernels, one call per parameter.

`mindspore.experimental.optim` compiles its step again for every optimizer, keeps the addresses of the tensors that it
was compiled for, and takes several times as long, with the same results. Here nothing is compiled, learning rates are
plain numbers, and a parameter without a gradient is skipped.
"""

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import ops
from mindspore.experimental import optim


class _Plain(optim.Optimizer):
    """The base class of both: groups whose learning rates are numbers."""

    leaves_out_frozen = True  # a gradient may be None

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        super().__init__(params, defaults)
        self.lrs: list[float] = []
        self.steps = [0] * len(self.parameters)  # updates of each parameter

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        rate = float(param_group.get("lr", self.defaults["lr"]))
        super().add_param_group(param_group)
        self.param_groups[-1]["lr"] = rate  # a parameter would store it in float32

    def _state(self, name: str, value: str = "zeros") -> Any:
        """A tensor in float32 for each parameter."""
        make = np.zeros if value == "zeros" else np.ones
        states = [ms.Parameter(ms.Tensor(make(p.shape, np.float32)), name=f"{name}.{p.name}") for p in self.parameters]
        return ms.ParameterTuple(states)

    def _members(self, gradients: tuple[Any, ...]) -> Any:
        """(group, place, parameter, gradient) for all that have a gradient."""
        place = 0
        for group in self.param_groups:
            for p in group["params"]:
                if gradients[place] is not None:
                    yield group, place, p, gradients[place]
                place += 1


class AdamW(_Plain):
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
        self.exp_avg = self._state("exp_avg")
        self.exp_avg_sq = self._state("exp_avg_sq")
        self._kernel = ops.Adam()

    def construct(self, gradients: tuple[Any, ...]) -> bool:
        numbers: dict[tuple[int, int], list[ms.Tensor]] = {}
        for group, place, p, gradient in self._members(gradients):
            self.steps[place] += 1
            step, average, square = self.steps[place], self.exp_avg[place], self.exp_avg_sq[place]
            rate, (beta1, beta2) = group["lr"], group["betas"]
            kept = 1.0 - rate * group["weight_decay"]
            if p.dtype != ms.float32:
                _update_half(p, gradient, average, square, rate, kept, beta1, beta2, group["eps"], step)
                continue
            if kept != 1.0:
                ops.assign(p, p * kept)
            key = (id(group), step)
            if key not in numbers:
                numbers[key] = _kernel_numbers(rate, beta1, beta2, group["eps"], step)
            self._kernel(p, average, square, *numbers[key], gradient)
        return True


def _kernel_numbers(rate: float, beta1: float, beta2: float, eps: float, step: int) -> list[ms.Tensor]:
    """The kernel's scalars as tensors: for every new plain number, MindSpore prepares the kernel again, which takes ten
    times as long as the update, and keeps it in memory."""
    power1, power2 = beta1**step, beta2**step
    # The kernel divides by sqrt(square) + eps before the bias correction; torch adds eps after it.
    plain = (power1, power2, rate, beta1, beta2, eps * (1.0 - power2) ** 0.5)
    return [ms.Tensor.from_numpy(np.array(number, np.float32)) for number in plain]


def _update_half(
    p: Any, gradient: Any, average: Any, square: Any, rate: float, kept: float, beta1: float, beta2: float,
    eps: float, step: int,
) -> None:  # fmt: skip
    """Weights in half precision: averages and the arithmetic stay in float32, in which eps is not zero."""
    g = gradient.astype(ms.float32)
    ops.assign(average, average * beta1 + g * (1.0 - beta1))
    ops.assign(square, square * beta2 + g * g * (1.0 - beta2))
    spread = ops.sqrt(square) / (1.0 - beta2**step) ** 0.5 + eps
    change = average / spread * (rate / (1.0 - beta1**step))
    ops.assign(p, (p.astype(ms.float32) * kept - change).astype(p.dtype))


class SGD(_Plain):
    """Gradient descent with momentum, as in torch.optim.SGD."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("nesterov=True needs a momentum above 0 and no dampening")
        options = {"momentum": float(momentum), "dampening": float(dampening), "nesterov": nesterov}
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay} | options)
        if momentum:
            self.momentum_buffer = self._state("momentum_buffer")

    def construct(self, gradients: tuple[Any, ...]) -> bool:
        for group, place, p, gradient in self._members(gradients):
            if group["weight_decay"]:
                gradient = gradient + p * group["weight_decay"]
            momentum = group["momentum"]
            if momentum:
                buffer, moved = self.momentum_buffer[place], gradient
                if self.steps[place]:
                    moved = buffer * momentum + gradient * (1.0 - group["dampening"])
                ops.assign(buffer, moved.astype(ms.float32))
                self.steps[place] += 1
                gradient = gradient + moved * momentum if group["nesterov"] else moved
            ops.assign_sub(p, (gradient * group["lr"]).astype(p.dtype))
        return True
