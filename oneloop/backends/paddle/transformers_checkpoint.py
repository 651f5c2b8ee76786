"""Checkpoints of other trainers: their files are pickles of torch or of Paddle, and are refused in words here."""

from .._common.unsupported import ForeignRefused

_refused = ForeignRefused(
    "on Paddle can go on from checkpoints of oneloop alone. Load its weights into the model with the library that "
    "wrote them, and start a new run."
)
load_weights = _refused.load_weights
load_optimizer = _refused.load_optimizer
scheduler_state = _refused.scheduler_state
scaler_state = _refused.scaler_state
