"""What a step needs. PaddlePaddle has no tensors without data, so steps are not simulated."""

from .._common.planning import UnsimulatedSteps
from . import models, tensors, weights

_steps = UnsimulatedSteps("PaddlePaddle", models, tensors, weights)
without_weights, frozen_bytes = _steps.without_weights, _steps.frozen_bytes
sizes, step_memory = _steps.sizes, _steps.step_memory
