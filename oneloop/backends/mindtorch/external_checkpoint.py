"""Reads checkpoints of the Trainer of mindnlp 0.4. Those of transformers have PyTorch pickles, which mindtorch cannot
read safely; resuming from them raises an error."""

from ...converters.external_reader import ArrayReader, UnsupportedCheckpointReader
from ..torch import framework_layout
from . import weights
from .models import unwrap

LOADS_SHARDED = False
_reader = ArrayReader(
    weights,
    framework_layout.layout,
    lambda model: unwrap(model).named_modules(),
    UnsupportedCheckpointReader(
        "under mindnlp can only resume from checkpoints of oneloop and of mindnlp 0.4. Load its weights with "
        "from_pretrained, and start a new run."
    ),
)
load_weights = _reader.load_weights
load_optimizer = _reader.load_optimizer
scheduler_state = _reader.scheduler_state
scaler_state = _reader.scaler_state
random_state = _reader.random_state
