"""Checkpoints of other trainers are pickles of torch or of Paddle; resuming from them raises an error here."""

from .._common.unsupported import ForeignRefused

_refused = ForeignRefused(
    "on Paddle can only resume from checkpoints of oneloop. Load its weights into the model with the library that "
    "wrote them, and start a new run."
)
load_weights = _refused.load_weights
load_optimizer = _refused.load_optimizer
scheduler_state = _refused.scheduler_state
scaler_state = _refused.scaler_state
random_state = _refused.random_state
