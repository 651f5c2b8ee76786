"""AdamW whose state may be in low precision, with Kahan summation to compensate."""

from collections.abc import Mapping
from typing import Any

import torch

from ...errors import ArgumentError
from .optimizer_base import OneByOne
from .optimizer_fields import Fields, like

_DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}


class AnyPrecisionAdamW(OneByOne):
    """Decoupled weight decay Adam with a dtype for each moment.

    With Kahan summation the part of an update that low-precision weights cannot represent is kept and added to the
    next one, so that training in bfloat16 does not stall when updates get small.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        use_kahan_summation: bool = False,
        momentum_dtype: torch.dtype = torch.float32,
        variance_dtype: torch.dtype = torch.bfloat16,
        compensation_buffer_dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "use_kahan_summation": use_kahan_summation,
            "momentum_dtype": momentum_dtype,
            "variance_dtype": variance_dtype,
            "compensation_buffer_dtype": compensation_buffer_dtype,
        }
        super().__init__(params, defaults)

    @staticmethod
    def state_fields(p: torch.Tensor, group: Mapping[str, Any]) -> Fields:
        """What is kept for a parameter."""
        fields: Fields = {
            "step": None,
            "exp_avg": like(p, group["momentum_dtype"]),
            "exp_avg_sq": like(p, group["variance_dtype"]),
        }
        extra = {"compensation": like(p, group["compensation_buffer_dtype"])}
        return fields | (extra if group.get("use_kahan_summation") else {})

    def _update(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(p, dtype=group["momentum_dtype"])
            state["exp_avg_sq"] = torch.zeros_like(p, dtype=group["variance_dtype"])
            if group["use_kahan_summation"]:
                state["compensation"] = torch.zeros_like(p, dtype=group["compensation_buffer_dtype"])
        state["step"] += 1
        step = state["step"].item()
        (beta1, beta2), rate = group["betas"], group["lr"]
        momentum, variance = state["exp_avg"], state["exp_avg_sq"]
        if group["weight_decay"]:
            p.mul_(1 - rate * group["weight_decay"])
        momentum.mul_(beta1).add_(p.grad.to(momentum.dtype), alpha=1 - beta1)
        gradient = p.grad.to(variance.dtype)
        variance.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        size = rate / (1 - beta1**step)
        # The second moment is corrected outside of its own dtype: low precision would lose the correction itself.
        spread = (variance.float().sqrt() / (1 - beta2**step) ** 0.5).add_(group["eps"])
        change = momentum.float().div(spread).mul_(-size)  # a new tensor: float() of float32 is the momentum itself
        if group["use_kahan_summation"]:
            lost = state["compensation"]
            lost.add_(change.to(lost.dtype))
            before = p.clone()
            p.add_(lost.to(p.dtype))
            lost.add_((before - p).to(lost.dtype))
        else:
            p.add_(change.to(p.dtype))


def class_and_options(
    args: Any, model: torch.nn.Module | None, options: dict[str, Any], extra: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Types of the state are given by their names."""
    for key, value in extra.items():
        if key.endswith("_dtype"):
            name = str(value).removeprefix("torch.")
            if name not in _DTYPES:
                raise ArgumentError(f"optim_args: {key}={value!r}; use one of {', '.join(_DTYPES)}")
            value = _DTYPES[name]
        options[key] = value
    return AnyPrecisionAdamW, options
