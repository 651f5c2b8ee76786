"""Computes the gradients of each micro-batch, and the update."""

import contextlib
import math
from typing import Any

import numpy as np
import paddle
from paddle import _C_ops

from ...errors import NoGradientsError, UnsupportedError, a_type
from .._common.engines import TapeEngine
from .devices import Device
from .optimizers import groups

RECORDS_TRAINING_STEP = False  # a loss has its graph: backward may be called anywhere
_HALVES = {"fp16": "float16", "bf16": "bfloat16"}


class Engine(TapeEngine):
    """Holds the accumulated gradients, the loss scaler and the flag whether they are finite.

    Paddle's optimizers need this flag on the host. On a CPU reading it costs nothing; on an accelerator it is the only
    host sync of a step, which nonfinite="ignore" avoids.
    """

    groups_of = staticmethod(groups)

    is_part = False  # whether the gradients are those of some parameters only: other processes have the rest

    def __init__(
        self,
        model: paddle.nn.Layer,
        device: Device,
        *,
        half: str | None = None,
        loss_scale: float = 32768.0,
        max_grad_norm: float = 1.0,
        nonfinite: str = "stop",
    ) -> None:
        self.model = model
        self.device = device
        self.dtype = None if half is None else _HALVES[half]
        self.scaler = paddle.amp.GradScaler(init_loss_scaling=loss_scale) if half == "fp16" else None
        self.max_grad_norm = max_grad_norm
        self.nonfinite = nonfinite
        self.waits = device == "cpu" or nonfinite != "ignore"
        # All of them, since a callback may unfreeze some during a run.
        self.parameters = list(model.parameters())
        # Weights that models.with_master_weights has converted to half precision need Paddle's level O2.
        half_weights = half is not None and any(p.dtype in (paddle.float16, paddle.bfloat16) for p in self.parameters)
        self.level = "O2" if half_weights else "O1"
        self.norm: paddle.Tensor | float | None = None
        self.skipped = 0  # updates skipped because of a loss-scale overflow or nonfinite="skip"
        self._bad = False
        self._loss: paddle.Tensor | None = None
        self._scaled = False

    # -- gradients

    def autocast(self, cache_enabled: bool | None = True) -> contextlib.AbstractContextManager:
        """The context of the forward pass."""
        if self.dtype is None:
            return contextlib.nullcontext()
        return paddle.amp.auto_cast(level=self.level, dtype=self.dtype)

    def backward(self, loss: paddle.Tensor, **kwargs: Any) -> None:
        """Add the gradients of a loss to the accumulated ones."""
        if not isinstance(loss, paddle.Tensor) or loss.stop_gradient:
            raise NoGradientsError(
                f"the loss cannot be differentiated: it is {a_type(loss)} that depends on no trainable "
                "parameter. Look for .item(), .detach() or paddle.no_grad() in its computation, or a frozen model."
            )
        if self.scaler is not None:
            loss, self._scaled = self.scaler.scale(loss), True
        loss.backward(**kwargs)

    def clear(self) -> None:
        """Clear the accumulated gradients."""
        for p in self.parameters:
            p.clear_gradient(False)

    # -- update

    @paddle.no_grad()
    def prepare_update(self, optimizer: Any, loss: paddle.Tensor | None) -> None:
        """Unscale and clip the gradients, and determine whether they and the loss are finite."""
        self._loss = loss
        if self._scaled:
            self.unscale(optimizer)
        gradients = [g for p in self.parameters if (g := p.grad) is not None]
        self.norm, self._bad = None, False
        if not gradients and not self.is_part:
            raise NoGradientsError(
                "no gradients to update the model with: the loss does not depend on any trainable parameter. Look "
                "for detached tensors, a frozen model, or a training_step that does not call backward."
            )
        if self.max_grad_norm <= 0 and self.nonfinite == "ignore":
            return
        square = self.square(gradients)
        if not self.waits:
            self.norm = norm = square.sqrt()
            if self.max_grad_norm > 0:
                factor = paddle.clip(self.max_grad_norm / (norm + 1e-6), max=1.0)
                for gradient in gradients:
                    gradient.multiply_(factor.astype(gradient.dtype))
            return
        value = self.norm = math.sqrt(square.item())
        if not math.isfinite(value) or (loss is not None and not math.isfinite(loss.item())):
            self._bad = self.nonfinite != "ignore"
        elif 0 < self.max_grad_norm < value + 1e-6:
            # The arithmetic of paddle.nn.utils.clip_grad_norm_; below the limit it would multiply by exactly one.
            factor = self.max_grad_norm / (value + 1e-6)
            for gradient in gradients:
                _C_ops.scale_(gradient, factor, 0.0, True)  # type: ignore[attr-defined]  # made when Paddle is built

    def unscale(self, optimizer: Any) -> None:
        """Divide the gradients by the loss scale. The scaler notes whether one of them has overflowed."""
        assert self.scaler is not None
        self.scaler.unscale_(optimizer)

    def square(self, gradients: list[paddle.Tensor]) -> paddle.Tensor:
        """The squared norm of the gradients of the update."""
        return squared_norm(gradients)

    def apply_update(self, optimizer: Any, step: int) -> int | None:
        """Step the optimizer unless something is not finite; returns the number of a step that was not."""
        if self._scaled:
            return self._apply_scaled(optimizer, step)
        if self._bad:
            self.skipped += 1
            return step
        optimizer.step()
        return None

    def read_pending(self) -> int | None:
        """None: there are no pending checks; see the class."""
        return None

    # -- for logs and checkpoints

    def grad_norm(self) -> float | None:
        """Norm of the last update's gradients before clipping. A host sync."""
        return self.norm.item() if isinstance(self.norm, paddle.Tensor) else self.norm

    def loss_scale(self) -> float | None:
        state = {} if self.scaler is None else self.scaler.state_dict()
        return float(state["scale"].reshape(-1)[0]) if state else None

    def state(self) -> dict[str, Any]:
        """Plain data that a resumed run needs in addition to weights and optimizer."""
        state = None if self.scaler is None else self.scaler.state_dict()
        if state:
            state = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in state.items()}
        return {"skipped": self.skipped, "scaler": state or None}


def squared_norm(gradients: list[paddle.Tensor]) -> paddle.Tensor:
    """The squared norm of all gradients as one vector."""
    if any(g.is_selected_rows() for g in gradients):
        raise UnsupportedError(
            "an embedding with sparse=True has gradients that Paddle cannot clip in place. Use max_grad_norm=0 with "
            "nonfinite='ignore', or an embedding without sparse=True."
        )
    squares = [_C_ops.squared_l2_norm(g) for g in gradients]
    if any(square.dtype != paddle.float32 for square in squares):
        squares = [square.astype("float32") for square in squares]
    return squares[0] if len(squares) == 1 else _C_ops.add_n(squares)


def no_gradients() -> contextlib.AbstractContextManager:
    """A context without gradients, for evaluation."""
    return paddle.no_grad()


def clip_norm(parameters: Any, max_norm: float, norm_type: float = 2.0) -> paddle.Tensor:
    """Clip gradients in place; returns their norm before."""
    return paddle.nn.utils.clip_grad_norm_(list(parameters), max_norm, norm_type)
