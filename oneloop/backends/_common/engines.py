"""What engines share: one half for frameworks whose losses remember how they were computed, one for those that
differentiate functions. No framework."""

import math
from collections.abc import Callable
from typing import Any

from .loss_scaling import SMALLEST_LOSS_SCALE


class TapeEngine:
    """PyTorch and Paddle: a loss is differentiated after it was computed, and a scaler of the framework steps."""

    strategy: Any  # the Trainer puts that of the run here
    dtype: Any
    scaler: Any
    parameters: list[Any]
    skipped: int
    _scaled: bool  # whether the gradients held came through the scaler: an override may call loss.backward()
    _loss: Any

    autocast: Callable[..., Any]
    backward: Callable[..., None]
    loss_scale: Callable[[], float | None]
    groups_of: Callable[[Any], list[dict[str, Any]]]  # of an optimizer

    def loss_and_gradients(self, compute: Callable[[], Any], divisor: Any = None) -> Any:
        """The primitive of the loop: run compute, add the gradients of its loss, divided by divisor, to those held."""
        if self.dtype is None:
            loss = compute()
        else:
            with self.autocast():
                loss = compute()
        if divisor is not None:
            loss = loss / divisor
        self.backward(loss)
        return loss.detach()

    def stand_by(self) -> None:
        """This process had nothing to compute in an update whose gradients come from the others."""
        self._scaled = self.scaler is not None

    def include(self, optimizer: Any) -> None:
        """Take in parameters that the optimizer has besides the model's, such as those of a criterion."""
        known = {id(p) for p in self.parameters}
        for group in self.groups_of(optimizer):
            self.parameters.extend(p for p in group["params"] if id(p) not in known)

    def _apply_scaled(self, optimizer: Any, step: int) -> int | None:
        self._scaled = False
        scale = self.loss_scale() or 0.0
        self.scaler.step(optimizer)
        self.scaler.update()
        if (self.loss_scale() or 0.0) < scale:
            # An overflow is how the scaler finds its scale; it means trouble only when no smaller scale is left, or
            # when the loss, which is not scaled, is not finite itself.
            self.skipped += 1
            if scale <= SMALLEST_LOSS_SCALE or (self._loss is not None and not math.isfinite(self._loss.item())):
                return step
        return None

    def load_state(self, state: dict[str, Any]) -> None:
        self.skipped = int(state.get("skipped", 0))
        if self.scaler is not None and state.get("scaler"):
            self.scaler.load_state_dict(state["scaler"])


class FunctionEngine:
    """MindSpore and mindtorch: a function is differentiated, oneloop scales, and everything is known on the host."""

    strategy: Any  # the Trainer puts that of the run here
    parameters: list[Any]
    scaler: Any
    nonfinite: str
    norm: float | None
    skipped: int
    _bad: bool

    step: Callable[[Any], None]  # of an optimizer, with the gradients held
    loss_is_lost: Callable[[], bool]  # that of the update is not finite

    def stand_by(self) -> None:
        """This process had nothing to compute in an update whose gradients come from the others."""

    def apply_update(self, optimizer: Any, step: int) -> int | None:
        """Step the optimizer unless something is not finite; the number of a step that was not, once it is known."""
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
        # An overflow is how the scaler finds its scale; it means trouble only when no smaller scale is left, or when
        # the loss, which is not scaled, is not finite itself.
        self.skipped += 1
        return step if before <= SMALLEST_LOSS_SCALE or self.loss_is_lost() else None

    def read_pending(self) -> int | None:
        """Nothing is ever left unread here."""
        return None

    # -- what logs and checkpoints ask for

    def grad_norm(self) -> float | None:
        """Norm of the last update's gradients before clipping."""
        return self.norm

    def loss_scale(self) -> float | None:
        return None if self.scaler is None else self.scaler.scale

    def state(self) -> dict[str, Any]:
        """Plain data: what a resumed run needs besides weights and optimizer."""
        return {"skipped": self.skipped, "scaler": None if self.scaler is None else self.scaler.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.skipped = int(state.get("skipped", 0))
        if self.scaler is not None and state.get("scaler"):
            self.scaler.load_state(state["scaler"])
