"""Gradients of one micro-batch at a time, and the update that follows.

MindSpore differentiates functions: a loss is computed inside mindtorch's value_and_grad, and its gradients are added to
`grad` of each parameter.
"""

import contextlib
import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from mindspore.common.api import _pynative_executor
from mindtorch.autograd import value_and_grad
from torch import nn

from ...errors import ModelError, NoGradientsError, a_type
from .._common.engines import FunctionEngine
from .._common.loss_scaling import Scaler
from . import patches
from .models import with_master_weights
from .tensors import from_numpy, to_numpy

logger = logging.getLogger(__name__)

RECORDS_TRAINING_STEP = False  # an overridden training_step calls loss_and_gradients; backward is an error


class Engine(FunctionEngine):
    """Holds the accumulated gradients, the loss scale, and whether they are finite."""

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        *,
        half: str | None = None,
        loss_scale: float = 32768.0,
        max_grad_norm: float = 1.0,
        nonfinite: str = "stop",
    ) -> None:
        self.model = model if half is None else with_master_weights(model, half)
        self.device = device
        self.scaler = Scaler(loss_scale) if half == "fp16" else None
        self.max_grad_norm = max_grad_norm
        self.nonfinite = nonfinite
        # All of them, since a callback may unfreeze some during a run.
        self.parameters = list(model.parameters())
        self.norm: float | None = None
        self.skipped = 0  # updates skipped because of a loss-scale overflow or nonfinite="skip"
        self._bad = False
        self._loss: Any = None
        self._warned = False

    # -- gradients

    def autocast(self, cache_enabled: bool | None = True) -> contextlib.AbstractContextManager:
        """The context of the forward pass. Half precision is a property of the weights here."""
        return contextlib.nullcontext()

    def backward(self, loss: Any, **kwargs: Any) -> None:
        """Not possible: a loss that was computed outside of value_and_grad has no graph."""
        raise ModelError(patches.NO_BACKWARD)

    def loss_and_gradients(self, compute: Callable[[], Any], divisor: Any = None) -> Any:
        """The primitive of the loop: run compute and accumulate the gradients of its loss, divided by divisor."""
        trainable = [p for p in self.parameters if p.requires_grad]
        if not trainable:
            raise NoGradientsError(_NO_GRADIENTS)
        scale = 1.0 if self.scaler is None else self.scaler.scale

        def forward() -> tuple[Any, Any]:
            loss = compute()
            if not isinstance(loss, torch.Tensor):
                raise NoGradientsError(
                    f"the loss cannot be differentiated: it is {a_type(loss)}. Look for .item() or numpy() in "
                    "its computation."
                )
            loss = loss.float() if loss.dtype != torch.float32 else loss
            loss = loss if divisor is None else loss / divisor
            return (loss if scale == 1.0 else loss * scale), loss

        try:
            (_, loss), found = value_and_grad(forward, trainable, has_aux=True, attach_grads=False)()
        except BaseException:
            # What was recorded before the exception would be taken for the start of the next forward pass.
            _pynative_executor.clear_res()
            raise
        for p, gradient in zip(trainable, found, strict=True):
            gradient._device = p.device
            p.grad = gradient if p.grad is None else _with_device(p.grad + gradient, p)
        return _with_device(loss, trainable[0])

    def include(self, optimizer: Any) -> None:
        """Add parameters of the optimizer that are not the model's, such as those of a criterion."""
        known = {id(p) for p in self.parameters}
        for group in getattr(optimizer, "param_groups", []):
            self.parameters.extend(p for p in group["params"] if id(p) not in known)

    def clear(self) -> None:
        """Clear the accumulated gradients."""
        for p in self.parameters:
            p.grad = None

    # -- update

    def prepare_update(self, optimizer: Any, loss: Any) -> None:
        """Unscale and clip the gradients, and determine whether they and the loss are finite."""
        self._loss = None if loss is None else float(to_numpy(loss))
        self.norm, self._bad = None, False
        held = [p for p in self.parameters if p.grad is not None]
        if not held:
            raise NoGradientsError(_NO_GRADIENTS)
        if self.max_grad_norm <= 0 and self.nonfinite == "ignore" and self.scaler is None:
            return
        factor = 1.0 if self.scaler is None else 1.0 / self.scaler.scale
        self.norm = norm = _norm([p.grad for p in held]) * factor
        if not math.isfinite(norm) or (self._loss is not None and not math.isfinite(self._loss)):
            self._bad = True
            return
        self._warn_about_zero_gradients(norm)
        if self.max_grad_norm > 0:
            factor *= min(1.0, self.max_grad_norm / (norm + 1e-6))
        if factor != 1.0:
            # Not in place: two parameters may share one gradient.
            for p in held:
                array = to_numpy(p.grad)
                p.grad = from_numpy(array.astype(np.float32, copy=False) * np.float32(factor)).to(p.device)

    def _warn_about_zero_gradients(self, norm: float) -> None:
        """Warn if all gradients are zero: here, a loss that depends on no parameter has zero gradients."""
        if norm == 0.0 and not self._warned:
            self._warned = True
            logger.warning(
                "All gradients are exactly zero. Unless this is expected, the loss does not depend on the weights: "
                "look for .detach(), .item() or torch.no_grad() in its computation."
            )

    def loss_is_lost(self) -> bool:
        return self._loss is not None and not math.isfinite(self._loss)

    def step(self, optimizer: Any) -> None:
        optimizer.step()


_NO_GRADIENTS = (
    "no gradients to update the model with: the loss does not depend on any trainable parameter. Look for a frozen "
    "model, or an overridden training_step that calls loss.backward(), which computes nothing under mindnlp."
)


def _with_device(tensor: Any, p: nn.Parameter) -> Any:
    """Set the device of a tensor that MindSpore created, since mindtorch expects it on every tensor."""
    tensor._device = p.device
    return tensor


def _norm(gradients: list[Any]) -> float:
    """The norm of all gradients."""
    squares = 0.0
    for gradient in gradients:
        flat = to_numpy(gradient).reshape(-1).astype(np.float32, copy=False)
        squares += float(np.dot(flat, flat))
    return math.sqrt(squares) if squares >= 0 else math.nan


def no_gradients() -> contextlib.AbstractContextManager:
    """A context without gradients, for evaluation."""
    return torch.no_grad()


def clip_norm(parameters: Any, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
    """Clip gradients in place; returns their norm before."""
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)
