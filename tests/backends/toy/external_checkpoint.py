from oneloop.converters.external_reader import UnsupportedCheckpointReader

_refused = UnsupportedCheckpointReader("of the toy resumes from checkpoints of oneloop alone.")
LOADS_SHARDED = False
load_weights = _refused.load_weights
load_optimizer = _refused.load_optimizer
scheduler_state = _refused.scheduler_state
scaler_state = _refused.scaler_state
random_state = _refused.random_state
