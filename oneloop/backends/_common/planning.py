"""What a step needs, on frameworks that have no tensors without data: steps are not simulated. No framework."""

import contextlib
from typing import Any, NoReturn

from ...errors import UnsupportedError


class UnsimulatedSteps:
    """The module `planning` of such a backend, over its modules `models`, `tensors` and `weights`."""

    def __init__(self, framework: str, models: Any, tensors: Any, weights: Any) -> None:
        self.framework = framework
        self.models, self.tensors, self.weights = models, tensors, weights

    def without_weights(self) -> contextlib.AbstractContextManager:
        """A context in which models are made; with their weights."""
        return contextlib.nullcontext()

    def frozen_bytes(self, model: Any) -> int:
        """Bytes of the weights that are not trained, and of buffers that are saved."""
        stored, _ = self.weights.model_tensors(model)
        trained = {name for name, _ in self.models.named_parameters(model)}
        return sum(int(self.tensors.size(value)) for name, value in stored.items() if name not in trained)

    def sizes(self, core: Any, axis: str, most: int) -> list[int]:
        """None: layouts are not searched."""
        return []

    def step_memory(
        self, core: Any, inputs: Any, rows: int, recompute: bool, arguments: dict[str, Any], world: int = 1
    ) -> NoReturn:
        """Raise an error: the memory is not known before a step is computed."""
        raise UnsupportedError(
            f"activations are not known: {self.framework} cannot run a step on tensors without data. Peaks, and what "
            "fits, need them; train a few steps with skip_memory_metrics=False, which logs them"
        )
