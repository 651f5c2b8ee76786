"""Reads checkpoints of the one other Trainer on MindSpore whose files are known: arrays under torch's names."""

from ...converters.external_reader import ArrayReader, UnsupportedCheckpointReader
from . import framework_layout, weights
from .models import unwrap

LOADS_SHARDED = False
_reader = ArrayReader(
    weights,
    framework_layout.layout,
    lambda model: unwrap(model).cells_and_names(),
    UnsupportedCheckpointReader(
        "on MindSpore cannot resume from it. Load its weights into the model yourself, and start a new run."
    ),
)
load_weights = _reader.load_weights
load_optimizer = _reader.load_optimizer
scheduler_state = _reader.scheduler_state
scaler_state = _reader.scaler_state
random_state = _reader.random_state
