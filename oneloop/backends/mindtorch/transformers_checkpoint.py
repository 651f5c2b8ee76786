"""Checkpoints of other trainers: their optimizer files are PyTorch pickles, which mindtorch cannot read safely;
resuming from them raises an error."""

from .._common.unsupported import ForeignRefused

_refused = ForeignRefused(
    "under mindnlp can only resume from checkpoints of oneloop. Load its weights with from_pretrained, and start a new "
    "run."
)
load_weights = _refused.load_weights
load_optimizer = _refused.load_optimizer
scheduler_state = _refused.scheduler_state
scaler_state = _refused.scaler_state
random_state = _refused.random_state
