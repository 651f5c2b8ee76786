"""Checkpoints of other trainers on MindSpore: their weights can be loaded, but a run cannot be resumed."""

from .._common.unsupported import ForeignRefused

_refused = ForeignRefused(
    "on MindSpore cannot resume from it. Load its weights into the model yourself, and start a new run."
)
load_weights = _refused.load_weights
load_optimizer = _refused.load_optimizer
scheduler_state = _refused.scheduler_state
scaler_state = _refused.scaler_state
random_state = _refused.random_state
