"""Adafactor with an external learning rate, as trainers use it.

torch.optim.Adafactor multiplies the rate by the scale of each parameter, so its steps are a tenth as long, or shorter,
than the same rate means elsewhere. Here that is an option, off by default.
"""

from collections.abc import Mapping
from typing import Any

import torch

from ... import behaviour
from .optimizer_base import OneByOne
from .optimizer_fields import FLOAT, Fields


class Adafactor(OneByOne):
    """Steps of one size for all, with the second moment of a matrix kept as a mean of its rows and one of its columns.

    The moment's memory lengthens with the step t as 1 - t**decay_rate; an update whose root mean square is above
    clip_threshold is scaled down to it. With beta1 a mean of the updates is kept too.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        eps: float = 1e-30,
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        beta1: float = 0.0,
        weight_decay: float = 0.0,
        scale_parameter: bool = False,
    ) -> None:
        if not decay_rate < 0:
            raise ValueError(f"decay_rate={decay_rate!r}; expected a number below 0")
        if not 0 <= beta1 < 1:
            raise ValueError(f"beta1={beta1!r}; expected a number from 0 to 1, without 1")
        if not clip_threshold > 0:
            raise ValueError(f"clip_threshold={clip_threshold!r}; expected a number above 0")
        defaults = {"lr": lr, "eps": eps, "clip_threshold": clip_threshold, "decay_rate": decay_rate, "beta1": beta1}
        super().__init__(params, defaults | {"weight_decay": weight_decay, "scale_parameter": scale_parameter})

    @staticmethod
    def state_fields(p: torch.Tensor, group: Mapping[str, Any]) -> Fields:
        """What is kept for a parameter."""
        shape = tuple(p.shape)
        fields: Fields = {"step": None}
        if len(shape) > 1:
            fields |= {"row_var": ((*shape[:-1], 1), FLOAT), "col_var": ((*shape[:-2], 1, shape[-1]), FLOAT)}
        else:
            fields["variance"] = (shape, FLOAT)
        return fields | ({"exp_avg": (shape, FLOAT)} if (group.get("beta1") or 0) > 0 else {})

    def _update(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        gradient, state = p.grad.float(), self.state[p]
        if not state:
            _begin(state, gradient, group["beta1"] > 0)
        state["step"] += 1
        kept = 1.0 - state["step"].item() ** group["decay_rate"]
        change = gradient / _root_second_moment(state, gradient.square().add_(group["eps"]), kept)
        change.div_((_size(change) / group["clip_threshold"]).clamp_(min=1.0))
        rate = group["lr"] * (_size(p.float()).clamp_(min=1e-3) if group["scale_parameter"] else 1.0)
        change.mul_(rate)
        if group["beta1"]:
            change = state["exp_avg"].lerp_(change, 1.0 - group["beta1"])
        if group["weight_decay"]:
            p.mul_(1.0 - rate * group["weight_decay"])
        p.sub_(change.to(p.dtype))


def _begin(state: dict[str, Any], gradient: torch.Tensor, with_mean: bool) -> None:
    state["step"] = torch.tensor(0.0)
    if gradient.dim() > 1:
        state["row_var"] = torch.zeros_like(gradient[..., :1])
        state["col_var"] = torch.zeros_like(gradient[..., :1, :])
    else:
        state["variance"] = torch.zeros_like(gradient)
    if with_mean:
        state["exp_avg"] = torch.zeros_like(gradient)


def _root_second_moment(state: dict[str, Any], square: torch.Tensor, kept: float) -> torch.Tensor:
    """Update the second moment with the squared gradient; returns its root."""
    if "variance" in state:
        return state["variance"].lerp_(square, 1.0 - kept).sqrt()
    rows = state["row_var"].lerp_(square.mean(-1, keepdim=True), 1.0 - kept)
    columns = state["col_var"].lerp_(square.mean(-2, keepdim=True), 1.0 - kept)
    return (rows / rows.mean(-2, keepdim=True)).sqrt() * columns.sqrt()


def _size(tensor: torch.Tensor) -> torch.Tensor:
    """The root of the mean square."""
    return tensor.square().mean().sqrt()


def class_and_options(
    args: Any, model: torch.nn.Module | None, options: dict[str, Any], extra: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """The class that a script expects, with which it may compare, or ours."""
    expected = behaviour.current().optimizer_factories.get("adafactor")
    found = None if expected is None else expected()
    if found is not None:
        return found, options | {"scale_parameter": False, "relative_step": False} | extra
    return Adafactor, options | extra
