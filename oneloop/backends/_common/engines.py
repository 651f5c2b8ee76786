"""What engines share: one class for frameworks whose losses have a graph, one for those that differentiate functions.
No framework."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from .loss_scaling import SMALLEST_LOSS_SCALE


class WideAutocast:
    """Autocast in all of compute_loss, and nowhere else."""

    autocasts_forward = False  # whether it is on in the model's forward pass alone, wherever the model is called

    autocast: Callable[..., AbstractContextManager]

    def limit_autocast(self) -> None:
        """Autocast in the forward pass alone, where that is supported."""

    def loss_context(self) -> AbstractContextManager:
        """The context of compute_loss."""
        return self.autocast()

    def forward_context(self, model: Any = None) -> AbstractContextManager:
        """The context of train() and of evaluations, for forward passes of the model, or of another one."""
        return nullcontext()


class TapeEngine(WideAutocast):
    """PyTorch and Paddle: a loss is differentiated after it was computed, and a scaler of the framework steps."""

    strategy: Any  # set by the Trainer: of this framework
    dtype: Any
    scaler: Any
    parameters: list[Any]
    skipped: int
    _bad: Any
    _scaled: bool  # whether the accumulated gradients are scaled: an override may call loss.backward() itself
    _loss: Any

    backward: Callable[..., None]
    loss_scale: Callable[[], float | None]
    groups_of: Callable[[Any], list[dict[str, Any]]]  # of an optimizer

    def loss_and_gradients(self, compute: Callable[[], Any], divisor: Any = None) -> Any:
        """The primitive of the loop: run compute and accumulate the gradients of its loss, divided by divisor."""
        if self.dtype is None:
            loss = compute()
        else:
            with self.loss_context():
                loss = compute()
        if divisor is not None:
            loss = loss / divisor
        self.backward(loss)
        return loss.detach()

    @property
    def is_bad(self) -> Any:
        """Whether the loss or a gradient of the current update is not finite: a bool, or a flag on the device."""
        return self._bad

    def recorded(self, step: Callable[[], Any]) -> Any:
        """Run an overridden training_step, whose backward passes accumulate the gradients."""
        return step()

    def skip_local_compute(self) -> None:
        """Called when this process had nothing to compute in an update: its gradients come from the others."""
        self._scaled = self.scaler is not None

    def include(self, optimizer: Any) -> None:
        """Add parameters of the optimizer that are not the model's, such as those of a criterion."""
        known = {id(p) for p in self.parameters}
        for group in self.groups_of(optimizer):
            self.parameters.extend(p for p in group["params"] if id(p) not in known)

    def _apply_scaled(self, optimizer: Any, step: int) -> int | None:
        self._scaled = False
        scale = self.loss_scale() or 0.0
        self.scaler.step(optimizer)
        self.scaler.update()
        if (self.loss_scale() or 0.0) < scale:
            # Overflows are expected: the scaler finds its scale by them. It is an error only if the scale cannot get
            # smaller, or if the loss, which is not scaled, is not finite itself.
            self.skipped += 1
            if scale <= SMALLEST_LOSS_SCALE or (self._loss is not None and not math.isfinite(self._loss.item())):
                return step
        return None

    def load_state(self, state: dict[str, Any]) -> None:
        self.skipped = int(state.get("skipped", 0))
        if self.scaler is not None and state.get("scaler"):
            self.scaler.load_state_dict(state["scaler"])


class FunctionEngine(WideAutocast):
    """MindSpore and mindtorch: a function is differentiated, oneloop scales, and all results are on the host."""

    strategy: Any  # set by the Trainer: of this framework
    parameters: list[Any]
    scaler: Any
    nonfinite: str
    norm: float | None
    skipped: int
    _bad: bool

    step: Callable[[Any], None]  # of an optimizer, with the gradients held
    loss_is_lost: Callable[[], bool]  # that of the update is not finite

    @property
    def is_bad(self) -> bool:
        """Whether the loss or a gradient of the current update is not finite."""
        return self._bad

    def recorded(self, step: Callable[[], Any]) -> Any:
        """Run an overridden training_step, whose backward passes accumulate the gradients."""
        return step()

    def skip_local_compute(self) -> None:
        """Called when this process had nothing to compute in an update: its gradients come from the others."""

    def apply_update(self, optimizer: Any, step: int) -> int | None:
        """Step the optimizer unless something is not finite; returns the number of a step that was not, once it is
        known."""
        if self.scaler is not None:
            return self._apply_scaled(optimizer, step)
        if self._bad and self.nonfinite != "ignore":
            self.skipped += 1
            return step
        self.step(optimizer)
        return None

    def _apply_scaled(self, optimizer: Any, step: int) -> int | None:
        before = self.scaler.scale
        self.scaler.update(self._bad)
        if not self._bad:
            self.step(optimizer)
            return None
        # Overflows are expected: the scaler finds its scale by them. It is an error only if the scale cannot get
        # smaller, or if the loss, which is not scaled, is not finite itself.
        self.skipped += 1
        return step if before <= SMALLEST_LOSS_SCALE or self.loss_is_lost() else None

    def read_pending(self) -> int | None:
        """None: there are no pending checks here."""
        return None

    # -- for logs and checkpoints

    def grad_norm(self) -> float | None:
        """Norm of the last update's gradients before clipping."""
        return self.norm

    def loss_scale(self) -> float | None:
        return None if self.scaler is None else self.scaler.scale

    def state(self) -> dict[str, Any]:
        """Plain data that a resumed run needs in addition to weights and optimizer."""
        return {"skipped": self.skipped, "scaler": None if self.scaler is None else self.scaler.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.skipped = int(state.get("skipped", 0))
        if self.scaler is not None and state.get("scaler"):
            self.scaler.load_state(state["scaler"])
