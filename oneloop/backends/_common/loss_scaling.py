"""The loss scale of float16: as large as gradients allow, so that small ones do not vanish."""

from typing import Any

SMALLEST_LOSS_SCALE = 1.0


class Scaler:
    """Halves the scale when gradients overflow, and doubles it after a number of updates without overflow."""

    def __init__(self, scale: float, growth_interval: int = 2000) -> None:
        self.scale = float(scale)
        self.growth_interval = growth_interval
        self.good_steps = 0

    def update(self, overflow: bool) -> None:
        self.good_steps = 0 if overflow else self.good_steps + 1
        if overflow:
            self.scale *= 0.5
        elif self.good_steps == self.growth_interval:
            self.scale, self.good_steps = self.scale * 2.0, 0

    def state(self) -> dict[str, Any]:
        """With the names of PyTorch's scaler, which other backends use too."""
        return {
            "scale": self.scale,
            "growth_factor": 2.0,
            "backoff_factor": 0.5,
            "growth_interval": self.growth_interval,
            "_growth_tracker": self.good_steps,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.scale, self.good_steps = float(state["scale"]), int(state.get("_growth_tracker", 0))
