"""Gradients of one micro-batch at a time, and the update that follows.

MindSpore differentiates functions: a tensor has no `backward`. The loss of a micro-batch is computed inside
`value_and_grad`, and its gradients are accumulated in `grad` of each parameter.
"""

import contextlib
import math
from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from ...errors import ModelError, NoGradientsError, a_type
from .._common.engines import FunctionEngine
from .._common.loss_scaling import Scaler
from . import dropout
from .compiling import Again, _pynative_executor
from .devices import Device
from .models import compute_in_half, unwrap
from .optimizers import parameters_of

RECORDS_TRAINING_STEP = True  # an overridden training_step is differentiated as a whole: see recorded


class Engine(FunctionEngine):
    """Holds the accumulated gradients, the loss scale, and whether they are finite."""

    def __init__(
        self,
        model: nn.Cell,
        device: Device,
        *,
        half: str | None = None,
        loss_scale: float = 32768.0,
        max_grad_norm: float = 1.0,
        nonfinite: str = "stop",
    ) -> None:
        self.model = model
        self.device = device
        self.scaler = Scaler(loss_scale) if half == "fp16" else None
        dropout.install(unwrap(model))
        if half is not None:
            compute_in_half(model, half)
        self.max_grad_norm = max_grad_norm
        self.nonfinite = nonfinite
        # All of them, since a callback may unfreeze some during a run.
        self.parameters: list[ms.Parameter] = list(unwrap(model).get_parameters())
        self._on_host = device.type == "cpu"  # where NumPy is faster than an operation, and reading costs nothing
        self.norm: float | None = None
        self.skipped = 0  # updates skipped because of a loss-scale overflow or nonfinite="skip"
        self._bad = False
        self._loss: ms.Tensor | None = None
        self._recorded: list[ms.Tensor] | None = None  # losses of a training_step that is being differentiated
        self._compute: Callable[[], Any] = lambda: None
        self._differentiate: tuple[list[int], Callable[[], Any]] = ([], lambda: None)

    # -- gradients

    def autocast(self, cache_enabled: bool | None = True) -> contextlib.AbstractContextManager:
        """The context of the forward pass. Half precision is a property of the cells here."""
        return contextlib.nullcontext()

    def backward(self, loss: ms.Tensor, **kwargs: Any) -> None:
        """Accumulate the gradients of a loss; only inside a training_step, which is then differentiated."""
        if self._recorded is None:
            raise ModelError(
                "backward was called outside of training_step, but MindSpore can only differentiate what it has "
                "recorded. Override training_step or compute_loss, or call "
                "trainer.engine.loss_and_gradients(function)."
            )
        self._recorded.append(_as_loss(loss))

    def loss_and_gradients(self, compute: Callable[[], ms.Tensor], divisor: Any = None) -> ms.Tensor:
        """The primitive of the loop: run compute and accumulate the gradients of its loss, divided by divisor."""

        def divided() -> ms.Tensor:
            loss = _as_loss(compute())
            return loss if divisor is None else loss / divisor

        if self._recorded is not None:
            loss = divided()
            self.backward(loss)
            return ops.stop_gradient(loss)
        return self._gradients_of(lambda: (divided(), None))[0]

    def recorded(self, step: Callable[[], Any]) -> Any:
        """Run an overridden training_step, and accumulate the gradients of the losses that it passes to backward or to
        loss_and_gradients: MindSpore records everything in it."""

        def watched() -> tuple[ms.Tensor, Any]:
            self._recorded = []
            try:
                returned = step()
                losses = self._recorded
            except AttributeError as error:
                if "backward" in str(error):
                    raise ModelError(_NO_BACKWARD) from error
                raise
            finally:
                self._recorded = None
            if not losses:
                raise NoGradientsError(f"training_step computed no gradients. {_NO_BACKWARD}")
            total = losses[0]
            for loss in losses[1:]:
                total = total + loss
            return total, returned

        loss, returned = self._gradients_of(watched)
        return loss if returned is None else ops.stop_gradient(returned) if _is_tensor(returned) else returned

    def _gradients_of(self, compute: Callable[[], tuple[ms.Tensor, Any]]) -> tuple[ms.Tensor, Any]:
        """Differentiate; returns the loss, and the other results of compute."""
        trainable = [p for p in self.parameters if p.requires_grad]
        if not trainable:
            raise NoGradientsError(_NO_GRADIENTS)
        if self._differentiate[0] != [id(p) for p in trainable]:
            weights = ms.ParameterTuple(trainable)
            self._differentiate = (
                [id(p) for p in trainable],
                ms.value_and_grad(self._forward, None, weights, has_aux=True),
            )
        self._compute = compute
        self._extra: Any = None
        try:
            (_, loss), found = self._differentiated()
        finally:
            self._compute = lambda: None
        for p, gradient in zip(trainable, found, strict=True):
            held = _held(p)
            p.grad = gradient if held is None else self._sum(held, gradient)
        return loss, self._extra

    def _sum(self, held: ms.Tensor, gradient: ms.Tensor) -> ms.Tensor:
        return _tensor(held.asnumpy() + gradient.asnumpy()) if self._on_host else held + gradient

    def _differentiated(self) -> Any:
        try:
            return self._differentiate[1]()
        except Again:
            _pynative_executor.clear_res()
            return self._differentiated()
        except BaseException:
            # What was recorded before the exception would be taken for the start of the next forward pass.
            _pynative_executor.clear_res()
            raise

    def _forward(self) -> tuple[ms.Tensor, ms.Tensor]:
        loss, self._extra = self._compute()
        loss = loss.astype(ms.float32) if loss.dtype != ms.float32 else loss
        if self.scaler is None:
            return loss, ops.stop_gradient(loss)
        return loss * self.scaler.scale, ops.stop_gradient(loss)

    def skip_local_compute(self) -> None:
        """Called when this process had nothing to compute in an update: its gradients come from the others."""

    def include(self, optimizer: Any) -> None:
        """Add parameters of the optimizer that are not the model's, such as those of a criterion."""
        known = {id(p) for p in self.parameters}
        self.parameters.extend(p for p in parameters_of(optimizer) if id(p) not in known)

    def clear(self) -> None:
        """Clear the accumulated gradients."""
        for p in self.parameters:
            p.grad = None

    # -- update

    def prepare_update(self, optimizer: Any, loss: ms.Tensor | None) -> None:
        """Unscale and clip the gradients, and determine whether they and the loss are finite."""
        self._loss = loss
        self.norm, self._bad = None, False
        held = [p for p in self.parameters if _held(p) is not None]
        if not held:
            raise NoGradientsError(_NO_GRADIENTS)
        if self.max_grad_norm <= 0 and self.nonfinite == "ignore" and self.scaler is None:
            return
        factor = 1.0 if self.scaler is None else 1.0 / self.scaler.scale
        norm = self.norm = _norm([p.grad for p in held]) * factor
        if not math.isfinite(norm) or (loss is not None and not math.isfinite(float(loss.asnumpy()))):
            self._bad = True
            return
        if self.max_grad_norm > 0:
            factor *= min(1.0, self.max_grad_norm / (norm + 1e-6))
        if factor != 1.0:
            for p in held:
                p.grad = self._scaled(p.grad, factor)

    def loss_is_lost(self) -> bool:
        return self._loss is not None and not math.isfinite(float(self._loss.asnumpy()))

    def step(self, optimizer: Any) -> None:
        """Pass the accumulated gradients to the optimizer."""
        members = parameters_of(optimizer)
        found = [_held(p) for p in members]
        if not getattr(optimizer, "leaves_out_frozen", False):
            found = [ops.zeros_like(p) if g is None else g for p, g in zip(members, found, strict=True)]
        optimizer(tuple(found))

    def _scaled(self, gradient: ms.Tensor, factor: float) -> ms.Tensor:
        """Not in place: two parameters may share one gradient."""
        if not self._on_host:
            return gradient * factor
        array = gradient.asnumpy()
        return _tensor(array * array.dtype.type(factor))


_NO_GRADIENTS = (
    "no gradients to update the model with: the loss does not depend on any trainable parameter. Look for "
    "stop_gradient, a frozen model, or a training_step that passes no loss to self.accelerator.backward."
)
_NO_BACKWARD = (
    "A MindSpore tensor has no backward(): call self.accelerator.backward(loss) instead, or "
    "super().training_step(...), or override only compute_loss."
)


def _held(p: ms.Parameter) -> Any:
    return getattr(p, "grad", None)


def _tensor(array: np.ndarray) -> ms.Tensor:
    """A tensor over the memory of an array that is not used elsewhere."""
    return ms.Tensor.from_numpy(np.ascontiguousarray(array))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, ms.Tensor)


def _as_loss(loss: Any) -> ms.Tensor:
    """Raise NoGradientsError unless the loss is a tensor that depends on a parameter."""
    if not isinstance(loss, ms.Tensor) or not loss._requires_grad:
        raise NoGradientsError(
            f"the loss cannot be differentiated: it is {a_type(loss)} that depends on no trainable parameter. "
            "Look for asnumpy(), item() or stop_gradient in its computation, or a frozen model."
        )
    return loss


def _norm(gradients: list[ms.Tensor]) -> float:
    """The norm of all gradients. On a CPU NumPy is several times as fast as one operation per gradient."""
    squares = 0.0
    for gradient in gradients:
        flat = gradient.asnumpy().reshape(-1)
        if flat.dtype != np.float32:
            flat = flat.astype(np.float32)
        squares += float(np.dot(flat, flat))
    return math.sqrt(squares) if squares >= 0 else math.nan


def no_gradients() -> contextlib.AbstractContextManager:
    """A context without gradients, for evaluation; nothing is differentiated outside of value_and_grad anyway."""
    return contextlib.nullcontext()


def clip_norm(parameters: Any, max_norm: float, norm_type: float = 2.0) -> Any:
    """The engine holds the gradients here, and clips them itself."""
    raise ModelError(
        "clip_grad_norm_ is not supported on MindSpore, whose parameters have no gradients. Use the argument "
        "max_grad_norm, which clips every update."
    )
