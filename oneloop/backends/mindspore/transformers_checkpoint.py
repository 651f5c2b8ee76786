"""Reads checkpoints of the Trainer of mindnlp 0.4. From those of other trainers a run cannot be resumed."""

from .._common.mindnlp_reader import MindNLPReader
from .._common.unsupported import ForeignRefused
from . import framework_layout, weights
from .models import unwrap

_reader = MindNLPReader(
    weights,
    framework_layout.layout,
    lambda model: unwrap(model).cells_and_names(),
    ForeignRefused(
        "on MindSpore cannot resume from it. Load its weights into the model yourself, and start a new run."
    ),
)
load_weights = _reader.load_weights
load_optimizer = _reader.load_optimizer
scheduler_state = _reader.scheduler_state
scaler_state = _reader.scaler_state
random_state = _reader.random_state
