"""Computes the gradients of each micro-batch, and the update."""

import contextlib
import logging
import math
from typing import Any

import numpy as np
import torch
from torch import nn

from ...distributed.collectives import SINGLE_PROCESS
from ...errors import NoGradientsError, a_type
from .._common.engines import TapeEngine
from .._common.helpers import preview
from . import masked_steps, parallel
from .devices import recorded_event
from .forward_autocast import ForwardAutocast
from .models import unwrap
from .optimizers import groups, step_optimizer

logger = logging.getLogger(__name__)

RECORDS_TRAINING_STEP = False  # a loss has its graph: backward may be called anywhere


def _clip_coefficient(norm: torch.Tensor, value: float | None, max_grad_norm: float) -> torch.Tensor:
    """What torch.nn.utils.clip_grad_norm_ multiplies gradients with, to the last bit. `value`: the norm, if the host
    knows it; then float32 arithmetic on the host replaces five small tensor operations, and `norm` is overwritten."""
    if value is None or norm.dtype != torch.float32:
        return torch.clamp(max_grad_norm / (norm + 1e-6), max=1.0)
    coefficient = _ONE / (np.float32(value) + _EPSILON) * np.float32(max_grad_norm)
    return norm.fill_(min(1.0, float(coefficient)))


_ONE, _EPSILON = np.float32(1.0), np.float32(1e-6)


class Engine(TapeEngine):
    """Holds the accumulated gradients, the loss scaler and the flag whether they are finite.

    On a CPU the flag is read immediately, at no cost. On an accelerator it masks the update on the device and is read
    one step later, so that it is not a host sync.
    """

    groups_of = staticmethod(groups)

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
        self.model = model
        self.strategy = parallel.SingleProcessStrategy(None, SINGLE_PROCESS)  # set by the Trainer
        self.device = device
        self.dtype = {None: None, "fp16": torch.float16, "bf16": torch.bfloat16}[half]
        self.scaler = torch.amp.GradScaler(device.type, init_scale=loss_scale) if half == "fp16" else None
        self.max_grad_norm = max_grad_norm
        self.nonfinite = nonfinite
        self.late = device.type != "cpu"
        # All of them, since a callback may unfreeze some during a run.
        self.parameters = list(model.parameters())
        self._on_several_devices = len({p.device for p in self.parameters}) > 1  # a model on several devices
        self.norm: torch.Tensor | float | None = None
        self.skipped = 0  # updates skipped because of a loss-scale overflow or nonfinite="skip"
        self._bad: torch.Tensor | bool = False
        self._loss: torch.Tensor | None = None
        self._pending: tuple[int, torch.Tensor, Any] | None = None
        self._gradients: int | None = None  # how many gradients the last update had
        self._scaled = False

    # -- gradients

    def autocast(self, cache_enabled: bool | None = True) -> contextlib.AbstractContextManager:
        """The context of the forward pass."""
        if self.dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype, cache_enabled=cache_enabled)

    def limit_autocast(self) -> None:
        self.autocasts_forward = self.dtype is not None

    def loss_context(self) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext() if self.autocasts_forward else self.autocast()

    def forward_context(self, model: nn.Module | None = None) -> contextlib.AbstractContextManager:
        if not self.autocasts_forward:
            return contextlib.nullcontext()
        return ForwardAutocast(unwrap(self.model) if model is None else model, self.autocast)

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Add the gradients of a loss to the accumulated ones."""
        if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
            raise NoGradientsError(
                f"the loss cannot be differentiated: it is {a_type(loss)} that depends on no trainable "
                "parameter. Look for .item(), .detach() or torch.no_grad() in its computation, or a frozen model."
            )
        self.strategy.send(loss)
        if self.scaler is not None:
            loss, self._scaled = self.scaler.scale(loss), True
        self.strategy.backward(loss, **kwargs)

    def clear(self) -> None:
        """Clear the accumulated gradients."""
        for p in self.parameters:
            p.grad = None

    # -- update

    def prepare_update(self, optimizer: Any, loss: torch.Tensor | None) -> None:
        """Unscale and clip the gradients, and determine whether they and the loss are finite."""
        self._loss = loss
        if self._scaled:
            self.strategy.unscale(self.scaler, optimizer)
        gradients = self.strategy.local([p.grad for p in self.parameters if p.grad is not None])
        self.norm, self._bad = None, False
        if not gradients:
            raise NoGradientsError(
                "no gradients to update the model with: the loss does not depend on any trainable parameter. Look "
                "for detached tensors, a frozen model, or a training_step that does not call backward."
            )
        if len(gradients) != self._gradients:
            self._warn_about_unfrozen(optimizer, len(gradients))
        if self.max_grad_norm <= 0 and self.nonfinite == "ignore":
            return
        if gradients[0].is_sparse or any(g.is_sparse for g in gradients):
            norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm or math.inf, foreach=False)
            clipped = True
        else:
            norm = self.strategy.norm(gradients, self.device if self._on_several_devices else None)
            clipped = self.max_grad_norm <= 0
        if self.late:
            self._flag_on_device(norm, loss, gradients, clipped)
            return
        value = self.norm = norm.item()
        if not math.isfinite(value) or (loss is not None and not math.isfinite(loss)):
            self._bad = True
        elif not clipped and value + 1e-6 > self.max_grad_norm:  # below the limit it would multiply by exactly one
            torch._foreach_mul_(gradients, _clip_coefficient(norm, value, self.max_grad_norm))

    def _warn_about_unfrozen(self, optimizer: Any, count: int) -> None:
        """Warn about layers that were frozen when the optimizer was created, and no longer are: it does not train
        them."""
        before, self._gradients = self._gradients, count
        if before is None or count < before:
            return
        known = {id(p) for group in groups(optimizer) for p in group["params"]}
        names = {id(p): name for name, p in self.model.named_parameters()}
        left_out = [names[id(p)] for p in self.parameters if p.grad is not None and id(p) not in known]
        if left_out:
            logger.warning(
                "%s have gradients since this update, but are not in the optimizer, so they are not "
                "trained. Freeze layers after the optimizer is created (in on_train_begin), or add them: "
                "optimizer.add_param_group.",
                preview(left_out),
            )

    def _flag_on_device(self, norm: torch.Tensor, loss: Any, gradients: list[torch.Tensor], clipped: bool) -> None:
        self.norm = norm
        if self.nonfinite != "ignore":
            self._bad = ~torch.isfinite(norm if loss is None else norm + loss)
        if not clipped:
            torch._foreach_mul_(gradients, _clip_coefficient(norm, None, self.max_grad_norm))

    def apply_update(self, optimizer: Any, step: int) -> int | None:
        """Step the optimizer unless something is not finite; returns the number of a step that was not, once it is
        known."""
        if self._scaled:
            return self._apply_scaled(optimizer, step)
        if self.nonfinite == "ignore" or self._bad is False:
            step_optimizer(optimizer)
            return None
        if self._bad is True:
            self.skipped += 1
            return step
        return self._apply_masked(optimizer, step)

    def _apply_masked(self, optimizer: Any, step: int) -> int | None:
        """Step without waiting for the flag, where the device can leave the update out or undo it."""
        known = self.read_pending()
        bad = self._bad
        assert isinstance(bad, torch.Tensor)
        if not masked_steps.step_unless(bad, optimizer, exactly=self.nonfinite == "skip"):
            if bool(bad):  # a host sync
                self.skipped += 1
                return step
            step_optimizer(optimizer)
            return known
        host = bad.to("cpu", non_blocking=True)
        self._pending = (step, host, recorded_event(self.device))
        return known

    def read_pending(self) -> int | None:
        """Read the flag of the last step from the device, if it is pending: the number of the step if it was set."""
        if self._pending is None:
            return None
        (step, flag, event), self._pending = self._pending, None
        if event is not None:
            event.synchronize()
        if bool(flag):
            self.skipped += 1
            return step
        return None

    # -- for logs and checkpoints

    def grad_norm(self) -> float | None:
        """Norm of the last update's gradients before clipping. A host sync."""
        return None if self.norm is None else float(self.norm)

    def loss_scale(self) -> float | None:
        return None if self.scaler is None else self.scaler.get_scale()

    def state(self) -> dict[str, Any]:
        """Plain data that a resumed run needs in addition to weights and optimizer."""
        return {"skipped": self.skipped, "scaler": None if self.scaler is None else self.scaler.state_dict()}


def no_gradients() -> contextlib.AbstractContextManager:
    """A context without gradients, for evaluation."""
    return torch.no_grad()


def clip_norm(parameters: Any, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
    """Clip gradients in place; returns their norm before."""
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)
